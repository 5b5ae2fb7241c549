//! One arm's work, in a process of its own: it makes its memory, prints a ready line, waits
//! for the start line (meanwhile the benchmark moves it into its cgroup), works, and prints
//! figures. A benchmark that is killed leaves no worker: the worker is killed with its parent.

use crate::access::{Counted, Figure, Resident, Work};
use crate::contents::PAGE;
use crate::device::Device;
use crate::error::while_doing;
use crate::memory::{Kind, Memory};
use crate::order::Amount;
use crate::pass::Pass;
use crate::{ExperimentError, machine};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// What a worker prints when its memory is there.
pub const READY: &str = "ready";

/// The options of a worker.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// Which memory.
    #[arg(long)]
    pub memory: Kind,
    /// What to do with it, in order; filling comes first.
    #[arg(long, value_delimiter = ',', required = true)]
    pub passes: Vec<Pass>,
    /// Bytes of it.
    #[arg(long)]
    pub bytes: u64,
    /// Bytes of frames, for a domain of its own.
    #[arg(long)]
    pub frames: u64,
    /// Accesses of a pass that is not in order.
    #[arg(long)]
    pub accesses: u64,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    pub threads: u64,
    /// Makes the random order.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What a worker prints at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// One for each pass.
    pub passes: Vec<Figure>,
    /// Faults the kernel counted for the process that needed I/O.
    pub major_faults: u64,
    /// Those that needed none.
    pub minor_faults: u64,
    /// Bytes of its own the worker had in memory at its end.
    pub resident: u64,
}

/// Prints the ready line, and waits for the start line.
pub fn ready() -> Result<(), ExperimentError> {
    println!("{READY}");
    let mut word = String::new();
    let _ = std::io::stdin().lock().read_line(&mut word);
    match word.trim() {
        "go" => Ok(()),
        _ => Err(ExperimentError::Worker("no start line".into())),
    }
}

/// Waits until the parent closes the standard input of this process.
pub fn linger() {
    std::io::stdin().lock().lines().for_each(drop);
}

/// The main function of a worker.
pub fn run(plan: &Plan) -> Result<(), ExperimentError> {
    let amount = Amount {
        pages: plan.bytes / PAGE as u64,
        frames: plan.frames / PAGE as u64,
        accesses: plan.accesses,
        threads: plan.threads.max(1),
        seed: plan.seed,
    };
    let memory = match &plan.memory {
        Kind::Device(_) => None,
        kind => Some(Memory::new(kind, amount.pages, plan.frames)?),
    };
    ready()?;
    let count = || Counted {
        misses: misses(&plan.memory, memory.as_ref()),
        device_bytes: device_bytes(),
    };
    let work = Work {
        amount,
        passes: &plan.passes,
        count: &count,
    };
    let passes = match (&plan.memory, &memory) {
        (Kind::Device(path), _) => work.run(|| Device::open(path))?,
        // SAFETY: the mapping has that many pages, is the work's alone, and outlives it.
        (_, Some(memory)) => work.run(|| Ok(unsafe { Resident::new(memory.start()) }))?,
        (_, None) => return Err(ExperimentError::Worker("has no memory".into())),
    };
    let (major_faults, minor_faults) = faults();
    let figures = Figures {
        passes,
        major_faults,
        minor_faults,
        resident: resident(),
    };
    let line =
        serde_json::to_string(&figures).map_err(|e| ExperimentError::Worker(e.to_string()))?;
    println!("{line}");
    std::io::stdout()
        .flush()
        .map_err(while_doing("print the figures"))
}

/// Accesses so far that waited for the store, or for the kernel's I/O. Under `selfpage
/// run` the kernel counts every fault as one with I/O, and the pager's own figures are not
/// the worker's to read.
fn misses(kind: &Kind, memory: Option<&Memory>) -> Option<u64> {
    match (kind, memory) {
        (Kind::Paged | Kind::Device(_), _) => None,
        (_, Some(Memory::Linked(_, domain))) => {
            use selfpage::Counter::{from_ahead, from_disk, from_ram};
            let counters = domain.counters();
            let reads = [from_ram, from_disk, from_ahead];
            Some(reads.iter().map(|from| counters.get(*from)).sum())
        }
        _ => Some(faults().0),
    }
}

/// Bytes of this process in memory, anonymous and of mapped files: not the shared memory
/// in which a pager keeps what it compressed.
fn resident() -> u64 {
    let text = machine::read("/proc/self/smaps_rollup");
    let of = |name| machine::field(&text, name).unwrap_or(0);
    (of("Pss_Anon:") + of("Pss_File:")) * 1024
}

/// Bytes this process, by any of its threads, has had read from block devices: zram is one.
fn device_bytes() -> Option<u64> {
    machine::field(&machine::read("/proc/self/io"), "read_bytes:")
}

/// Major and minor faults of this process so far.
fn faults() -> (u64, u64) {
    // Fields 12 and 10 of /proc/self/stat, counted from the one after the name's bracket.
    let text = machine::read("/proc/self/stat");
    let after = text.rsplit(')').next().unwrap_or_default();
    let field = |n| {
        let word = after.split_whitespace().nth(n);
        word.and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    (field(9), field(7))
}
