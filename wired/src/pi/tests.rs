//! Locks between threads, and with the child of a fork.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64};

#[test]
fn every_increment_under_the_lock_counts_by_try_lock_and_lock() {
    let lock = PiLock::new(0u64);
    let inside = AtomicBool::new(false);
    let acquired = AtomicU64::new(0);
    let add = |mut held: PiGuard<'_, u64>| {
        assert!(!inside.swap(true, Ordering::Relaxed), "two hold it");
        *held += 1;
        acquired.fetch_add(1, Ordering::Relaxed);
        if acquired.load(Ordering::Relaxed).is_multiple_of(64) {
            std::thread::yield_now();
        }
        inside.store(false, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (lock, add) = (&lock, &add);
            scope.spawn(move || {
                for round in 0..5_000 {
                    match (thread + round) % 2 {
                        0 => add(lock.lock()),
                        _ => lock.try_lock().into_iter().for_each(add),
                    }
                }
            });
        }
    });
    assert_eq!(*lock.lock(), acquired.into_inner());
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
            let can_lock = lock.try_lock().is_some() && lock.try_lock().is_some();
            // SAFETY: ends the child.
            unsafe { _exit(i32::from(!(free && can_lock))) };
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
fn a_process_ends_if_a_killed_process_that_shared_its_memory_holds_its_lock() {
    for is_disabled in [false, true] {
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { fork() };
        if child == 0 {
            INHERITANCE_DISABLED.store(is_disabled, Ordering::SeqCst);
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

#[test]
fn a_process_ends_if_it_is_handed_the_lock_of_a_dead_holder() {
    const WAITS: &str = "SELFPAGE_TEST_WAITS";
    if std::env::var_os(WAITS).is_some() {
        static LOCK: PiLock<()> = PiLock::new(());
        let holder = std::thread::spawn(|| {
            std::mem::forget(LOCK.lock());
            while LOCK.word.load(Ordering::Relaxed) & futex::WAITERS == 0 {
                std::thread::yield_now();
            }
        });
        while LOCK.word.load(Ordering::Relaxed) == FREE {
            std::thread::yield_now();
        }
        drop(LOCK.lock());
        return holder.join().unwrap();
    }
    let waits = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["handed_the_lock", "--test-threads=1"])
        .env(WAITS, "1")
        .output()
        .unwrap();
    let status = std::os::unix::process::ExitStatusExt::signal(&waits.status);
    assert_eq!(status, Some(libc::SIGABRT), "{waits:?}");
}
