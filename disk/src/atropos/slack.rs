//! Slack: time that no slice covers, shared by the clients with x.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.7, which has the flag and leaves
//! the sharing open. By earliest deadline, one backlogged client could get all of it; by turns, a
//! client that was promised a tenth would get as much as one promised half. So slack is shared in
//! proportion to the promised share.
//!
//! Rule: each client has a virtual time, its slack time divided by its share; the lowest goes next.
//! A client that returns to the sharing starts at the virtual time served last, so that idle time
//! saves up nothing.

use super::contract::{DiskContract, Utilization};
use crate::time::Nanos;

/// The share of a client that has no slice, for slack.
const WITHOUT_SLICE: Utilization = Utilization::percent(1);

/// A client's position in the sharing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VirtualTime {
    value: u128,
    /// Index in the list of sharing clients; none while the client does not share.
    at: Option<u32>,
}

/// Clients with x and work to do.
#[derive(Debug, Default)]
pub(super) struct Slack {
    sharing: Vec<u32>,
    /// The virtual time served last.
    now: u128,
}

impl Slack {
    /// Adds a client with x and work.
    pub(super) fn join(&mut self, client: u32, tag: &mut VirtualTime) {
        if tag.at.is_none() {
            tag.at = Some(self.sharing.len() as u32);
            tag.value = tag.value.max(self.now);
            self.sharing.push(client);
        }
    }

    /// Removes a client without work or x. Returns the client that moved to its index, which the
    /// caller passes to [`Slack::moved`].
    pub(super) fn leave(&mut self, tag: &mut VirtualTime) -> Option<(u32, u32)> {
        let at = tag.at.take()?;
        self.sharing.swap_remove(at as usize);
        self.sharing.get(at as usize).map(|&moved| (moved, at))
    }

    pub(super) fn moved(tag: &mut VirtualTime, at: u32) {
        tag.at = Some(at);
    }

    /// Returns true if no client has x and work.
    pub(super) fn is_empty(&self) -> bool {
        self.sharing.is_empty()
    }

    /// The client with the lowest virtual time.
    pub(super) fn least(&self, tag: impl Fn(u32) -> VirtualTime) -> Option<u32> {
        let of = |client: &&u32| tag(**client).value;
        self.sharing.iter().min_by_key(of).copied()
    }

    /// Advances a client's virtual time by a charge.
    pub(super) fn account(&mut self, tag: &mut VirtualTime, contract: DiskContract, charge: Nanos) {
        self.now = tag.value;
        let share = match contract.slice {
            Nanos::ZERO => WITHOUT_SLICE,
            _ => contract.share(),
        };
        let whole = u128::from(Utilization::WHOLE.parts());
        tag.value += u128::from(charge.0) * whole / u128::from(share.parts().max(1));
    }
}
