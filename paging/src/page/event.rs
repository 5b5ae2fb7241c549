//! Sleeping on a word until it changes: a futex, or under loom a model of one.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64};

/// The futex on which threads wait for a word to change. Takes no space: the kernel reads the
/// word itself.
#[cfg(not(loom))]
#[derive(Default)]
pub(crate) struct WordEvent;

#[cfg(not(loom))]
impl WordEvent {
    /// Sleeps while the low half of `word` is that of `expected`; may return early.
    pub(crate) fn wait(&self, word: &AtomicU64, expected: u64) {
        wired::futex::wait(low_half(word), expected as u32, None);
    }

    /// Wakes all threads that wait on the low half of `word`.
    pub(crate) fn wake_all(&self, word: &AtomicU64) {
        wired::futex::wake_all(low_half(word));
    }

    /// Sleeps while `word` is `expected`; may return early.
    pub(crate) fn wait32(&self, word: &AtomicU32, expected: u32) {
        wired::futex::wait(word, expected, None);
    }

    /// Wakes all threads that wait on `word`.
    pub(crate) fn wake_all32(&self, word: &AtomicU32) {
        wired::futex::wake_all(word);
    }
}

#[cfg(not(loom))]
fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: inside the word and aligned; on a little-endian machine, which page.rs
    // asserts, it is the low half. Only the kernel reads through it.
    unsafe { &*std::ptr::from_ref(word).cast::<AtomicU32>() }
}

/// A futex as loom can explore it: the check of the word and the sleep are one step.
#[cfg(loom)]
#[derive(Default)]
pub(crate) struct WordEvent {
    bucket: loom::sync::Mutex<()>,
    sleepers: loom::sync::Condvar,
}

#[cfg(loom)]
impl WordEvent {
    pub(crate) fn wait(&self, word: &AtomicU64, expected: u64) {
        self.sleep(|| word.load(std::sync::atomic::Ordering::SeqCst) as u32 == expected as u32);
    }

    pub(crate) fn wake_all(&self, _word: &AtomicU64) {
        self.wake();
    }

    pub(crate) fn wait32(&self, word: &AtomicU32, expected: u32) {
        self.sleep(|| word.load(std::sync::atomic::Ordering::SeqCst) == expected);
    }

    pub(crate) fn wake_all32(&self, _word: &AtomicU32) {
        self.wake();
    }

    fn sleep(&self, unchanged: impl Fn() -> bool) {
        let bucket = self.bucket.lock().unwrap();
        if unchanged() {
            drop(self.sleepers.wait(bucket).unwrap());
        }
    }

    fn wake(&self) {
        drop(self.bucket.lock().unwrap());
        self.sleepers.notify_all();
    }
}
