//! Processes in several time namespaces read the same time.

use std::io::{Read, Write, pipe};
use wired::clock;

/// `CLONE_NEWTIME` of linux/sched.h.
const CLONE_NEWTIME: i32 = 0x80;

/// The exit status of a process that may not make a time namespace.
const NOT_PERMITTED: i32 = 77;

/// Runs a child, and returns its exit status.
fn status_of(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls nothing that another thread may hold.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child at once.
        0 => unsafe { libc::_exit(child()) },
        pid => {
            let mut status = 0;
            // SAFETY: a child of this process and a local word.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            libc::WEXITSTATUS(status)
        }
    }
}

/// The time that a process reads whose time namespace has this offset. `None` where this process may not
/// make namespaces.
fn read_in_namespace(offset: &str) -> Option<u64> {
    let (mut from, mut to) = pipe().unwrap();
    let status = status_of(|| {
        // SAFETY: concerns the calling process's children alone.
        let unshared = unsafe { libc::unshare(CLONE_NEWTIME) } == 0;
        if !unshared || std::fs::write("/proc/self/timens_offsets", offset).is_err() {
            return NOT_PERMITTED;
        }
        status_of(|| {
            clock::prepare();
            i32::from(to.write_all(&clock::now().to_ne_bytes()).is_err())
        })
    });
    if status == NOT_PERMITTED {
        return None;
    }
    assert_eq!(status, 0);
    let mut time = [0; 8];
    from.read_exact(&mut time).unwrap();
    Some(u64::from_ne_bytes(time))
}

#[test]
fn the_clock_is_the_same_in_all_time_namespaces() {
    clock::prepare();
    for offset in ["monotonic 1000 250000000", "monotonic -1 500000000"] {
        let before = clock::now();
        let Some(there) = read_in_namespace(offset) else {
            return println!("SKIPPED: this process may not make a time namespace");
        };
        let after = clock::now();
        assert!(
            (before..=after).contains(&there),
            "{offset}: {there} is not between {before} and {after}"
        );
    }
}
