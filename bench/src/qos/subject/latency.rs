//! How long accesses took, and when they were due.
//!
//! Rule: a latency is from the time at which the access was *due*. The times are fixed
//! beforehand, so that an access which had to wait for the one before it counts its waiting,
//! and a program that is held up is not spared the accesses it did not come to.

use crate::prelude::*;
use hdrhistogram::Histogram;

/// How long before an access is due the thread stops sleeping: waking takes that long.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// The longest latency that the histogram resolves.
const MAX_LATENCY: Duration = Duration::from_secs(600);

/// Accesses, and the time they took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Accesses.
    pub accesses: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Done {
    /// Accesses a second.
    pub fn rate(&self) -> f64 {
        self.accesses as f64 / (self.ns as f64 / 1e9)
    }
}

/// The result of an open phase; latencies are from the due time of each access.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Accesses that were due.
    pub due: u64,
    /// Those that were done before the phase was given up.
    pub done: u64,
    /// Nanoseconds that half of the accesses took at most.
    pub p50_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1000.
    pub p999_ns: u64,
    /// All.
    pub most_ns: u64,
}

impl Latency {
    /// What was recorded of `due` accesses of which so many were done.
    pub fn of(times: &Histogram<u64>, due: u64, done: u64) -> Self {
        Self {
            due,
            done,
            p50_ns: times.value_at_quantile(0.5),
            p99_ns: times.value_at_quantile(0.99),
            p999_ns: times.value_at_quantile(0.999),
            most_ns: times.max(),
        }
    }
}

/// Room for latencies in nanoseconds.
pub fn latencies() -> Result<Histogram<u64>> {
    Histogram::new_with_max(MAX_LATENCY.as_nanos() as u64, 3)
        .map_err(|why| anyhow!("has no histogram: {why}"))
}

/// When accesses are due that come independently of each other, so many a second.
pub fn schedule(during: Duration, rate: f64, seed: u64) -> Vec<Duration> {
    let mut at = 0.0;
    let mut due = Vec::with_capacity((during.as_secs_f64() * rate * 1.2) as usize);
    for k in 0u64.. {
        // Never 0, whose logarithm is not a time.
        let part = ((mix(mix(seed) ^ !k) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        at -= part.ln() / rate;
        if at >= during.as_secs_f64() {
            break;
        }
        due.push(Duration::from_secs_f64(at));
    }
    due
}

/// Sleeps, and stays awake for the last of it.
pub fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left > SPIN_TIME {
        std::thread::sleep(left - SPIN_TIME);
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_due_at_the_same_times_whatever_becomes_of_them() {
        let second = Duration::from_secs(1);
        let due = schedule(second, 5000.0, 3);
        assert_eq!(due, schedule(second, 5000.0, 3));
        assert!(due.is_sorted() && due.last().is_some_and(|last| *last < second));
        assert!((4700..5300).contains(&due.len()), "{}", due.len());
    }
}
