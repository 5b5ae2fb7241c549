//! Selection of the next unit: from the replacement's queues, and units that are in none of
//! them.

use super::Stager;
use crate::replacement::{Key, Replacement, ScanResistant};
use crate::stretch::StretchState;
use crate::stretch_index::StretchIndex;
use wired::{Guard, Lock};

/// How often a fault tries for the queues before it continues without.
const LOOKS: usize = 64;

/// The replacement's queues of units.
pub(crate) struct VictimQueues(Lock<ScanResistant>);

impl VictimQueues {
    /// For units of `frames` frames.
    pub(crate) fn new(frames: usize) -> Self {
        Self(Lock::new(ScanResistant::new(frames)))
    }

    /// Units in the queues.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Takes the unit that the replacement would evict first.
    fn next_victim(&self, index: &StretchIndex) -> Option<Key> {
        self.0.lock().victim_by(&mut |key| resident(index, key))
    }

    /// Records in the replacement's order what a fill implies.
    pub(crate) fn note_filled(
        &self,
        stretch: &StretchState,
        unit: usize,
        first: bool,
        returned: bool,
    ) {
        let key = Key::new(stretch.id(), unit);
        match self.try_lock() {
            Some(mut order) => {
                if first && !order.filled(key) {
                    stretch.table().dequeued(unit);
                }
                if returned {
                    order.refaulted(key);
                }
            }
            None if first => stretch.table().dequeued(unit),
            None => {}
        }
    }

    /// The queues, unless another thread holds them too long. A fault never sleeps for them: a
    /// unit that is not queued now is queued by its next fill, and a lost mark of heat is only
    /// a mark. They are held for a few microseconds, so that a retry is worth its cost.
    fn try_lock(&self) -> Option<Guard<'_, ScanResistant>> {
        (0..LOOKS).find_map(|_| {
            let order = self.0.try_lock();
            if order.is_none() {
                std::hint::spin_loop();
            }
            order
        })
    }

    /// Queues a unit whose pages came back without a fault.
    pub(crate) fn requeue(&self, stretch: &StretchState, unit: usize) {
        if stretch.table().touch(unit) {
            self.0.lock().filled(Key::new(stretch.id(), unit));
        }
    }
}

/// Resident pages of a unit, including those that may not be evicted: to check each would
/// take longer than all other parts of a choice.
fn resident(index: &StretchIndex, key: Key) -> u32 {
    match index.by_id(key.stretch()) {
        Some(stretch) if key.unit() < stretch.table().unit_count() => {
            let count = stretch.table().resident(key.unit());
            if count == 0 {
                // The replacement has forgotten it: its next fill queues it again.
                stretch.table().dequeued(key.unit());
            }
            count
        }
        _ => 0,
    }
}

impl Stager {
    /// Stages the unit that the replacement would evict first. Returns false if there is none.
    pub(super) fn stage_next(&mut self) -> bool {
        let standby = &*self.standby;
        if standby.slots.ring.free_slot().is_none() {
            return false;
        }
        // As many attempts as there are units in the queues: a unit that holds no page that
        // may be evicted (all are nailed, or pinned) is skipped.
        let tries = standby.queues.len();
        for _ in 0..tries {
            let Some(key) = standby.queues.next_victim(&standby.mm.index) else {
                break;
            };
            let Some(stretch) = standby.mm.index.by_id(key.stretch()) else {
                continue;
            };
            if key.unit() >= stretch.table().unit_count() {
                continue;
            }
            stretch.table().dequeued(key.unit());
            let staged = self.stage_sweep(stretch, key.unit());
            // Some pages were left, or came back since a device holds them: the unit is queued
            // again.
            if stretch.table().any_movable(key.unit()) {
                standby.queues.requeue(stretch, key.unit());
            }
            if staged > 0 {
                return true;
            }
        }
        self.find_unqueued()
    }

    /// Finds units that are in no queue, because another thread held the queues at their fill.
    /// Called when the queues are empty; otherwise such a unit is queued at its next fault.
    fn find_unqueued(&mut self) -> bool {
        // From where the last search ended, once around.
        let (mut n, mut unit) = self.hand;
        let mut wrapped = false;
        loop {
            let Some(stretch) = self.standby.mm.index.nth(n) else {
                if wrapped {
                    return false;
                }
                (n, unit, wrapped) = (0, 0, true);
                continue;
            };
            let table = stretch.table();
            let units = if stretch.evictable() {
                table.unit_count()
            } else {
                0
            };
            while unit < units {
                unit += 1;
                if table.any_movable(unit - 1) && self.stage_sweep(stretch, unit - 1) > 0 {
                    self.hand = (n, unit);
                    return true;
                }
            }
            (n, unit) = (n + 1, 0);
        }
    }
}
