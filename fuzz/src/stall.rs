//! A run without progress: whether its threads wait for a processor, and where they are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A time without progress, and how much of it threads waited for a processor.
pub struct Stall {
    root: u32,
    since: Instant,
    waited: BTreeMap<PathBuf, Duration>,
}

impl Stall {
    /// Begins now, for the process `root` and its descendants.
    pub fn begin(root: u32) -> Self {
        Self {
            root,
            since: Instant::now(),
            waited: waited_by_thread(root),
        }
    }

    /// The time that no thread's wait for a processor explains.
    pub fn unstarved(&self) -> Duration {
        let now = waited_by_thread(self.root);
        let waited = now.iter().map(|(thread, waited)| {
            waited.saturating_sub(self.waited.get(thread).copied().unwrap_or_default())
        });
        self.since.elapsed().saturating_sub(waited.sum())
    }
}

/// How long each thread of a run has waited for a processor while it could have run.
fn waited_by_thread(root: u32) -> BTreeMap<PathBuf, Duration> {
    let waited = |thread: PathBuf| {
        let text = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        let nanoseconds = text.split_whitespace().nth(1)?.parse().ok()?;
        Some((thread, Duration::from_nanos(nanoseconds)))
    };
    tasks_of(root).into_iter().filter_map(waited).collect()
}

/// The threads of a process and its descendants, by their folders in /proc: pager processes
/// are in other process groups, but descend from the run.
fn tasks_of(root: u32) -> Vec<PathBuf> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let parent = after_name.split_whitespace().nth(1);
        let process = entry.file_name().to_string_lossy().parse::<u32>();
        if let (Ok(process), Some(Ok(parent))) = (process, parent.map(str::parse::<u32>)) {
            parents.insert(process, parent);
        }
    }
    let descends = |process: &u32| {
        std::iter::successors(Some(process), |process| parents.get(process))
            .take(parents.len())
            .any(|process| *process == root)
    };
    let tasks = |process: &u32| std::fs::read_dir(format!("/proc/{process}/task"));
    parents
        .keys()
        .filter(|process| descends(process))
        .filter_map(|process| tasks(process).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

/// Where the threads of a run are, for a report.
pub fn threads_of(root: u32) -> String {
    let mut text = String::new();
    for task in tasks_of(root) {
        let read = |name: &str| {
            let text = std::fs::read_to_string(task.join(name)).unwrap_or_default();
            text.trim().to_string()
        };
        let stat = read("stat");
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let _ = writeln!(
            text,
            "{} {} {} wchan {} syscall {}\n{}",
            task.display(),
            read("comm"),
            after_name.split_whitespace().next().unwrap_or_default(),
            read("wchan"),
            read("syscall"),
            read("stack"),
        );
    }
    text
}
