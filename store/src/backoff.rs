//! Waiting without a lock: look again, yield, then sleep a little.

use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep, sched_yield};
use std::time::Duration;

/// Sleeps, whatever signals come.
pub(crate) fn sleep(time: Duration) {
    // One that the kernel could not say would not end: it is no sleep.
    let Ok(mut left) = Timespec::try_from(time) else {
        return;
    };
    while let NanosleepRelativeResult::Interrupted(rest) = nanosleep(&left) {
        left = rest;
    }
}

/// Waits longer each time round. Another process holds what is waited for, for well under
/// a microsecond unless it is preempted, or dead and not yet retired.
#[derive(Default)]
pub(crate) struct Backoff {
    rounds: u32,
}

impl Backoff {
    /// Rounds of looking again before giving way.
    const SPINS: u32 = 64;
    /// Rounds of giving way before sleeping.
    const YIELDS: u32 = 256;
    /// How long one sleep is: short beside a disk's answer.
    const SLEEP: Duration = Duration::from_micros(50);

    /// Waits a little.
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

    /// Whether this has gone on for so long (about 10 ms) that the other one may be dead.
    pub fn is_exhausted(&self) -> bool {
        self.rounds > Self::YIELDS + 200
    }
}
