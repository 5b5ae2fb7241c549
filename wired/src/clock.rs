//! The clocks that a fault reads, as one number of nanoseconds: it fits an atomic word and means
//! the same to every process that shares the word. (`Instant` suits what stays within a process.)
//!
//! Both are inlined. The monotonic one is read in user space (rustix calls the kernel's vDSO itself,
//! so no program's function stands in between); the thread's own takes a system call. A reading
//! takes 16 ns and 175 ns (in a loop, on an x86-64 machine whose clock source is tsc;
//! `cargo run --release -p rate --example rate_cost` has the first beside a fault's check). Reading the
//! processor's counter alone takes 8 ns: a clock built on it would save less than 1 % of a fault.

use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};

/// Finds the vDSO for [`now`], by a system call or a file. A process that filters its system calls
/// calls this before: later it would not be found, and each reading would be a system call.
pub fn prepare() {
    let _ = now();
}

/// Nanoseconds since boot without suspend: the same in all processes.
#[inline]
pub fn now() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds of processor time that the calling thread has used. None where a sandbox forbids
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
    fn work_takes_time_of_the_processors() {
        let begun = thread_time().unwrap();
        while thread_time().unwrap() - begun < 1_000_000 {
            std::hint::spin_loop();
        }
    }
}
