//! One arm's work, in a process of its own: it makes its memory, says that it is ready,
//! waits to be told to go (meanwhile it is put in its cgroup), works, and prints figures.
//! A benchmark that is killed leaves no worker: one that waits reads the end of its pipe,
//! one that works is killed with its cgroup by the keeper.

use crate::access::{self, Amount, Figure};
use crate::contents::PAGE;
use crate::error::while_doing;
use crate::memory::{Kind, Memory};
use crate::{ExperimentError, device};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// What a worker prints when its memory is there.
pub const READY: &str = "ready";

/// What a worker is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// Which memory.
    #[arg(long)]
    pub memory: Kind,
    /// Bytes of it.
    #[arg(long)]
    pub bytes: u64,
    /// Bytes of frames, for a domain of its own.
    #[arg(long)]
    pub frames: u64,
    /// Random accesses.
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

/// The life of a worker.
pub fn run(plan: &Plan) -> Result<(), ExperimentError> {
    let amount = Amount {
        pages: plan.bytes / PAGE as u64,
        accesses: plan.accesses,
        threads: plan.threads.max(1),
        seed: plan.seed,
    };
    let memory = match &plan.memory {
        Kind::Device(_) => None,
        kind => Some(Memory::new(kind, amount.pages, plan.frames)?),
    };
    println!("{READY}");
    let mut word = String::new();
    let _ = std::io::stdin().lock().read_line(&mut word);
    if word.trim() != "go" {
        return Err(ExperimentError::Worker("was not told to go".into()));
    }
    let passes = match (&plan.memory, &memory) {
        (Kind::Device(path), _) => device::run(path, amount)?,
        // SAFETY: the mapping has that many pages and is this process's alone.
        (_, Some(memory)) => unsafe { access::run(memory.start(), amount)? },
        (_, None) => return Err(ExperimentError::Worker("has no memory".into())),
    };
    let figures = Figures {
        passes,
        major_faults: faults("pgmajfault"),
        minor_faults: faults("pgfault"),
        resident: resident(),
    };
    let line =
        serde_json::to_string(&figures).map_err(|e| ExperimentError::Worker(e.to_string()))?;
    println!("{line}");
    std::io::stdout()
        .flush()
        .map_err(while_doing("print the figures"))
}

/// Bytes of this process in memory, anonymous and of mapped files: not the shared memory
/// in which a pager keeps what it compressed.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let of = |name: &str| {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|l| l.trim().split(' ').next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    (of("Pss_Anon") + of("Pss_File")) * 1024
}

/// Faults of this process so far, by the kernel's name.
fn faults(name: &str) -> u64 {
    // Fields 10 and 12 of /proc/self/stat, counted from the one after the name's bracket.
    let field = if name == "pgfault" { 7 } else { 9 };
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit(')').next().unwrap_or_default();
    after
        .split_whitespace()
        .nth(field)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}
