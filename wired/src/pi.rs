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
use rustix::thread::{Pid, futex, gettid};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

const FREE: u32 = 0;

/// How long a thread waits for its turn before it looks if the lock is free.
const LONGEST_TURN: Duration = Duration::from_millis(1);

/// Pause between attempts where the kernel does not wait: a kernel built without priority
/// inheritance, a program's filter, or a holder that has died.
const RETRY_DELAY: Duration = Duration::from_micros(50);

/// How long a lock stays with a holder that has died before the process ends: what the holder was changing is unknown. The threads
/// of a process die together, but a child of `vfork` that is killed leaves its parent the memory.
const DEAD_HOLDER: Duration = Duration::from_secs(5);

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
        let (word, begun) = (self.word.load(Ordering::Relaxed), Instant::now());
        while word != FREE && self.word.load(Ordering::Relaxed) == word {
            if begun.elapsed() > DEAD_HOLDER {
                eprintln!(
                    "selfpage: a process that shared this program's memory (a child of vfork, say) was killed while it changed it: \
                     the program cannot go on, and ends"
                );
                std::process::abort();
            }
            pause();
        }
    }

    /// Takes the lock without inheritance, behind the threads that wait so already: the holder would have it again before
    /// they run.
    fn wait_in_turn(&self) {
        let mut may_take = self.waiting.fetch_add(1, Ordering::SeqCst) == 0;
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            if may_take && self.try_acquire() {
                break;
            }
            crate::futex::wait(&self.turn, turn, Some(LONGEST_TURN));
            may_take = true;
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
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn every_increment_under_the_lock_counts_by_try_lock_and_lock() {
        let lock = PiLock::new(0u64);
        let inside = AtomicBool::new(false);
        let had = AtomicU64::new(0);
        let add = |mut held: PiGuard<'_, u64>| {
            assert!(!inside.swap(true, Ordering::Relaxed), "two hold it");
            *held += 1;
            had.fetch_add(1, Ordering::Relaxed);
            if had.load(Ordering::Relaxed).is_multiple_of(64) {
                std::thread::yield_now();
            }
            inside.store(false, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (lock, add) = (&lock, &add);
                scope.spawn(move || {
                    for turn in 0..5_000 {
                        match (thread + turn) % 2 {
                            0 => add(lock.lock()),
                            _ => lock.try_lock().into_iter().for_each(add),
                        }
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), had.into_inner());
        assert_eq!(lock.word.load(Ordering::Relaxed), FREE);
    }

    #[test]
    fn try_lock_on_a_held_lock_fails_and_leaves_it_held() {
        let lock = PiLock::new(());
        let held = lock.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(lock.try_lock().is_none());
                assert!(lock.try_lock().is_none());
            });
        });
        assert_eq!(lock.word.load(Ordering::Relaxed), current_tid());
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }

    #[test]
    fn the_child_of_a_fork_can_drop_its_parents_guard_and_the_parent_keeps_the_lock() {
        let lock = PiLock::new(0u32);
        let mut held = lock.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| *lock.lock() += 1);
            // The child's copy of the word has the waiters bit, without a waiter.
            while lock.word.load(Ordering::Relaxed) & futex::WAITERS == 0 {
                std::thread::yield_now();
            }
            // SAFETY: the child makes system calls only, and ends.
            let child = unsafe { fork() };
            if child == 0 {
                drop(held);
                let free = lock.word.load(Ordering::Relaxed) == FREE;
                let had = lock.try_lock().is_some() && lock.try_lock().is_some();
                // SAFETY: ends the child.
                unsafe { _exit(i32::from(!(free && had))) };
            }
            let mut status = -1;
            // SAFETY: waits for the child just made.
            assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            assert_eq!(
                lock.word.load(Ordering::Relaxed) & !futex::WAITERS,
                current_tid()
            );
            assert_eq!(*held, 0);
            *held = 10;
            drop(held);
        });
        assert_eq!(*lock.lock(), 11);
    }

    #[test]
    fn a_process_ends_whose_lock_a_killed_sharer_of_its_memory_holds() {
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { fork() };
        if child == 0 {
            let lock = PiLock::new(());
            // No thread has this number.
            lock.word.store(0x3fff_ffff, Ordering::Relaxed);
            drop(lock.lock());
            // SAFETY: ends the child.
            unsafe { _exit(0) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
        assert_eq!(status & 0x7f, libc::SIGABRT);
    }

    /// Priority of a thread as the scheduler has it, inherited or its own: field 18 of stat,
    /// below 0 for real-time classes.
    fn priority(thread: u32) -> i32 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let after = stat.rsplit_once(')').unwrap().1;
        after.split_whitespace().nth(15).unwrap().parse().unwrap()
    }

    #[repr(C)]
    struct Parameters {
        priority: i32,
    }

    const FIFO: i32 = 1;

    unsafe extern "C" {
        fn sched_setscheduler(thread: i32, class: i32, parameters: *const Parameters) -> i32;
    }

    #[test]
    fn a_holder_inherits_its_waiters_priority() {
        let lock = PiLock::new(());
        let (refused, risen) = (AtomicBool::new(false), AtomicBool::new(false));
        let held = lock.lock();
        let holder = current_tid();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let five = Parameters { priority: 5 };
                // SAFETY: changes this thread's own class.
                if unsafe { sched_setscheduler(0, FIFO, &five) } != 0 {
                    return refused.store(true, Ordering::SeqCst);
                }
                drop(lock.lock());
            });
            for _ in 0..2000 {
                if refused.load(Ordering::SeqCst) || priority(holder) < 0 {
                    risen.store(priority(holder) < 0, Ordering::SeqCst);
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(held);
        });
        if refused.into_inner() {
            eprintln!("SKIPPED: no permission for a real-time class")
        } else {
            assert!(risen.into_inner(), "the holder was not raised")
        }
        assert!(priority(holder) >= 0);
    }
}
