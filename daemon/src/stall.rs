//! How long threads of this machine waited for a processor.
//!
//! A deadline does not run for a tenant whose threads are ready and have no processor. Which
//! threads giving a frame back takes is the kernel's affair, too (the tenant's own, the disk's
//! here, the kernel's), so all of the machine's count: pressure stall information, "some" of
//! the processors, which is an average over them and counts here as if all of it were of one.
//!
//! Where the machine or the container is paused, the daemon stands still together with its tenants, and that is no
//! time at all: its clock stands still, too.
//!
//! Rule: where the kernel does not say, all time counts as waited for; the allocator bounds
//! what that comes to.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use std::time::{Duration, Instant};

const PRESSURE: &str = "/proc/pressure/cpu";

/// The most by which a deadline is put off. Beside eight busy threads and eight of its own on
/// two processors, a tenant with a 25th of the disk's time once needed more than 10 s for what
/// it was asked for by 600 ms (the end-to-end cases of revocation).
pub(super) const MOST: Duration = Duration::from_secs(30);

/// The longest time between two counts of a daemon that runs: one turn of its loop, which waits for a second at most.
const LONGEST_TURN: Duration = Duration::from_secs(2);

/// The count as far as it was read.
pub(super) struct Stall {
    file: Option<OwnedFd>,
    processors: u32,
    /// When it was read, and what the kernel's was then.
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

    /// Whether the kernel says how long threads wait.
    pub fn is_measured(&self) -> bool {
        self.file.as_ref().and_then(read).is_some()
    }

    /// Time, since this was made, in which threads waited.
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
        if passed > LONGEST_TURN {
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
    fn the_total_of_some_is_read() {
        let text = "some avg10=2.56 avg60=3.60 avg300=5.81 total=43555326\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse(text), Some(Duration::from_micros(43_555_326)));
        for wrong in ["", "some avg10=1", "some total=x", "full total=7"] {
            assert_eq!(parse(wrong), None);
        }
    }

    #[test]
    fn what_threads_waited_counts_as_of_one_processor_and_all_time_where_it_is_not_known() {
        let ms = Duration::from_millis;
        let mut stall = Stall::new();
        let (begin, first) = stall.read;
        stall.processors = 8;
        let mut add = |at, waited: Option<_>| {
            stall.add(begin + ms(at), waited.map(|waited| first + ms(waited)))
        };
        assert_eq!(add(1000, Some(0)), ms(0));
        assert_eq!(add(1100, Some(5)), ms(40));
        assert_eq!(add(1200, Some(105)), ms(140), "no more than passes");
        assert_eq!(add(1230, None), ms(170));
        assert_eq!(stall.paused(), ms(0));
        stall.add(begin + ms(61_230), Some(first + ms(105)));
        assert_eq!(stall.paused(), ms(60_000));
        stall.file = None;
        assert!(!stall.is_measured());
    }
}
