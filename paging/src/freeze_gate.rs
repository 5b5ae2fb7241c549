//! The domain's gate: every fault passes it, a fork or the end of a stretch closes it.
//!
//! Striped, so that threads that fault at once do not meet on one cache line.

use crate::page::RangeGate;

const STRIPES: usize = 16;

#[repr(align(128))]
#[derive(Default)]
struct Stripe(RangeGate);

/// Many may be inside; whoever closes it waits until nobody is.
#[derive(Default)]
pub(crate) struct DomainGate {
    stripes: [Stripe; STRIPES],
}

/// Shows that its holder is inside the gate.
pub(crate) struct Inside<'a>(&'a RangeGate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl DomainGate {
    /// Goes in, waiting while the gate is closed. `hint` spreads callers: any number
    /// that differs between threads.
    pub(crate) fn enter(&self, hint: usize) -> Inside<'_> {
        let gate = &self.stripes[hint % STRIPES].0;
        gate.enter();
        Inside(gate)
    }

    /// Goes in unless the gate is closed, or closing.
    pub(crate) fn try_enter(&self, hint: usize) -> Option<Inside<'_>> {
        let gate = &self.stripes[hint % STRIPES].0;
        gate.try_enter().then_some(Inside(gate))
    }

    /// Waits until nobody is inside and keeps everyone out. One at a time: the caller
    /// holds the domain's lock.
    pub(crate) fn close(&self) {
        for stripe in &self.stripes {
            stripe.0.close();
        }
    }

    /// Whether the gate is closed, or about to be, for this caller.
    pub(crate) fn closing(&self, hint: usize) -> bool {
        self.stripes[hint % STRIPES].0.closing()
    }

    /// Lets everyone in again.
    pub(crate) fn open(&self) {
        for stripe in &self.stripes {
            stripe.0.open();
        }
    }
}
