//! The memory that a process tree really has, measured from outside.
//!
//! The promise is about anonymous memory as the kernel counts it: the sum of `Pss_Anon`
//! over the tree, which counts a page shared after fork once. Taken 20 times a second;
//! a peak shorter than that may be missed.

use crate::contract::MIB;
use crate::processes::{Process, Tree};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of the samples.
const INTERVAL: Duration = Duration::from_millis(50);

/// Allowance of the contract for each process, besides its share.
pub const PER_PROCESS: u64 = 32 * MIB;

/// The most memory a tree was seen to have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Footprint {
    /// Most bytes of anonymous memory in one sample.
    pub peak: u64,
    /// The same less [`PER_PROCESS`] for each process of the sample.
    pub net: u64,
    /// Most processes in one sample.
    pub processes: usize,
    /// Samples taken.
    pub looks: u64,
}

impl Footprint {
    fn add(&mut self, sum: u64, processes: usize) {
        self.peak = self.peak.max(sum);
        self.net = self
            .net
            .max(sum.saturating_sub(processes as u64 * PER_PROCESS));
        self.processes = self.processes.max(processes);
        self.looks += 1;
    }
}

fn anonymous(process: Process) -> u64 {
    std::fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid))
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|l| l.starts_with("Pss_Anon:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(0, |kib| kib * 1024)
}

/// Samples a tree until it is stopped.
pub struct Watch {
    stop: Arc<AtomicBool>,
    shared: Arc<Mutex<(Tree, Footprint)>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts watching the tree of `root`.
    pub fn start(root: Process) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Mutex::new((Tree::new(root), Footprint::default())));
        let thread = std::thread::spawn({
            let (stop, shared) = (stop.clone(), shared.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(mut held) = shared.lock() {
                        let processes = held.0.look();
                        let sum = processes.iter().copied().map(anonymous).sum();
                        held.1.add(sum, processes.len());
                    }
                    std::thread::sleep(INTERVAL);
                }
            }
        });
        Self {
            stop,
            shared,
            thread: Some(thread),
        }
    }

    /// The processes that run now.
    pub fn processes(&self) -> Vec<Process> {
        self.shared
            .lock()
            .map(|mut held| held.0.look())
            .unwrap_or_default()
    }

    /// Stops; returns what was seen and the processes that are left after `patience`.
    pub fn finish(mut self, patience: Duration) -> (Footprint, Vec<Process>) {
        self.halt();
        let Ok(mut held) = self.shared.lock() else {
            return (Footprint::default(), Vec::new());
        };
        let left = held.0.left(patience);
        (held.1, left)
    }

    /// Kills the whole tree.
    pub fn kill(&self) {
        if let Ok(mut held) = self.shared.lock() {
            held.0.kill();
        }
    }

    fn halt(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.halt();
    }
}
