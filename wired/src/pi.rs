//! A lock whose holder inherits the priority of its waiters.
//!
//! Threads of one program may be of different priority classes: a real-time thread that faults,
//! and an evictor that runs when it can. Where the evictor holds a lock that the real-time thread
//! waits for, a thread of a priority in between must not keep the evictor from running.
//! *Self-Paging*, section 6.2, leaves frames to contracts; priority inheritance keeps the locks
//! that guard them from undoing the contracts.
//!
//! Rule: the word is the holder's thread id, as the kernel requires (`FUTEX_LOCK_PI`). Reading the
//! id is a system call, so this lock is for sections that make other system calls;
//! [`crate::Lock`] is for sections of well under a microsecond. Only the thread that took the
//! lock releases it, except in the child of a fork, which has no other threads.

use rustix::io::Errno;
use rustix::process::test_kill_process;
use rustix::thread::{Pid, futex, gettid};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::Duration;

const FREE: u32 = 0;
/// The kernel's flag in a word whose holder died, and which it hands to a waiter.
const OWNER_DIED: u32 = 0x4000_0000;

/// How long a thread waits for a release, without inheritance, before it checks that the lock is free.
const RELEASE_POLL: Duration = Duration::from_millis(1);

/// Pause between attempts where the kernel does not wait: a kernel built without priority
/// inheritance, a program's filter, or a holder that has died.
const RETRY_DELAY: Duration = Duration::from_micros(50);

/// Pauses, some seconds, after which the process ends if a dead thread still holds a lock, since the value may be
/// half changed. The threads of a process die together, but a child of `vfork` that is killed leaves its memory to
/// its parent.
const DEAD_HOLDER_PAUSES: u32 = 40_000;

/// Polls, some seconds, after which a thread that waits without inheritance checks that the holder lives. Not on
/// each poll, since the program's filter may forbid that call.
const POLLS_BEFORE_CHECK: u32 = 3_000;

/// True if this process's locks wait without the kernel's priority inheritance.
static INHERITANCE_DISABLED: AtomicBool = AtomicBool::new(false);

/// Threads of this process that wait with inheritance, or are about to.
static INHERITING: AtomicU32 = AtomicU32::new(0);

/// How often [`disable_inheritance`] checks the count of such threads, for a second in all: a thread that was killed
/// while it waited stays counted.
const MAX_CHECKS: u32 = 20_000;

/// Has locks wait without priority inheritance from now on, since a program's filter may forbid the calls for it.
/// Returns once no thread waits with inheritance, or after a second.
pub fn disable_inheritance() {
    INHERITANCE_DISABLED.store(true, Ordering::SeqCst);
    for _ in 0..MAX_CHECKS {
        if INHERITING.load(Ordering::SeqCst) == 0 {
            return;
        }
        pause();
    }
}

/// Undoes [`disable_inheritance`].
pub fn enable_inheritance() {
    INHERITANCE_DISABLED.store(false, Ordering::SeqCst);
}

/// Resets the count of waiters in the child of a fork, which has no thread of its parent's.
pub fn forget_waiters() {
    INHERITING.store(0, Ordering::SeqCst);
}

/// Sleeps for [`RETRY_DELAY`]. By `futex`, which filters of threaded programs allow, and on a word of its own: the
/// kernel refuses to unlock a word that has waiters both with priority inheritance and without.
fn pause() {
    crate::futex::wait(&AtomicU32::new(0), 0, Some(RETRY_DELAY));
}

/// Waits while `is_left` returns true, and ends the process after [`DEAD_HOLDER_PAUSES`].
fn end_with_dead_holder(is_left: impl Fn() -> bool) {
    let mut rounds = 0;
    while is_left() {
        rounds += 1;
        // Counted and not timed, since the process may be stopped meanwhile.
        if rounds > DEAD_HOLDER_PAUSES {
            eprintln!(
                "selfpage: a process that shared this program's memory (a child of vfork, say) was killed while it changed it: \
                 the program cannot go on, and ends"
            );
            std::process::abort();
        }
        pause();
    }
}

/// Returns true if the thread that a word names has ended.
fn is_gone(word: u32) -> bool {
    let holder = Pid::from_raw((word & !(futex::WAITERS | OWNER_DIED)) as i32);
    holder.is_some_and(|holder| test_kill_process(holder) == Err(Errno::SRCH))
}

/// A lock around a value.
pub struct PiLock<T> {
    word: AtomicU32,
    /// Threads that wait without inheritance, and the futex that they wait on, which counts releases of the lock.
    waiting: AtomicU32,
    releases: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one exclusive reference at a time.
unsafe impl<T: Send> Sync for PiLock<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for PiLock<T> {}

fn current_tid() -> u32 {
    Pid::as_raw(Some(gettid())) as u32
}

impl<T> PiLock<T> {
    /// An unheld lock around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            waiting: AtomicU32::new(0),
            releases: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free, then holds it until the guard is dropped.
    pub fn lock(&self) -> PiGuard<'_, T> {
        let mut is_held = self.waiting.load(Ordering::Acquire) == 0 && self.try_acquire();
        while !is_held {
            is_held = match self.wait_with_inheritance() {
                Some(is_handed_over) => is_handed_over || self.try_acquire(),
                None => {
                    self.wait_without_inheritance();
                    true
                }
            };
        }
        self.guard()
    }

    /// Returns `Some(true)` if the kernel has handed the lock over, and `None` where inheritance is disabled.
    fn wait_with_inheritance(&self) -> Option<bool> {
        INHERITING.fetch_add(1, Ordering::SeqCst);
        let is_disabled = INHERITANCE_DISABLED.load(Ordering::SeqCst);
        let result =
            (!is_disabled).then(|| futex::lock_pi(&self.word, futex::Flags::PRIVATE, None));
        INHERITING.fetch_sub(1, Ordering::SeqCst);
        match result? {
            Ok(()) => {
                // The kernel wrote the word: the last holder's writes are visible from here.
                fence(Ordering::Acquire);
                if self.word.load(Ordering::Relaxed) & OWNER_DIED != 0 {
                    end_with_dead_holder(|| true);
                }
                return Some(true);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::SRCH) => self.await_release_by_dead_holder(),
            Err(_) => pause(),
        }
        Some(false)
    }

    /// Waits until the word changes, which names no live thread; ends the process if it does not.
    fn await_release_by_dead_holder(&self) {
        let word = self.word.load(Ordering::Relaxed);
        end_with_dead_holder(|| word != FREE && self.word.load(Ordering::Relaxed) == word);
    }

    /// Takes the lock without inheritance, and sleeps first where other threads already wait so: a thread that releases
    /// and takes the lock again would otherwise always be ahead of them.
    fn wait_without_inheritance(&self) {
        let mut may_take = self.waiting.fetch_add(1, Ordering::SeqCst) == 0;
        let (mut holder, mut polls) = (FREE, 0);
        loop {
            let releases = self.releases.load(Ordering::Acquire);
            if may_take && self.try_acquire() {
                break;
            }
            crate::futex::wait(&self.releases, releases, Some(RELEASE_POLL));
            may_take = true;
            let word = self.word.load(Ordering::Relaxed);
            polls = if word == holder { polls + 1 } else { 0 };
            holder = word;
            if polls == POLLS_BEFORE_CHECK {
                polls = 0;
                end_with_dead_holder(|| {
                    is_gone(holder) && self.word.load(Ordering::Relaxed) == holder
                });
            }
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<PiGuard<'_, T>> {
        // Made only once the lock is taken: dropping a guard releases the lock.
        self.try_acquire().then(|| self.guard())
    }

    fn guard(&self) -> PiGuard<'_, T> {
        PiGuard {
            lock: self,
            _not_send: PhantomData,
        }
    }

    fn try_acquire(&self) -> bool {
        if self.word.load(Ordering::Relaxed) != FREE {
            return false;
        }
        self.word
            .compare_exchange(FREE, current_tid(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// Holds a [`PiLock`] until dropped by the thread that took it: the kernel refuses any other.
pub struct PiGuard<'a, T> {
    lock: &'a PiLock<T>,
    _not_send: PhantomData<*const T>,
}

impl<T> Deref for PiGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the proof of exclusive access.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for PiGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the proof of exclusive access.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for PiGuard<'_, T> {
    fn drop(&mut self) {
        let word = &self.lock.word;
        let held = word.load(Ordering::Relaxed);
        if self.lock.waiting.load(Ordering::Acquire) > 0 && held & !futex::WAITERS != current_tid()
        {
            // In the child of a fork, whose parent has the waiting threads.
            self.lock.waiting.store(0, Ordering::Release);
        }
        let alone = held & futex::WAITERS == 0
            && word
                .compare_exchange(held, FREE, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        if !alone {
            fence(Ordering::Release);
            // The kernel hands the lock to its most urgent waiter. In the child of a fork the word
            // names a thread of the parent's, and there is no waiter.
            if futex::unlock_pi(word, futex::Flags::PRIVATE).is_err() {
                word.store(FREE, Ordering::Release);
            }
        }
        if self.lock.waiting.load(Ordering::SeqCst) > 0 {
            self.lock.releases.fetch_add(1, Ordering::Release);
            crate::futex::wake(&self.lock.releases, 1);
        }
    }
}

#[cfg(test)]
mod tests;
