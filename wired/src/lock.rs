//! A mutual exclusion lock of one word, without thread-local storage or poisoning.
//!
//! `std::sync::Mutex` reads a thread-local panic count; a handler thread has no thread-local
//! storage. This lock also works in memory shared between processes, but is *not* robust there:
//! a holder that is killed leaves it held. Shared structures therefore use compare-and-swap
//! words instead.

use crate::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Attempts before sleeping: a holder keeps the lock for well under a microsecond, a futex sleep
/// and wake costs several.
const SPINS: u32 = 100;

/// A lock around a value.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one exclusive reference at a time.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    /// An unheld lock around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free, then holds it until the guard is dropped.
    pub fn lock(&self) -> Guard<'_, T> {
        for _ in 0..SPINS {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            futex::wait(&self.word, CONTENDED, None);
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| Guard { lock: self })
    }

    /// Releases the lock without being its holder.
    ///
    /// # Safety
    /// No thread may hold or wait for the lock, and the value must be consistent: for the child
    /// of a fork, which has no other threads.
    pub unsafe fn reset(&self) {
        self.word.store(FREE, Ordering::Release);
    }
}

/// Holds a [`Lock`] until dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the proof of exclusive access.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the proof of exclusive access.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.lock.word.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake(&self.lock.word, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn every_increment_under_the_lock_counts() {
        let lock = Arc::new(Lock::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || (0..10_000).for_each(|_| *lock.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*lock.lock(), 40_000);
    }
}
