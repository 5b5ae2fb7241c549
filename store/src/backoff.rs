//! Waiting without a lock: spin, yield, then sleep briefly.

use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep, sched_yield};
use std::time::Duration;

/// Sleeps, even when signals interrupt it.
pub(crate) fn sleep(time: Duration) {
    // A duration that the kernel rejects is no sleep.
    let Ok(mut left) = Timespec::try_from(time) else {
        return;
    };
    while let NanosleepRelativeResult::Interrupted(rest) = nanosleep(&left) {
        left = rest;
    }
}

/// Waits longer each round. Another process has the entry locked, for well under a microsecond
/// unless it is preempted, or dead and not yet retired.
#[derive(Default)]
pub(crate) struct Backoff {
    rounds: u32,
}

impl Backoff {
    /// Rounds of spinning before yielding.
    const SPINS: u32 = 64;
    /// Rounds of yielding before sleeping.
    const YIELDS: u32 = 256;
    /// One sleep: short beside a disk's latency.
    const SLEEP: Duration = Duration::from_micros(50);

    /// Waits one round.
    pub fn wait(&mut self) {
        self.rounds += 1;
        if self.rounds <= Self::SPINS {
            std::hint::spin_loop();
        } else if self.rounds <= Self::YIELDS {
            sched_yield();
        } else {
            sleep(Self::SLEEP);
        }
    }

    /// Returns true after the rounds of spinning.
    pub fn has_spun(&self) -> bool {
        self.rounds >= Self::SPINS
    }

    /// Returns true after about 10 ms of waiting: the other process may be dead.
    pub fn is_exhausted(&self) -> bool {
        self.rounds > Self::YIELDS + 200
    }
}
