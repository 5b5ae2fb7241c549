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
/// The kernel's mark in a word whose holder died and that it hands to a waiter.
const OWNER_DIED: u32 = 0x4000_0000;

/// How long a thread waits for its turn before it looks if the lock is free.
const LONGEST_TURN: Duration = Duration::from_millis(1);

/// Pause between attempts where the kernel does not wait: a kernel built without priority
/// inheritance, a program's filter, or a holder that has died.
const RETRY_DELAY: Duration = Duration::from_micros(50);

/// For how many pauses, some seconds, a lock stays with a holder that has died before the process ends: what the holder was changing is unknown. The threads
/// of a process die together, but a child of `vfork` that is killed leaves its parent the memory.
const DEAD_HOLDER: u32 = 40_000;

/// For how many turns, some seconds, a thread waits without inheritance for one holder before it asks whether that lives. The
/// call may be one that the program's filter forbids.
const LONG_HELD: u32 = 3_000;

/// True if this process's locks wait without the kernel's priority inheritance.
static FORGONE: AtomicBool = AtomicBool::new(false);

/// Threads of this process that wait with it, or are about to.
static INHERITING: AtomicU32 = AtomicU32::new(0);

/// How often [`forgo_inheritance`] looks at them: a second. One that was killed as it waited is among them for good.
const LOOKS: u32 = 20_000;

/// Has locks wait without priority inheritance from now on, which a program's filter may forbid. Returns once no thread
/// waits with it: a lock that had such waiters is free of them once it can be taken.
pub fn forgo_inheritance() {
    FORGONE.store(true, Ordering::SeqCst);
    for _ in 0..LOOKS {
        if INHERITING.load(Ordering::SeqCst) == 0 {
            return;
        }
        pause();
    }
}

/// Undoes [`forgo_inheritance`].
pub fn resume_inheritance() {
    FORGONE.store(false, Ordering::SeqCst);
}

/// In the child of a fork, whose parent's threads do not wait here.
pub fn forget_waiters() {
    INHERITING.store(0, Ordering::SeqCst);
}

/// Sleeps for [`RETRY_DELAY`]. By `futex`, which a filter that is made for threads allows, and on a word of its own: the
/// kernel refuses to unlock one that has waiters with priority inheritance and others.
fn pause() {
    crate::futex::wait(&AtomicU32::new(0), 0, Some(RETRY_DELAY));
}

/// Ends the process where a holder has died and left its lock for [`DEAD_HOLDER`]. Returns once it has not.
fn end_with_the_holder(is_left: impl Fn() -> bool) {
    let mut rounds = 0;
    while is_left() {
        rounds += 1;
        // Not by the clock: the process may be stopped meanwhile.
        if rounds > DEAD_HOLDER {
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
    /// Threads that wait without inheritance, and the word that they wait on, which changes when the lock is released.
    waiting: AtomicU32,
    turn: AtomicU32,
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
            turn: AtomicU32::new(0),
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
                    self.wait_in_turn();
                    true
                }
            };
        }
        self.guard()
    }

    /// Returns true if the kernel has handed the lock over, and None where inheritance is forgone.
    fn wait_with_inheritance(&self) -> Option<bool> {
        INHERITING.fetch_add(1, Ordering::SeqCst);
        let is_forgone = FORGONE.load(Ordering::SeqCst);
        let answer = (!is_forgone).then(|| futex::lock_pi(&self.word, futex::Flags::PRIVATE, None));
        INHERITING.fetch_sub(1, Ordering::SeqCst);
        match answer? {
            Ok(()) => {
                // The kernel wrote the word: the last holder's writes are visible from here.
                fence(Ordering::Acquire);
                if self.word.load(Ordering::Relaxed) & OWNER_DIED != 0 {
                    end_with_the_holder(|| true);
                }
                return Some(true);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::SRCH) => self.await_release_by_the_dead(),
            Err(_) => pause(),
        }
        Some(false)
    }

    /// Waits until the word changes, whose holder is no thread; ends the process where it does not.
    fn await_release_by_the_dead(&self) {
        let word = self.word.load(Ordering::Relaxed);
        end_with_the_holder(|| word != FREE && self.word.load(Ordering::Relaxed) == word);
    }

    /// Takes the lock without inheritance, behind the threads that wait so already: the holder would have it again before
    /// they run.
    fn wait_in_turn(&self) {
        let mut may_take = self.waiting.fetch_add(1, Ordering::SeqCst) == 0;
        let (mut holder, mut turns) = (FREE, 0);
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            if may_take && self.try_acquire() {
                break;
            }
            crate::futex::wait(&self.turn, turn, Some(LONGEST_TURN));
            may_take = true;
            let word = self.word.load(Ordering::Relaxed);
            turns = if word == holder { turns + 1 } else { 0 };
            holder = word;
            if turns == LONG_HELD {
                turns = 0;
                end_with_the_holder(|| {
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
            // The child of a fork: they wait in its parent.
            self.lock.waiting.store(0, Ordering::Release);
        }
        let alone = held & futex::WAITERS == 0
            && word
                .compare_exchange(held, FREE, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        if !alone {
            fence(Ordering::Release);
            // The kernel hands the lock to its most urgent waiter. In the child of a fork the word
            // names a thread of the parent's, and there are no waiters.
            if futex::unlock_pi(word, futex::Flags::PRIVATE).is_err() {
                word.store(FREE, Ordering::Release);
            }
        }
        if self.lock.waiting.load(Ordering::SeqCst) > 0 {
            self.lock.turn.fetch_add(1, Ordering::Release);
            crate::futex::wake(&self.lock.turn, 1);
        }
    }
}

#[cfg(test)]
mod tests;
