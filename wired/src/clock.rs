//! The clocks that a fault reads, as one number of nanoseconds: it fits an atomic word and means
//! the same to every process that shares the word. (`Instant` suits times that stay within a process.)
//!
//! A time namespace (`unshare --time`, a container that was restored elsewhere) adds an offset to the
//! monotonic clock of its processes. [`now`] subtracts the offset, so that processes of several
//! namespaces share times. [`prepare`] reads the offset: a process that has a pager can enter a namespace
//! only as the child of a fork, since `setns` requires that no other process shares its memory.
//!
//! Both are inlined. The monotonic one is read in user space (rustix calls the kernel's vDSO itself,
//! so no program's function stands in between); the thread's own takes a system call. A reading
//! takes 16 ns and 175 ns (in a loop, on an x86-64 machine whose clock source is tsc;
//! `cargo run --release -p rate --example rate_cost` has the first beside a fault's check). Reading the
//! processor's counter alone takes 8 ns: a clock built on it would save less than 1 % of a fault.

use crate::syscall::syscall6;
use rustix::fs::{CWD, Mode, OFlags, openat, stat};
use rustix::io::read;
use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};
use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds that the time namespace adds to the monotonic clock, in two's complement.
static NAMESPACE_OFFSET: AtomicU64 = AtomicU64::new(0);

/// Finds the vDSO for [`now`], and the offset of the time namespace, by system calls and files. A
/// process calls this before it shares times with others, at its start or as the child of a fork, and
/// before it filters its system calls: later the vDSO would not be found, and each reading would be
/// a system call. Without /proc the offset stays: that of the parent in the child of a fork, else zero.
pub fn prepare() {
    if let Some(offset) = namespace_offset() {
        NAMESPACE_OFFSET.store(offset, Ordering::Relaxed);
    }
    let _ = now();
}

/// Nanoseconds since boot without suspend: the same in all processes.
#[inline]
pub fn now() -> u64 {
    let offset = NAMESPACE_OFFSET.load(Ordering::Relaxed);
    nanos(clock_gettime(ClockId::Monotonic)).wrapping_sub(offset)
}

/// As [`now`], by a system call: for a program's thread, which PR_SET_TSC may forbid to read the processor's
/// counter.
pub fn now_by_call() -> u64 {
    let mut time = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let to = std::ptr::from_mut(&mut time) as usize;
    let clock = ClockId::Monotonic as usize;
    // SAFETY: room for the time, which the kernel writes.
    unsafe { syscall6(libc::SYS_clock_gettime, [clock, to, 0, 0, 0, 0]) };
    nanos(time).wrapping_sub(NAMESPACE_OFFSET.load(Ordering::Relaxed))
}

/// The offset of the time namespace by /proc; `None` where /proc does not show it.
fn namespace_offset() -> Option<u64> {
    let mut text = [0; 256];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(CWD, "/proc/self/timens_offsets", flags, Mode::empty()).ok()?;
    let used = read(&file, &mut text).ok()?;
    let offset = monotonic_offset(std::str::from_utf8(&text[..used]).ok()?)?;
    // The file shows the offsets of the children's namespace. Before Linux 6.1 a program executed after
    // `unshare` stays in the old namespace.
    let inode = |path: &str| stat(path).ok().map(|stat| stat.st_ino);
    let entered = offset == 0 || inode("/proc/self/ns/time") == inode(CHILDREN_NAMESPACE);
    entered.then_some(offset)
}

const CHILDREN_NAMESPACE: &str = "/proc/self/ns/time_for_children";

/// Parses the lines of /proc/PID/timens_offsets: clock, seconds, nanoseconds.
fn monotonic_offset(lines: &str) -> Option<u64> {
    let mut words = lines
        .lines()
        .map(str::split_ascii_whitespace)
        .find_map(|mut words| (words.next()? == "monotonic").then_some(words))?;
    let seconds: i64 = words.next()?.parse().ok()?;
    let nanos: i64 = words.next()?.parse().ok()?;
    Some(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos) as u64)
}

/// Nanoseconds of processor time that the calling thread has used; `None` where a sandbox forbids
/// the system call.
#[inline]
pub fn thread_time() -> Option<u64> {
    let clock = DynamicClockId::Known(ClockId::ThreadCPUTime);
    clock_gettime_dynamic(clock).ok().map(nanos)
}

#[inline]
fn nanos(time: Timespec) -> u64 {
    // Neither clock is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_sleep_takes_time_and_little_of_the_processors() {
        let begun = Instant::now();
        let (before, used) = (now(), thread_time().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        let (used, passed) = (thread_time().unwrap() - used, now() - before);
        let most = begun.elapsed().as_nanos() as u64;
        assert!((20_000_000..=most).contains(&passed), "{passed} of {most}");
        assert!(used < passed, "{used} of {passed}");
    }

    #[test]
    fn both_functions_read_the_same_clock() {
        let (before, by_call, after) = (now(), now_by_call(), now());
        assert!(before <= by_call && by_call <= after);
    }

    #[test]
    fn an_offset_is_read_from_its_line() {
        let lines = |seconds: &str| format!("monotonic  {seconds}\nboottime  7 0\n");
        let read = |seconds: &str| monotonic_offset(&lines(seconds)).map(|offset| offset as i64);
        assert_eq!(read("1000         5"), Some(1_000_000_000_005));
        assert_eq!(read("        -1 250000000"), Some(-750_000_000));
        assert_eq!(read("0 0"), Some(0));
        assert_eq!(read("x 0"), None);
        assert_eq!(monotonic_offset("boottime 7 0"), None);
    }

    #[test]
    fn work_takes_time_of_the_processors() {
        let begun = thread_time().unwrap();
        while thread_time().unwrap() - begun < 1_000_000 {
            std::hint::spin_loop();
        }
    }
}
