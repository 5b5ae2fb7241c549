//! The clocks that are read while a fault is resolved, as one number of nanoseconds: it fits an
//! atomic word, and means the same to every process that shares the word. (An `Instant` does
//! for what stays within a process.)
//!
//! Rule: reading one costs no more than it must. Both are inlined; the monotonic one takes no
//! system call, the thread's own takes one.

#[cfg(target_arch = "x86_64")]
mod ticks;

use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};

/// Makes [`now`] as cheap as it can be here. It opens a file, so it is called before faults
/// are handled; without it the kernel's clock is read.
pub fn prepare() {
    #[cfg(target_arch = "x86_64")]
    ticks::prepare();
}

/// Nanoseconds that the machine has been up, its sleep left out: the same in all processes, to
/// less than a microsecond. By as much it may go back.
#[inline]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    return ticks::now();
    #[cfg(not(target_arch = "x86_64"))]
    monotonic()
}

/// The kernel's own.
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
    // Neither clock is ever below zero.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Nanoseconds by which [`now`] may be wrong.
    const WRONG: u64 = 1_000;

    #[test]
    fn it_agrees_with_the_kernels_in_all_threads() {
        prepare();
        let agrees = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(200) {
                let before = monotonic();
                let now = now();
                let after = monotonic();
                assert!(
                    (before..=after + 2 * WRONG).contains(&(now + WRONG)),
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
        let most = begun.elapsed().as_nanos() as u64 + 2 * WRONG;
        let least = 20_000_000 - 2 * WRONG;
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
