//! A thread's slice: how long it runs at most before another's turn.
//!
//! The kernel's scheduler (EEVDF) gives each thread processor time by its weight, and the next
//! turn to the thread whose slice ends first. So a thread with a short slice that wakes has a
//! processor at once, and no more of it than before: the page path waits for no other's turn, and
//! faults buy no processor time. It takes no privilege. From Linux 6.12 on; before, the
//! kernel ignores it.

use crate::syscall::{is_error, syscall6};

/// The shortest slice that the kernel takes, in nanoseconds.
const SHORTEST: u64 = 100_000;

/// Gives a thread (0: the calling one) the shortest slice; its class and its weight stay. Does
/// nothing to a thread of another class than the ordinary one, or of another user. Returns true if
/// the thread has the slice.
pub fn shorten(thread: i32) -> bool {
    let Some(now) = attributes(thread) else {
        return false;
    };
    if now.sched_policy != libc::SCHED_OTHER as u32 {
        return false;
    }
    let short = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_runtime: SHORTEST,
        ..now
    };
    // SAFETY: a structure of the size it says, which the kernel reads.
    let answer = unsafe {
        syscall6(
            libc::SYS_sched_setattr,
            [thread as usize, (&raw const short).addr(), 0, 0, 0, 0],
        )
    };
    !is_error(answer)
}

/// Returns true if the kernel keeps slices of threads.
pub fn is_supported() -> bool {
    attributes(0).is_some_and(|now| now.sched_runtime != 0)
}

fn attributes(thread: i32) -> Option<libc::sched_attr> {
    // SAFETY: integers, of which zero is a value.
    let mut now: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most so many bytes.
    let answer = unsafe {
        syscall6(
            libc::SYS_sched_getattr,
            [thread as usize, (&raw mut now).addr(), size, 0, 0, 0],
        )
    };
    (!is_error(answer)).then_some(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_slice_leaves_the_class_and_the_weight() {
        let thread = || {
            let before = attributes(0).unwrap();
            assert!(shorten(0));
            (before, attributes(0).unwrap())
        };
        let (before, after) = std::thread::spawn(thread).join().unwrap();
        assert_eq!(after.sched_policy, before.sched_policy);
        assert_eq!(after.sched_nice, before.sched_nice);
        match is_supported() {
            false => eprintln!("skipped: this kernel has no slices of threads (Linux 6.12)"),
            true => assert_eq!(after.sched_runtime, SHORTEST),
        }
    }

    #[test]
    fn a_thread_of_another_class_stays_as_it_is() {
        let thread = || {
            let parameters = libc::sched_param { sched_priority: 0 };
            // SAFETY: changes the class of this thread.
            let changed = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
            assert_eq!(changed, 0);
            shorten(0)
        };
        assert!(!std::thread::spawn(thread).join().unwrap());
    }

    #[test]
    fn a_thread_that_has_ended_has_none() {
        assert!(!shorten(i32::MAX));
    }
}
