//! The state of a stack that waits: a word for each.
//!
//! | word | state |
//! |---|---|
//! | 0 | in use, or free |
//! | pointer | waits, with its stack pointer |
//! | pointer + 1 | waits, and a sweep takes its pages |
//! | pointer + 2 | waits, and has been swept |
//!
//! Only its own code makes a stack wait and go on; a stack that is being swept goes on when the
//! sweep is done with it. Stack pointers are multiples of 16.

use std::sync::atomic::{AtomicUsize, Ordering};

const SWEEPING: usize = 1;
const SWEPT: usize = 2;
const FLAGS: usize = SWEEPING | SWEPT;

#[derive(Default)]
pub(super) struct IdleWord(AtomicUsize);

impl IdleWord {
    /// The stack waits with this pointer.
    pub(super) fn wait(&self, pointer: usize) {
        self.0.store(pointer & !15, Ordering::Release);
    }

    /// The stack goes on. Its code uses no more than the margin below the noted pointer before this
    /// returns.
    pub(super) fn resume(&self) {
        loop {
            let seen = self.0.load(Ordering::Acquire);
            if seen & SWEEPING == 0
                && self
                    .0
                    .compare_exchange(seen, 0, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Claims a stack that waits and was not swept. Returns its pointer; [`IdleWord::swept`] ends
    /// the claim.
    pub(super) fn claim(&self) -> Option<usize> {
        let seen = self.0.load(Ordering::Acquire);
        if seen == 0 || seen & FLAGS != 0 {
            return None;
        }
        self.0
            .compare_exchange(seen, seen | SWEEPING, Ordering::Acquire, Ordering::Relaxed)
            .ok()
    }

    pub(super) fn swept(&self) {
        let pointer = self.0.load(Ordering::Relaxed) & !FLAGS;
        self.0.store(pointer | SWEPT, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_waits_is_swept_once() {
        let word = IdleWord::default();
        assert_eq!(word.claim(), None);
        word.wait(0x1230);
        assert_eq!(word.claim(), Some(0x1230));
        assert_eq!(word.claim(), None, "one sweep at a time");
        word.swept();
        assert_eq!(word.claim(), None, "it did not run since");
        word.resume();
        assert_eq!(word.claim(), None);
        word.wait(0x1230);
        assert_eq!(word.claim(), Some(0x1230));
    }

    #[test]
    fn a_stack_goes_on_only_after_its_sweep() {
        let word = IdleWord::default();
        for _ in 0..1000 {
            word.wait(0x40);
            let swept = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                assert_eq!(word.claim(), Some(0x40));
                let resumed = scope.spawn(|| {
                    word.resume();
                    swept.load(Ordering::SeqCst)
                });
                swept.store(true, Ordering::SeqCst);
                word.swept();
                assert!(resumed.join().unwrap());
            });
        }
    }
}
