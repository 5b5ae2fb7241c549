//! Whether writes go to the inner transport, and how long they wait for it.
//!
//! A write that waits for a deadline before it goes to the paging file is slow; a tree whose every
//! write does so stands still. So a failed or late write *diverts* those after it: they go to the file
//! at once. After a pause one write goes to the inner transport as a *probe*. A probe that completes
//! ends the diversion; one that fails doubles the pause.

use crate::time::{Nanos, Time};
use rustix::io::Errno;
use wired::Bytes;

/// How long a write waits for the inner transport. The remote client waits 1 s for a server whose connection ended, and 3 s
/// for one that is silent: what is written in that time goes to the file, and the program waits half a second at most.
pub const WRITE_DEADLINE: Nanos = Nanos::millis(500);
/// The first pause between two probes, and the longest. A probe costs one write a deadline.
const FIRST_PAUSE: Nanos = Nanos::millis(1000);
const LONGEST_PAUSE: Nanos = Nanos::seconds(30);

/// What is known of the inner transport's writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct InnerHealth {
    diversion: Option<Diversion>,
}

#[derive(Clone, Copy, Debug)]
struct Diversion {
    pause: Nanos,
    probe_at: Time,
    is_probing: bool,
}

impl InnerHealth {
    /// Returns true if a write that starts now goes to the inner transport. It is the probe of a
    /// diversion where there is one.
    pub fn admit(&mut self, now: Time) -> bool {
        let Some(diversion) = &mut self.diversion else {
            return true;
        };
        let is_probe = !diversion.is_probing && now >= diversion.probe_at;
        diversion.is_probing |= is_probe;
        is_probe
    }

    /// Returns true while writes go to the file.
    pub fn is_diverted(&self) -> bool {
        self.diversion.is_some()
    }

    /// A write completed, the probe or one from before the diversion: the inner transport answers.
    pub fn on_written(&mut self) {
        self.diversion = None;
    }

    /// A write failed, or passed its deadline. Those that were under way when the first one did are of the
    /// same failure, and do not lengthen the pause.
    pub fn on_failed(&mut self, now: Time) {
        let pause = match self.diversion {
            None => FIRST_PAUSE,
            Some(diversion) if diversion.is_probing => {
                Nanos(diversion.pause.0 * 2).min(LONGEST_PAUSE)
            }
            Some(_) => return,
        };
        self.diversion = Some(Diversion {
            pause,
            probe_at: now + pause,
            is_probing: false,
        });
    }
}

/// The health of writes of bloks that the inner transport has, and that of writes that need room there: where it is full, the
/// others go on.
#[derive(Debug, Default)]
pub struct WriteHealth {
    rewrites: InnerHealth,
    growth: InnerHealth,
}

impl WriteHealth {
    /// That of a write which brings so many bloks there.
    pub fn of(&mut self, new: u32) -> &mut InnerHealth {
        match new {
            0 => &mut self.rewrites,
            _ => &mut self.growth,
        }
    }

    /// Such a write completed, while the file has so many pages.
    pub fn on_written(&mut self, new: u32, in_file: u32) {
        let health = self.of(new);
        if health.is_diverted() {
            let (what, there) = (named(new), Bytes::of_pages(in_file));
            tracing::info!("{what} are written elsewhere again; the local paging file has {there}");
        }
        health.on_written();
    }

    /// Such a write failed, or passed its deadline.
    pub fn on_failed(&mut self, new: u32, now: Time, why: Errno) {
        let health = self.of(new);
        if !health.is_diverted() {
            let why = match why {
                Errno::TIMEDOUT => format!("a write was not done within {WRITE_DEADLINE}"),
                why => why.to_string(),
            };
            tracing::warn!("{} go to the local paging file: {why}", named(new));
        }
        health.on_failed(now);
    }
}

fn named(new: u32) -> &'static str {
    match new {
        0 => "pages",
        _ => "pages that have no room elsewhere yet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time(0) + Nanos::millis(millis)
    }

    #[test]
    fn a_failure_diverts_writes_until_a_probe_completes() {
        let mut health = InnerHealth::default();
        assert!(health.admit(at(0)) && health.admit(at(0)));
        health.on_failed(at(100));
        assert!(health.is_diverted() && !health.admit(at(1099)));
        assert!(health.admit(at(1100)), "the probe");
        assert!(!health.admit(at(1100)), "one probe at a time");
        health.on_written();
        assert!(!health.is_diverted() && health.admit(at(1101)));
    }

    #[test]
    fn the_pause_doubles_with_each_failed_probe_up_to_a_limit() {
        let mut health = InnerHealth::default();
        let mut now = at(0);
        health.on_failed(now);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let pause = Nanos::seconds(seconds);
            assert!(!health.admit(Time(0) + Nanos((now + pause).0 - 1)));
            now = now + pause;
            assert!(health.admit(now));
            health.on_failed(now);
        }
    }

    #[test]
    fn writes_that_fail_with_the_first_do_not_lengthen_the_pause() {
        let mut health = InnerHealth::default();
        (0..64).for_each(|_| health.on_failed(at(0)));
        assert!(health.admit(at(1000)));
    }
}
