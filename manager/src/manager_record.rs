//! What all managers of one keeper share, in memory of the keeper's.

use std::sync::atomic::{AtomicU64, Ordering};
use wired::{PAGE, WiredMemory};

const SERVED: usize = 0;
const NUMBERS: usize = 1;
const WORDS: usize = 2;

/// The memory.
pub struct ManagerRecord(WiredMemory);

impl ManagerRecord {
    /// Of no manager yet.
    pub fn new() -> rustix::io::Result<Self> {
        Ok(Self(WiredMemory::shared(PAGE, "selfpage-manager")?.0))
    }

    fn words(&self) -> &[AtomicU64] {
        self.0.slice(0, WORDS)
    }

    /// Managers that have served.
    pub fn served(&self) -> u64 {
        self.words()[SERVED].load(Ordering::Acquire)
    }

    /// A manager serves.
    pub fn count_served(&self) {
        self.words()[SERVED].fetch_add(1, Ordering::AcqRel);
    }

    /// A number for a client, from 1 on.
    pub fn next_number(&self) -> u64 {
        self.words()[NUMBERS].fetch_add(1, Ordering::Relaxed) + 1
    }
}
