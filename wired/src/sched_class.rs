//! The scheduling class of a thread.
//!
//! By system calls without the C library, since a pager's threads have none.

use crate::syscall::{checked, syscall6};
use rustix::io::Errno;

/// The class of a thread, 0 for the calling one; none where it is gone, or a filter forbids the call.
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

/// Returns true if the calling thread has an ordinary class: no reservation, no real-time priority,
/// and not idle.
pub fn has_ordinary_class() -> bool {
    class_of(0).is_some_and(|class| is_ordinary(class & !libc::SCHED_RESET_ON_FORK))
}

/// Returns true if a class is shared fairly among its threads by weight.
pub fn is_ordinary(class: i32) -> bool {
    matches!(class, libc::SCHED_OTHER | libc::SCHED_BATCH)
}

/// Gives a thread, 0 for the calling one, a class without a priority. Its weight among ordinary
/// threads stays as it is.
pub fn set_class(thread: u32, class: i32) -> Result<(), Errno> {
    set(thread, class, 0)
}

/// The class of threads that nothing else was said of.
pub const ORDINARY: i32 = libc::SCHED_OTHER;

/// The class that [`set_real_time`] gives: what the thread starts is ordinary.
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
            assert!(has_ordinary_class());
            set_class(0, libc::SCHED_BATCH).unwrap();
            assert_eq!(class_of(0), Some(libc::SCHED_BATCH));
            assert!(has_ordinary_class());
            set_class(0, libc::SCHED_IDLE).unwrap();
            assert!(!has_ordinary_class());
            assert_eq!(priority_of(0), Some(0));
            assert_eq!(set_real_time(0, 100), Err(Errno::INVAL));
        })
        .join()
        .unwrap();
        assert_eq!(class_of(u32::MAX >> 1), None);
    }
}
