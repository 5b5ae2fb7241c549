//! The processor that each thread of the program runs on.
//!
//! A fault should be answered on the processor that took it, and the kernel's message
//! does not name it; a query for a thread's takes 15 us. But the C library (glibc 2.35)
//! gives each thread an area for restartable sequences (rseq), in its control block, where
//! the kernel keeps the thread's processor. So the query is one load.
//!
//! Threads that the C library did not make have no area here, nor those beyond
//! [`MAX_THREADS`]: their processor is unknown.
//!
//! Rule: an area is read only while its thread waits for a page, which is before it ends,
//! and under the place's lock, which the thread takes to forget it, or another that unmaps its stack.
//! The control block of a thread that is registered is never paged while it runs (see [`pthread`](crate::pthread)).

use crate::raw_syscall::SignalsBlocked;
use crate::{dlsym, pager_process, raw_syscall};
use std::sync::atomic::{AtomicIsize, AtomicU32, Ordering};
use wired::Lock;

/// Most threads recorded: a query scans them all, which takes 10 ns.
const MAX_THREADS: usize = 64;

/// Where the word lies in an area: `cpu_id` of the kernel's `struct rseq`.
const PROCESSOR: isize = 4;

/// Where a thread's word lies, from its control block; 0 where the C library has no areas.
static OFFSET: AtomicIsize = AtomicIsize::new(0);

/// The threads, by number; 0 in a free place.
static NUMBERS: [AtomicU32; MAX_THREADS] = [const { AtomicU32::new(0) }; MAX_THREADS];

/// The addresses of their words.
static WORDS: [Lock<usize>; MAX_THREADS] = [const { Lock::new(0) }; MAX_THREADS];

/// Finds the areas, and begins with the calling thread's. In the constructor.
pub fn init() {
    dlsym::next_function!(AT = "__rseq_offset");
    dlsym::next_function!(SIZE = "__rseq_size");
    let (at, size) = (AT.find().cast::<isize>(), SIZE.find().cast::<u32>());
    // SAFETY: constants of the C library's of these types, where it has them.
    if let (Some(at), Some(size)) = unsafe { (at.as_ref(), size.as_ref()) }
        && *size > 0
    {
        OFFSET.store(*at + PROCESSOR, Ordering::Release);
    }
    register();
}

/// The calling thread begins.
pub fn register() {
    let offset = OFFSET.load(Ordering::Acquire);
    if offset == 0 {
        return;
    }
    let _blocked = SignalsBlocked::new();
    let mine = raw_syscall::tid() as u32;
    let take = |number: &AtomicU32| {
        number
            .compare_exchange(0, mine, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    // A thread that ended by the system call alone, and had the number before, has left its place.
    let place = place_of(mine).or_else(|| NUMBERS.iter().position(take));
    if let Some(place) = place {
        *WORDS[place].lock() = pager_process::thread_pointer().wrapping_add_signed(offset);
    }
}

/// A thread ends, or has ended: its area may go.
pub fn unregister(thread: i32) {
    let _blocked = SignalsBlocked::new();
    if let Some(place) = place_of(thread as u32).filter(|_| thread != 0) {
        *WORDS[place].lock() = 0;
        NUMBERS[place].store(0, Ordering::Release);
    }
}

/// The child of a fork has one thread.
pub fn forget_others() {
    for (number, word) in NUMBERS.iter().zip(&WORDS) {
        number.store(0, Ordering::Release);
        // SAFETY: the only thread; the lock's holder was in the parent.
        unsafe { word.reset() };
        *word.lock() = 0;
    }
    register();
}

fn place_of(thread: u32) -> Option<usize> {
    NUMBERS
        .iter()
        .position(|number| number.load(Ordering::Acquire) == thread)
}

/// The processor of a thread that waits for a page.
pub fn cpu_of(thread: u32) -> Option<u32> {
    let place = place_of(thread).filter(|_| thread != 0)?;
    let word = WORDS[place].try_lock()?;
    // SAFETY: the word of a thread that has not ended, which would wait for the lock; the
    // kernel alone writes it.
    let cpu = unsafe { (*word as *const AtomicU32).as_ref() }?.load(Ordering::Relaxed);
    // The kernel's own marks for an area that it does not keep are negative.
    (cpu <= i32::MAX as u32).then_some(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_found_where_it_runs_until_it_ends() {
        init();
        if OFFSET.load(Ordering::Acquire) == 0 {
            eprintln!("skipped: the C library has no rseq areas");
            return;
        }
        let thread = std::thread::spawn(|| {
            let mut here = rustix::thread::CpuSet::new();
            let cpu = rustix::thread::sched_getcpu();
            here.set(cpu);
            rustix::thread::sched_setaffinity(None, &here).unwrap();
            let mine = raw_syscall::tid() as u32;
            register();
            assert_eq!(cpu_of(mine), Some(cpu as u32));
            unregister(mine as i32);
            assert_eq!(cpu_of(mine), None);
        });
        thread.join().unwrap();
        assert_eq!(cpu_of(0), None);
    }

    #[test]
    fn a_thread_takes_the_place_of_one_that_had_its_number() {
        init();
        if OFFSET.load(Ordering::Acquire) == 0 {
            eprintln!("skipped: the C library has no rseq areas");
            return;
        }
        let thread = std::thread::spawn(|| {
            let mine = raw_syscall::tid() as u32;
            register();
            let place = place_of(mine).unwrap();
            // Of a thread that ended without a word.
            *WORDS[place].lock() = 16;
            register();
            assert_ne!(*WORDS[place].lock(), 16);
            unregister(mine as i32);
            assert_eq!(place_of(mine), None);
        });
        thread.join().unwrap();
    }
}
