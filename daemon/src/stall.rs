//! How long threads of this machine waited for a processor.
//!
//! A deadline does not run while a tenant's threads are ready to run and have no processor. Threads of the
//! tenant, of the daemon (the disk's) and of the kernel take part in giving a frame back, so all threads of
//! the machine count: pressure stall information, "some" of the processors. That is an average over the
//! processors, and counts here as if all of the waiting were at one processor.
//!
//! While the machine or the container is paused, the daemon and its tenants stand still together, and
//! [`FrameControl::now`](crate::frame_control::FrameControl::now) leaves the pause out.
//!
//! Rule: where the kernel does not report stalls, all time counts as waited for; the allocator bounds
//! the extension of a deadline ([`MAX_EXTENSION`]).

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use std::time::{Duration, Instant};

const PRESSURE: &str = "/proc/pressure/cpu";

/// The most by which a deadline is extended. Beside eight busy threads and eight of its own on
/// two processors, a tenant with a 25th of the disk's time once needed more than 10 s for a revocation
/// with a deadline of 600 ms (the end-to-end cases of revocation).
pub(super) const MAX_EXTENSION: Duration = Duration::from_secs(30);

/// The longest time between two counts of a daemon that is not paused: a turn of its loop, which waits for a second at most.
const MAX_TURN: Duration = Duration::from_secs(2);

/// Counts the time that threads waited for a processor, and the time of pauses.
pub(super) struct Stall {
    file: Option<OwnedFd>,
    processors: u32,
    /// When the kernel's count was read last, and its value then.
    read: (Instant, Duration),
    total: Duration,
    /// How long the daemon did not run at all.
    paused: Duration,
}

impl Stall {
    /// Counts from now on.
    pub fn new() -> Self {
        let file = open(PRESSURE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        let first = file.as_ref().and_then(read).unwrap_or_default();
        Self {
            file,
            processors: processors(),
            read: (Instant::now(), first),
            total: Duration::ZERO,
            paused: Duration::ZERO,
        }
    }

    /// Returns true if the kernel reports how long threads wait.
    pub fn is_measured(&self) -> bool {
        self.file.as_ref().and_then(read).is_some()
    }

    /// Time since [`Stall::new`] in which threads waited for a processor.
    pub fn total(&mut self) -> Duration {
        let now = self.file.as_ref().and_then(read);
        self.add(Instant::now(), now)
    }

    /// Time, until the last count, in which the daemon did not run.
    pub fn paused(&self) -> Duration {
        self.paused
    }

    fn add(&mut self, at: Instant, waited: Option<Duration>) -> Duration {
        let (then, before) = self.read;
        let passed = at - then;
        if passed > MAX_TURN {
            self.paused += passed;
        }
        self.total += waited.map_or(passed, |now| {
            (now.saturating_sub(before) * self.processors).min(passed)
        });
        self.read = (at, waited.unwrap_or(before));
        self.total
    }
}

/// Processors of the machine, whichever of them the daemon may use.
fn processors() -> u32 {
    // SAFETY: reads a number.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(online).unwrap_or(1).max(1)
}

fn read(file: &OwnedFd) -> Option<Duration> {
    let mut text = [0; 256];
    let len = rustix::io::pread(file, &mut text, 0).ok()?;
    parse(std::str::from_utf8(&text[..len]).ok()?)
}

fn parse(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let mut words = some.split(' ');
    let total = words.find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_the_some_line_is_read() {
        let text = "some avg10=2.56 avg60=3.60 avg300=5.81 total=43555326\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse(text), Some(Duration::from_micros(43_555_326)));
        for wrong in ["", "some avg10=1", "some total=x", "full total=7"] {
            assert_eq!(parse(wrong), None);
        }
    }

    #[test]
    fn waiting_counts_as_at_one_processor_and_all_time_counts_where_it_is_not_known() {
        let ms = Duration::from_millis;
        let mut stall = Stall::new();
        let (begin, first) = stall.read;
        stall.processors = 8;
        let mut add = |at, waited: Option<_>| {
            stall.add(begin + ms(at), waited.map(|waited| first + ms(waited)))
        };
        assert_eq!(add(1000, Some(0)), ms(0));
        assert_eq!(add(1100, Some(5)), ms(40));
        assert_eq!(
            add(1200, Some(105)),
            ms(140),
            "no more than the time that passed"
        );
        assert_eq!(add(1230, None), ms(170));
        assert_eq!(stall.paused(), ms(0));
        stall.add(begin + ms(61_230), Some(first + ms(105)));
        assert_eq!(stall.paused(), ms(60_000));
        stall.file = None;
        assert!(!stall.is_measured());
    }
}
