//! The processes of a tree from /proc, distinct from later processes with the same pid by
//! their start time.
//!
//! The harness has its own code for this: the pager's code is under test.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A process, identified by its pid and its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Clock ticks since boot.
    pub started: u64,
}

struct Stat {
    process: Process,
    parent: i32,
    dead: bool,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let words: Vec<&str> = text
        .get(text.rfind(')')? + 1..)?
        .split_whitespace()
        .collect();
    Some(Stat {
        process: Process {
            pid,
            started: words.get(19)?.parse().ok()?,
        },
        parent: words.get(1)?.parse().ok()?,
        dead: matches!(*words.first()?, "Z" | "X"),
    })
}

/// The process with a pid, if one exists now.
pub fn find(pid: i32) -> Option<Process> {
    stat(pid).map(|s| s.process)
}

impl Process {
    /// Returns true if it still runs (a zombie does not).
    pub fn runs(&self) -> bool {
        stat(self.pid).is_some_and(|s| s.process == *self && !s.dead)
    }

    /// Returns true if it is the process beside a program that resolves that one's faults.
    pub fn is_pager(&self) -> bool {
        self.has_name("selfpage-pager")
    }

    /// Returns true if it is the process of `run` that admits programs. It has another name before it begins to.
    pub fn is_supervisor(&self) -> bool {
        self.has_name("selfpage-super")
    }

    /// Returns true if it is the process of `run` that receives what the program's group does. A run goes on without it.
    pub fn is_witness(&self) -> bool {
        self.has_name("group-signals")
    }

    fn has_name(&self, expected: &str) -> bool {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", self.pid));
        name.is_ok_and(|name| name.trim_end() == expected)
    }

    /// Its command line, for messages.
    pub fn command(&self) -> String {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = line.split(|b| *b == 0).map(String::from_utf8_lossy);
        format!(
            "{} ({})",
            self.pid,
            words.collect::<Vec<_>>().join(" ").trim()
        )
    }

    /// Kills it, if the pid is still this process.
    pub fn kill(&self) {
        if self.runs()
            && let Some(pid) = rustix::process::Pid::from_raw(self.pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// The processes of one tree: those seen so far and their live descendants, wherever
/// they were reparented to.
pub struct Tree {
    root: Process,
    seen: BTreeSet<Process>,
}

impl Tree {
    /// The tree below and with `root`.
    pub fn new(root: Process) -> Self {
        Self {
            root,
            seen: BTreeSet::from([root]),
        }
    }

    /// Looks, and returns those that run now, in the order they started: numbers say
    /// nothing of that once they have begun again.
    pub fn look(&mut self) -> Vec<Process> {
        let mut children: BTreeMap<i32, Vec<Stat>> = BTreeMap::new();
        let mut alive = BTreeMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
            if let Some(found) = pid.and_then(stat).filter(|s| !s.dead) {
                alive.insert(found.process, ());
                children.entry(found.parent).or_default().push(found);
            }
        }
        let mut now: Vec<Process> = self
            .seen
            .iter()
            .filter(|p| alive.contains_key(p))
            .copied()
            .collect();
        let mut next = 0;
        while let Some(process) = now.get(next).copied() {
            for child in children.remove(&process.pid).unwrap_or_default() {
                if self.seen.insert(child.process) {
                    now.push(child.process);
                }
            }
            next += 1;
        }
        now.sort_by_key(|process| process.started);
        now
    }

    /// All but the root that still run after `patience`.
    pub fn left(&mut self, patience: Duration) -> Vec<Process> {
        let begin = Instant::now();
        loop {
            let mut left = self.look();
            left.retain(|p| *p != self.root);
            if left.is_empty() || begin.elapsed() > patience {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills everything that is left, until nothing is.
    pub fn kill(&mut self) {
        for _ in 0..200 {
            let now = self.look();
            if now.is_empty() {
                return;
            }
            now.iter().for_each(Process::kill);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
