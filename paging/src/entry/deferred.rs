//! Faults that wait for another thread's page, or for a frame while reads are under way.

use crate::stream_detector::Prediction;

/// Faults that wait, per handler.
const MOST: usize = 64;

/// A fault that cannot be resolved yet.
#[derive(Clone, Copy, Default)]
pub(super) struct DeferredFault {
    pub(super) addr: usize,
    pub(super) write: bool,
    pub(super) prediction: Option<Prediction>,
    pub(super) thread: u32,
    /// When it began; 0 before its first attempt.
    pub(super) began: u64,
}

/// The faults of one handler.
pub(super) struct DeferredFaults {
    faults: [DeferredFault; MOST],
    count: usize,
}

impl DeferredFaults {
    pub(super) fn new() -> Self {
        Self {
            faults: [DeferredFault::default(); MOST],
            count: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if the handler should take further faults: no more than half full.
    pub(super) fn has_room(&self) -> bool {
        self.count < MOST / 2
    }

    /// Puts a fault off. There is room, since none is taken while the table is half full; if
    /// not, the access is repeated and faults again.
    pub(super) fn put(&mut self, fault: DeferredFault) {
        if self.count < MOST {
            self.faults[self.count] = fault;
            self.count += 1;
        }
    }

    /// Takes all of them.
    pub(super) fn take(&mut self) -> impl Iterator<Item = DeferredFault> + use<> {
        let count = std::mem::take(&mut self.count);
        self.faults.into_iter().take(count)
    }
}
