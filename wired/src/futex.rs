//! Waiting on a word of memory, within a process or across processes that share it.

use rustix::thread::futex;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` holds `expected`, for at most `limit`. Does not report whether a wake, a changed
/// word, a signal or the limit ended the sleep: callers check their condition again.
pub fn wait(word: &AtomicU32, expected: u32, limit: Option<Duration>) {
    // A limit beyond the range of the kernel's times is no limit.
    let limit = limit.and_then(|limit| futex::Timespec::try_from(limit).ok());
    let _ = futex::wait(word, futex::Flags::empty(), expected, limit.as_ref());
}

/// Wakes at most `count` waiters on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::empty(), count);
}

/// Wakes all waiters on `word`.
pub fn wake_all(word: &AtomicU32) {
    // The kernel reads the count as a signed integer.
    wake(word, i32::MAX as u32);
}
