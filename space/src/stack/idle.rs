//! The state of a stack that waits: a word for each.
//!
//! | word | state |
//! |---|---|
//! | 0 | in use, or free |
//! | pointer + 4 | in use: its code is about to wait, with this stack pointer |
//! | pointer | waits |
//! | pointer + 1 | waits, and a sweep takes its pages |
//! | pointer + 2 | waits, and has been swept |
//!
//! Its own code only notes the stack pointer. The code that resumes it, on another stack, makes it
//! wait once it runs no more, and go on before it runs again: a signal handler may need the stack
//! at any instruction of a switch. A stack that is being swept goes on when the sweep is done with
//! it. Stack pointers are multiples of 16.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use wired::futex;

/// How often a resume looks whether a sweep is done before it sleeps: a sweep of one stack takes a few microseconds.
const LOOKS: u32 = 1000;

/// What it sleeps then. A sweep may have many stacks, and may need the processor that the resume has.
const PAUSE: Duration = Duration::from_micros(50);

const SWEEPING: usize = 1;
const SWEPT: usize = 2;
const NOTED: usize = 4;
const FLAGS: usize = SWEEPING | SWEPT | NOTED;

#[derive(Default)]
pub(super) struct IdleWord(AtomicUsize);

impl IdleWord {
    /// The stack's own code is about to wait, with this pointer.
    pub(super) fn note(&self, pointer: usize) {
        self.0.store(pointer & !15 | NOTED, Ordering::Relaxed);
    }

    /// The stack waits, if its code has noted a pointer.
    pub(super) fn wait(&self) {
        let seen = self.0.load(Ordering::Relaxed);
        if seen & NOTED != 0 {
            self.0.store(seen & !FLAGS, Ordering::Release);
        }
    }

    /// The stack goes on, or is free.
    pub(super) fn resume(&self) {
        let mut looks = 0;
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
            if looks < LOOKS {
                looks += 1;
                std::hint::spin_loop();
            } else {
                futex::wait(&AtomicU32::new(0), 0, Some(PAUSE));
            }
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
        word.note(0x1230);
        assert_eq!(word.claim(), None, "its code runs still");
        word.wait();
        assert_eq!(word.claim(), Some(0x1230));
        assert_eq!(word.claim(), None, "one sweep at a time");
        word.swept();
        assert_eq!(word.claim(), None, "it did not run since");
        word.resume();
        word.wait();
        assert_eq!(word.claim(), None, "it has noted no pointer since");
        word.note(0x1230);
        word.wait();
        assert_eq!(word.claim(), Some(0x1230));
    }

    #[test]
    fn a_stack_goes_on_only_after_its_sweep() {
        let word = IdleWord::default();
        for _ in 0..1000 {
            word.note(0x40);
            word.wait();
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

    #[test]
    fn a_resume_sleeps_while_a_sweep_has_its_stack() {
        use std::time::Instant;
        let word = IdleWord::default();
        let thread = AtomicU32::new(0);
        let sleeps = || {
            let task = thread.load(Ordering::Acquire);
            let status = std::fs::read_to_string(format!("/proc/self/task/{task}/status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("voluntary_"));
            line.unwrap().to_owned()
        };
        word.note(0x40);
        word.wait();
        assert_eq!(word.claim(), Some(0x40));
        let slept = std::thread::scope(|scope| {
            scope.spawn(|| {
                let own = rustix::thread::gettid().as_raw_nonzero().get();
                thread.store(own as u32, Ordering::Release);
                word.resume();
            });
            while thread.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let (before, begin) = (sleeps(), Instant::now());
            let mut slept = false;
            while !slept && begin.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(1));
                slept = sleeps() != before;
            }
            word.swept();
            slept
        });
        assert!(slept);
    }
}
