//! The clocks that a fault reads, as one number of nanoseconds: it fits an atomic word and means
//! the same to every process that shares the word. (`Instant` suits what stays within a process.)
//!
//! Rule: a reading costs as little as possible. Both clocks are inlined; the monotonic one takes
//! no system call, the thread's own takes one.

#[cfg(target_arch = "x86_64")]
mod ticks;

use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};

/// Makes [`now`] as cheap as this machine allows. It opens a file, so it is called before faults
/// are handled; without it [`now`] reads the kernel's clock.
pub fn prepare() {
    #[cfg(target_arch = "x86_64")]
    ticks::prepare();
}

/// Nanoseconds since boot without suspend: the same in all processes, to less than a
/// microsecond. The clock may go back by as much.
#[inline]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    return ticks::now();
    #[cfg(not(target_arch = "x86_64"))]
    monotonic()
}

/// The kernel's monotonic clock.
#[inline]
fn monotonic() -> u64 {
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

    /// Most nanoseconds by which [`now`] may be off.
    const ERROR: u64 = 1_000;

    #[test]
    fn the_clock_agrees_with_the_kernels_in_all_threads() {
        prepare();
        let agrees = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(200) {
                let before = monotonic();
                let now = now();
                let after = monotonic();
                assert!(
                    (before..=after + 2 * ERROR).contains(&(now + ERROR)),
                    "{now} is not from {before} to {after}"
                );
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(agrees))));
    }

    #[test]
    fn a_sleep_takes_time_and_little_of_the_processors() {
        let begun = Instant::now();
        let (before, used) = (now(), thread_time().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        let (used, passed) = (thread_time().unwrap() - used, now() - before);
        let most = begun.elapsed().as_nanos() as u64 + 2 * ERROR;
        let least = 20_000_000 - 2 * ERROR;
        assert!((least..=most).contains(&passed), "{passed} of {most}");
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
