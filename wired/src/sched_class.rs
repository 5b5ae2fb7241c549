//! The scheduling class of a thread.
//!
//! By raw system calls, since a pager's threads cannot call the C library.

use crate::syscall::{checked, syscall6};
use rustix::io::Errno;

/// The class of a thread, 0 for the calling one; `None` where the thread has ended or a filter forbids the call.
pub fn class_of(thread: u32) -> Option<i32> {
    // SAFETY: a query without effect.
    let answer = unsafe {
        syscall6(
            libc::SYS_sched_getscheduler,
            [thread as usize, 0, 0, 0, 0, 0],
        )
    };
    checked(answer).ok().map(|class| class as i32)
}

/// Returns true if a class is scheduled fairly, by weight.
pub fn is_ordinary(class: i32) -> bool {
    matches!(class, libc::SCHED_OTHER | libc::SCHED_BATCH)
}

/// Gives a thread, 0 for the calling one, a class without a priority. Its weight among ordinary
/// threads stays as it is.
pub fn set_class(thread: u32, class: i32) -> Result<(), Errno> {
    set(thread, class, 0)
}

/// The default class of threads.
pub const ORDINARY: i32 = libc::SCHED_OTHER;

/// The class that [`set_real_time`] gives: threads and processes that the thread starts are ordinary.
pub const REAL_TIME: i32 = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;

/// Gives a thread, 0 for the calling one, a real-time priority: 1 to 99.
pub fn set_real_time(thread: u32, priority: i32) -> Result<(), Errno> {
    set(thread, REAL_TIME, priority)
}

/// The real-time priority of a thread; 0 for one of an ordinary class.
pub fn priority_of(thread: u32) -> Option<i32> {
    let mut parameters = libc::sched_param { sched_priority: 0 };
    let at = std::ptr::from_mut(&mut parameters).expose_provenance();
    // SAFETY: a structure that the kernel writes.
    let answer = unsafe { syscall6(libc::SYS_sched_getparam, [thread as usize, at, 0, 0, 0, 0]) };
    checked(answer).ok().map(|_| parameters.sched_priority)
}

/// Gives the calling thread, and those that it starts, the weight of a nice value.
pub fn set_weight(nice: i32) -> Result<(), Errno> {
    let args = [libc::PRIO_PROCESS as usize, 0, nice as usize, 0, 0, 0];
    // SAFETY: integers.
    checked(unsafe { syscall6(libc::SYS_setpriority, args) }).map(drop)
}

/// The shortest slice that the kernel accepts, in nanoseconds.
pub const SHORT_SLICE: u64 = 100_000;

/// The slice of threads whose requests a disk's thread serves, in nanoseconds: longer than that thread's, which
/// so takes a processor from any of them as soon as a request has ended.
///
/// With 100 us here and 300 for the disk's thread, redis-server beside stress-ng had a p50 and p99 of 138 us and 4.1 ms with
/// compressed RAM, and with these values 66 us and 2.8 ms; without compressed RAM a p99 of 2.1 ms, with these values 1.2; with
/// slack time for the neighbour 1.5, with these values 2.0
/// (medians of 4 to 9 runs of `selfpage bench qos --only redis --phase 15 --repeats 1` each).
pub const PROGRAM_SLICE: u64 = 3 * SHORT_SLICE;

/// Gives the calling thread, and those that it starts, slices of an ordinary class of this length in
/// nanoseconds; 0 for the kernel's default. The share of the processor stays the same. A thread that wakes
/// takes the processor at once from a thread whose slices are longer; otherwise it waits for the end of
/// that slice, and, unless the other thread sleeps before, for the next tick: 4 ms.
///
/// Linux before 6.12 has slices of one length. A thread of another class keeps it.
pub fn set_slice(slice: u64) -> Result<(), Errno> {
    // SAFETY: integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    let at = std::ptr::from_mut(&mut attributes).expose_provenance();
    // SAFETY: a structure of `size` bytes, which the kernel writes.
    checked(unsafe { syscall6(libc::SYS_sched_getattr, [0, at, size, 0, 0, 0]) })?;
    if !is_ordinary(attributes.sched_policy as i32) {
        return Ok(());
    }
    attributes.sched_runtime = slice;
    let at = std::ptr::from_ref(&attributes).expose_provenance();
    // SAFETY: the structure above, which the kernel reads.
    checked(unsafe { syscall6(libc::SYS_sched_setattr, [0, at, 0, 0, 0, 0]) }).map(drop)
}

fn set(thread: u32, class: i32, sched_priority: i32) -> Result<(), Errno> {
    let parameters = libc::sched_param { sched_priority };
    let at = std::ptr::from_ref(&parameters).expose_provenance();
    let args = [thread as usize, class as usize, at, 0, 0, 0];
    // SAFETY: a structure that the kernel reads.
    checked(unsafe { syscall6(libc::SYS_sched_setscheduler, args) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_class_that_it_was_given() {
        std::thread::spawn(|| {
            set_class(0, libc::SCHED_BATCH).unwrap();
            assert_eq!(class_of(0), Some(libc::SCHED_BATCH));
            set_class(0, libc::SCHED_IDLE).unwrap();
            assert_eq!(class_of(0), Some(libc::SCHED_IDLE));
            assert_eq!(priority_of(0), Some(0));
            assert_eq!(set_real_time(0, 100), Err(Errno::INVAL));
        })
        .join()
        .unwrap();
        assert_eq!(class_of(u32::MAX >> 1), None);
    }

    #[test]
    fn a_slice_changes_neither_class_nor_weight() {
        std::thread::spawn(|| {
            set_weight(7).unwrap();
            set_class(0, libc::SCHED_BATCH).unwrap();
            set_slice(SHORT_SLICE).unwrap();
            assert_eq!(class_of(0), Some(libc::SCHED_BATCH));
            // SAFETY: a query without effect.
            assert_eq!(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }, 7);
            set_class(0, libc::SCHED_IDLE).unwrap();
            set_slice(SHORT_SLICE).unwrap();
            assert_eq!(class_of(0), Some(libc::SCHED_IDLE));
        })
        .join()
        .unwrap();
    }
}
