//! One arm's work, in a process of its own.

use super::PagingPlan;
use super::device::Device;
use super::figure::{CountedPages, Figure};

use super::work::{Resident, Workload};
use crate::machine;
use crate::prelude::*;
use procfs::process::Process;

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

/// The main function of a worker.
pub fn serve(plan: &PagingPlan) -> Result<()> {
    let amount = plan.amount;
    let memory = match &plan.memory {
        MemoryKind::Device(_) => None,
        kind => Some(WorkerMemory::new(
            kind,
            amount.pages,
            amount.frames * PAGE as u64,
        )?),
    };
    ready()?;
    let count = || CountedPages {
        misses: misses(&plan.memory, memory.as_ref()),
        device_bytes: device_bytes(),
    };
    let work = Workload {
        amount,
        passes: &plan.passes,
        count: &count,
    };
    let passes = match (&plan.memory, &memory) {
        (MemoryKind::Device(path), _) => work.run(|| Device::open(path))?,
        // SAFETY: the mapping has that many pages, is the work's alone, and outlives it.
        (_, Some(memory)) => work.run(|| Ok(unsafe { Resident::new(memory.start()) }))?,
        (_, None) => bail!("has no memory"),
    };
    let (major_faults, minor_faults) = faults();
    reply(&Figures {
        passes,
        major_faults,
        minor_faults,
        resident: resident(&plan.memory),
    })
}

/// Accesses so far that waited for the store, or for the kernel's I/O. Under `selfpage
/// run` the kernel counts every fault as one with I/O, and the pager's own figures are not
/// the worker's to read.
fn misses(kind: &MemoryKind, memory: Option<&WorkerMemory>) -> Option<u64> {
    match (kind, memory) {
        (MemoryKind::Paged | MemoryKind::Shared | MemoryKind::Device(_), _) => None,
        (_, Some(WorkerMemory::Linked(_, domain))) => {
            use selfpage::Counter::{CompressedHits, DiskReads, ReadaheadHits};
            let counters = domain.counters();
            let reads = [CompressedHits, DiskReads, ReadaheadHits];
            Some(reads.iter().map(|from| counters.get(*from)).sum())
        }
        _ => Some(faults().0),
    }
}

/// Bytes of this process in memory, anonymous and of mapped files; shared memory only where that is the work's,
/// since a pager keeps there what it compressed.
fn resident(kind: &MemoryKind) -> u64 {
    let shared = matches!(kind, MemoryKind::Shared).then_some("Pss_Shmem");
    let rollup = Process::myself().and_then(|own| own.smaps_rollup());
    let maps = rollup.map_or_else(|_| Vec::new(), |rollup| rollup.memory_map_rollup.0);
    let sizes = maps.iter().map(|map| &map.extension.map);
    let names = ["Pss_Anon", "Pss_File"].into_iter().chain(shared);
    let names: Vec<_> = names.collect();
    sizes
        .flat_map(|of| names.iter().map(|name| of.get(*name)))
        .flatten()
        .sum()
}

/// Bytes this process, by any of its threads, has had read from block devices: zram is one.
fn device_bytes() -> Option<u64> {
    Some(Process::myself().ok()?.io().ok()?.read_bytes)
}

/// Major and minor faults of this process so far.
fn faults() -> (u64, u64) {
    let usage = machine::usage(libc::RUSAGE_SELF);
    (usage.ru_majflt as u64, usage.ru_minflt as u64)
}
