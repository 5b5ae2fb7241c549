//! The size of the pager's tables: the process's own memory that is neither a page of the
//! program nor the store.
//!
//! All frames are given up before it is read, so that no page of a stretch or of the
//! standby list is left; what the process had before there was a domain is taken off. The
//! ledger of frames is shared memory and counted by its name. The store's catalogue lies
//! with the store's pages, and is noted, as the kernel's page tables are.

use super::{FaultPlan, page_at, paged};
use crate::prelude::*;
use host::procfs::field;

const MIB: f64 = 1024.0 * 1024.0;
/// A stretch many times larger than memory.
const SPARSE: u64 = 16 << 30;

/// After every page was written once.
pub fn of_a_filled_stretch(plan: &FaultPlan) -> Result<Sample> {
    let pages = plan.data / PAGE as u64;
    measure(plan, plan.data, 0..pages)
}

/// After as many pages as there are in twice the frames were written, anywhere.
pub fn of_a_sparse_stretch(plan: &FaultPlan) -> Result<Sample> {
    let touched = 2 * plan.frames / PAGE as u64;
    let page = |i| mix(plan.seed ^ i << 8) % (SPARSE / PAGE as u64);
    measure(plan, SPARSE, (0..touched).map(page))
}

fn measure(plan: &FaultPlan, bytes: u64, pages: impl Iterator<Item = u64>) -> Result<Sample> {
    let before = ProcessMemory::now()?;
    let frames = plan.frames as usize / PAGE;
    let (domain, stretch) = paged(frames, plan.data, bytes as usize / PAGE)?;
    for page in pages {
        page_at(&stretch, page).write(1);
    }
    domain.relinquish(domain.n());
    let left = domain.in_use();
    if left > 0 {
        bail!("{left} frames stayed in use when all were to be given up");
    }
    let after = ProcessMemory::now()?;
    let tables = after.private.saturating_sub(before.private) + after.ledger;
    let page_tables = after.page_tables.saturating_sub(before.page_tables);
    let catalogue = domain.store_usage().map_or(0, |usage| usage.tables);
    let mib = |bytes: u64| bytes as f64 / MIB;
    Ok(Sample::new(mib(tables), mib(bytes)).notes([
        ("MiB of the ledger", mib(after.ledger)),
        ("of the store's catalogue", mib(catalogue)),
        ("of the kernel's page tables", mib(page_tables)),
    ]))
}

/// Bytes of this process by what they are for.
#[derive(Debug, PartialEq, Eq)]
struct ProcessMemory {
    /// Private and anonymous.
    private: u64,
    /// Of the ledger of frames.
    ledger: u64,
    /// The kernel's, for its addresses.
    page_tables: u64,
}

impl ProcessMemory {
    fn now() -> Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).doing(format_args!("read {path}"));
        Ok(Self::of(
            &read("/proc/self/smaps")?,
            &read("/proc/self/status")?,
        ))
    }

    fn of(smaps: &str, status: &str) -> Self {
        let mut memory = Self {
            private: 0,
            ledger: 0,
            page_tables: field(status, "VmPTE:").unwrap_or(0),
        };
        let mut ledger = false;
        for line in smaps.lines() {
            // The head of a mapping begins with its addresses; its figures with a name.
            match line.split_once(' ') {
                Some((first, _)) if !first.ends_with(':') => {
                    ledger = line.contains("memfd:selfpage-ledger");
                }
                _ if ledger => memory.ledger += field(line, "Rss:").unwrap_or(0),
                _ => memory.private += field(line, "Anonymous:").unwrap_or(0),
            }
        }
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_distinguished_by_name() {
        let smaps = "7f00-7f10 rw-p 00000000 00:00 0 \nRss: 12 kB\nAnonymous: 8 kB\n\
                     7f10-7f20 rw-s 00000000 00:01 9 /memfd:selfpage-ledger (deleted)\nRss: 16 kB\nAnonymous: 0 kB\n\
                     7f20-7f30 rw-s 00000000 00:01 9 /memfd:selfpage-store (deleted)\nRss: 99 kB\nAnonymous: 0 kB\n";
        let found = ProcessMemory::of(smaps, "VmPeak: 1 kB\nVmPTE:\t 4 kB\n");
        let expected = ProcessMemory {
            private: 8 << 10,
            ledger: 16 << 10,
            page_tables: 4 << 10,
        };
        assert_eq!(found, expected);
    }
}
