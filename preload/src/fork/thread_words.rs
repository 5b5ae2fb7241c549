//! A word for a thread between its call of a fork and the library's handlers in it: they run on the same thread, and
//! take no argument.

use crate::raw_syscall::tid;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that have a word, each with its number above the word; 0 in a free place.
pub struct ThreadWords([AtomicU64; 64]);

impl ThreadWords {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 64])
    }

    /// Keeps a word for the calling thread. Returns false where more threads have one than there are places.
    pub fn put(&self, word: u32) -> bool {
        let entry = (tid() as u64) << 32 | u64::from(word);
        self.0.iter().any(|place| replace(place, 0, entry))
    }

    /// Takes the calling thread's word.
    pub fn take(&self) -> Option<u32> {
        let tid = tid() as u64;
        self.0.iter().find_map(|place| {
            let entry = place.load(Ordering::Acquire);
            let is_own = entry >> 32 == tid && replace(place, entry, 0);
            is_own.then_some(entry as u32)
        })
    }

    /// In the child of a fork, whose threads have other numbers.
    pub fn clear(&self) {
        self.0
            .iter()
            .for_each(|place| place.store(0, Ordering::Release));
    }
}

fn replace(place: &AtomicU64, from: u64, to: u64) -> bool {
    let replaced = place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    replaced.is_ok()
}
