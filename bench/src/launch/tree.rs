//! The kernel's figures of a process and its descendants.

use crate::machine::read;
use crate::prelude::*;
use host::procfs::field;

/// Of a tree, until now. Those that ended and were waited for are in their parents' figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TreeUsage {
    /// Faults that needed no I/O.
    pub minor: u64,
    /// Faults that needed some.
    pub major: u64,
    /// Processor time.
    pub processor: Duration,
    /// Bytes in memory now, anonymous and of files: what is shared is counted for each.
    pub resident_bytes: u64,
}

impl TreeUsage {
    /// Of a process and its descendants.
    pub fn of(root: u32) -> Self {
        let tick = ticks();
        family(root).into_iter().fold(Self::default(), |sum, pid| {
            let stat = read(&format!("/proc/{pid}/stat"));
            let own = counted(&stat, tick).unwrap_or_default();
            let status = read(&format!("/proc/{pid}/status"));
            let of = |name| field(&status, name).unwrap_or(0);
            Self {
                minor: sum.minor + own.minor,
                major: sum.major + own.major,
                processor: sum.processor + own.processor,
                resident_bytes: sum.resident_bytes + of("RssAnon:") + of("RssFile:"),
            }
        })
    }
}

/// A process and its descendants, where the kernel lists them (CONFIG_PROC_CHILDREN).
pub fn family(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(
                list.split_whitespace()
                    .filter_map(|w| w.parse::<u32>().ok()),
            );
        }
        next += 1;
    }
    all
}

/// Faults and time of a line of /proc/PID/stat, children that were waited for included.
fn counted(stat: &str, tick: Duration) -> Option<TreeUsage> {
    // Counted from the word after the name, which may have blanks and brackets.
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |n: usize| words.get(n).and_then(|word| word.parse::<u64>().ok());
    let sum = |places: &[usize]| places.iter().map(|n| number(*n)).sum::<Option<u64>>();
    let spent = sum(&[11, 12, 13, 14])?;
    Some(TreeUsage {
        minor: sum(&[7, 8])?,
        major: sum(&[9, 10])?,
        processor: tick * u32::try_from(spent).ok()?,
        resident_bytes: 0,
    })
}

/// The unit of times in /proc.
fn ticks() -> Duration {
    Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
}

/// Processor time of the whole machine until now: used, and all.
pub fn machine() -> (Duration, Duration) {
    let stat = read("/proc/stat");
    let (used, all) = busy(stat.lines().next().unwrap_or_default());
    let tick = ticks();
    let time = |n: u64| tick * u32::try_from(n).unwrap_or(u32::MAX);
    (time(used), time(all))
}

/// Of the line of all processors: what is neither idle nor waiting for a disk, and all.
fn busy(line: &str) -> (u64, u64) {
    let words = line.split_whitespace().skip(1);
    // User, nice, system, idle, iowait, irq, softirq, steal; guests' are in the first two.
    let times: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
    let all = times.iter().sum::<u64>();
    let idle = times.iter().skip(3).take(2).sum::<u64>();
    (all - idle, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_any_program_name() {
        let line = "12 (a ) b) S 1 2 3 4 5 6 100 20 30 4 7 8 9 10 0 0";
        let usage = counted(line, Duration::from_millis(10)).unwrap();
        assert_eq!((usage.minor, usage.major), (120, 34));
        assert_eq!(usage.processor, Duration::from_millis(340));
        assert_eq!(counted("12 (a) S 1", Duration::ZERO), None);
        assert_eq!(counted("", Duration::ZERO), None);
    }

    #[test]
    fn idle_time_is_distinct_from_busy_time() {
        assert_eq!(busy("cpu 10 20 30 100 40 5 5 0 9 9"), (70, 210));
        assert_eq!(busy(""), (0, 0));
    }

    #[test]
    fn this_process_is_in_its_own_family_and_has_faulted() {
        let own = std::process::id();
        assert!(family(own).contains(&own));
        let usage = TreeUsage::of(own);
        assert!(usage.minor > 0 && usage.resident_bytes > 0);
        assert_eq!(TreeUsage::of(u32::MAX).minor, 0);
    }
}
