//! The domain's gate: every fault passes it, a fork or the end of a stretch closes it.
//!
//! Striped, so that threads that fault at once do not meet on one cache line.

use crate::page::RangeGate;

const STRIPES: usize = 16;

#[repr(align(128))]
#[derive(Default)]
struct Stripe(RangeGate);

/// Many threads may be inside; the thread that closes it waits until all have left.
#[derive(Default)]
pub(crate) struct FreezeGate {
    stripes: [Stripe; STRIPES],
}

/// Proof that its holder is inside the gate.
pub(crate) struct FreezeGuard<'a>(&'a RangeGate);

impl Drop for FreezeGuard<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl FreezeGate {
    /// Enters; waits while the gate is closed. `hint` spreads callers: any number that differs
    /// between threads.
    pub(crate) fn enter(&self, hint: usize) -> FreezeGuard<'_> {
        let gate = &self.stripes[hint % STRIPES].0;
        gate.enter();
        FreezeGuard(gate)
    }

    /// Enters unless the gate is closed, or closing.
    pub(crate) fn try_enter(&self, hint: usize) -> Option<FreezeGuard<'_>> {
        let gate = &self.stripes[hint % STRIPES].0;
        // Not made where it did not enter: its end is a leave.
        gate.try_enter().then(|| FreezeGuard(gate))
    }

    /// Waits until the gate is empty and keeps all threads out. One at a time: the caller
    /// holds the domain's lock.
    pub(crate) fn close(&self) {
        for stripe in &self.stripes {
            stripe.0.close();
        }
    }

    /// Returns true if the gate is closed, or about to be, for this caller.
    pub(crate) fn closing(&self, hint: usize) -> bool {
        self.stripes[hint % STRIPES].0.closing()
    }

    /// Admits threads again.
    pub(crate) fn open(&self) {
        for stripe in &self.stripes {
            stripe.0.open();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_finds_the_gate_closed_leaves_it_as_it_was() {
        let gate = FreezeGate::default();
        gate.close();
        assert!(gate.try_enter(3).is_none());
        gate.open();
        assert!(gate.try_enter(3).is_some());
        // Empty again: this would wait for ever.
        gate.close();
    }
}
