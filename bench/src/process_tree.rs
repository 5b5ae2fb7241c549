//! The kernel's figures of a process and its descendants.

use crate::prelude::*;
use procfs::process::Process;
use procfs::{CurrentSI, KernelStats, ProcResult};

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
        let own = family(root)
            .into_iter()
            .filter_map(|pid| Self::of_one(pid).ok());
        own.fold(Self::default(), |sum, own| Self {
            minor: sum.minor + own.minor,
            major: sum.major + own.major,
            processor: sum.processor + own.processor,
            resident_bytes: sum.resident_bytes + own.resident_bytes,
        })
    }

    /// Of a process, children that were waited for included.
    pub fn of_one(pid: u32) -> ProcResult<Self> {
        let process = Process::new(pid as i32)?;
        let (stat, status) = (process.stat()?, process.status()?);
        let resident = status.rssanon.unwrap_or(0) + status.rssfile.unwrap_or(0);
        let of_children = (stat.cutime + stat.cstime).unsigned_abs();
        Ok(Self {
            minor: stat.minflt + stat.cminflt,
            major: stat.majflt + stat.cmajflt,
            processor: ticks(stat.utime + stat.stime + of_children),
            resident_bytes: resident << 10,
        })
    }
}

/// A process's children, where the kernel lists them (CONFIG_PROC_CHILDREN).
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = Process::new(pid as i32).and_then(|process| process.tasks());
    let tasks = tasks.into_iter().flatten().flatten();
    tasks
        .flat_map(|task| task.children().unwrap_or_default())
        .collect()
}

/// A process and its descendants.
pub fn family(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(children(*pid));
        next += 1;
    }
    all
}

/// So many of the units of times in /proc.
fn ticks(count: u64) -> Duration {
    Duration::from_secs(count) / procfs::ticks_per_second() as u32
}

/// Processor time of the whole machine until now: used, and all. What is neither idle nor waiting
/// for a disk is used; guests' time is in the user's.
pub fn machine() -> (Duration, Duration) {
    let Ok(KernelStats { total, .. }) = KernelStats::current() else {
        return Default::default();
    };
    let more = [total.irq, total.softirq, total.steal]
        .into_iter()
        .flatten();
    let used = total.user + total.nice + total.system + more.sum::<u64>();
    (
        ticks(used),
        ticks(used + total.idle + total.iowait.unwrap_or(0)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_in_its_own_family_and_has_faulted() {
        let own = std::process::id();
        assert!(family(own).contains(&own));
        let usage = TreeUsage::of(own);
        assert!(usage.minor > 0 && usage.resident_bytes > 0);
        assert_eq!(TreeUsage::of(u32::MAX).minor, 0);
    }
}
