//! Spare processor time, as the kernel counts it (/proc/stat).

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};

const COUNTS: &str = "/proc/stat";

/// The fields of the first line with the time of processors without work: idle, and idle while a device works.
const SPARE: [usize; 2] = [3, 4];

/// Fields to add up. Those after them (the time of virtual machines) are included in others.
const FIELDS: usize = 8;

/// Measures the spare part of the processors' time.
pub(super) struct SpareTime {
    file: Option<OwnedFd>,
    /// Spare ticks, and all ticks, at the last measurement.
    counted: (u64, u64),
}

impl SpareTime {
    /// Measures from now on.
    pub fn new() -> Self {
        let file = open(COUNTS, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        Self {
            counted: file.as_ref().and_then(read).unwrap_or_default(),
            file,
        }
    }

    /// The spare part since the last call, 0 to 1; 0 where it cannot be read.
    pub fn part(&mut self) -> f64 {
        let Some(now) = self.file.as_ref().and_then(read) else {
            return 0.0;
        };
        part_since(std::mem::replace(&mut self.counted, now), now)
    }
}

/// The part of the ticks between two counts that was spare.
fn part_since(before: (u64, u64), now: (u64, u64)) -> f64 {
    let spare = now.0.saturating_sub(before.0);
    let all = now.1.saturating_sub(before.1);
    spare as f64 / all.max(1) as f64
}

fn read(file: &OwnedFd) -> Option<(u64, u64)> {
    let mut text = [0; 256];
    let len = rustix::io::pread(file, &mut text, 0).ok()?;
    parse(std::str::from_utf8(&text[..len]).ok()?)
}

fn parse(text: &str) -> Option<(u64, u64)> {
    let of_all = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = of_all
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .take(FIELDS)
        .collect();
    let spare = SPARE.iter().map(|at| ticks.get(*at)).sum::<Option<u64>>()?;
    Some((spare, ticks.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_ticks_and_all_ticks_are_read() {
        let text = "cpu  10 1 5 100 20 0 4 2 7 3\ncpu0 1 1 1 1\n";
        assert_eq!(parse(text), Some((120, 142)));
        for wrong in ["", "cpu0 1 2 3 4 5", "cpu  1 2 x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_part_counts_from_the_last_measurement() {
        assert_eq!(part_since((120, 142), (150, 202)), 0.5);
        assert_eq!(part_since((120, 142), (120, 142)), 0.0);
        let mut spare = SpareTime::new();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!((0.0..=1.0).contains(&spare.part()));
        spare.file = None;
        assert_eq!(spare.part(), 0.0, "the kernel's count cannot be read");
    }
}
