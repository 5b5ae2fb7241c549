//! Time that no slice covers, shared by those with x.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.7, which has the flag and
//! leaves the sharing open. Given to the earliest deadline, all of it could go to one client
//! for as long as that is backlogged; given in turn, a client that was promised a tenth would
//! get as much as one promised half. So it goes in proportion to what was promised.
//!
//! Rule: each has a tag, the slack it had divided by its share; the lowest goes next. Who
//! comes back to the sharing starts at the tag that was served last: nobody saves up.

use super::contract::Utilization;
use crate::time::Nanos;

/// A client with a smaller share, or none, has slack as if it had this.
const MIN_UTILIZATION: Utilization = Utilization::percent(1);

/// A client's place in the sharing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VirtualTime {
    value: u64,
    /// Where it is in the list of those that share; itself it is not.
    at: Option<u32>,
}

/// Those with x and work to do.
#[derive(Debug, Default)]
pub(super) struct Slack {
    sharing: Vec<u32>,
    /// The tag served last.
    now: u64,
}

impl Slack {
    /// A client with x has work to do.
    pub(super) fn join(&mut self, client: u32, tag: &mut VirtualTime) {
        if tag.at.is_none() {
            tag.at = Some(self.sharing.len() as u32);
            tag.value = tag.value.max(self.now);
            self.sharing.push(client);
        }
    }

    /// It has none, or not x. Returns who has moved to its place, which [`Slack::moved`] tells
    /// to that one's tag.
    pub(super) fn leave(&mut self, tag: &mut VirtualTime) -> Option<(u32, u32)> {
        let at = tag.at.take()?;
        self.sharing.swap_remove(at as usize);
        self.sharing.get(at as usize).map(|&moved| (moved, at))
    }

    pub(super) fn moved(tag: &mut VirtualTime, at: u32) {
        tag.at = Some(at);
    }

    /// Who goes next.
    pub(super) fn least(&self, tag: impl Fn(u32) -> VirtualTime) -> Option<u32> {
        let of = |client: &&u32| tag(**client).value;
        self.sharing.iter().min_by_key(of).copied()
    }

    /// It is served that much.
    pub(super) fn account(&mut self, tag: &mut VirtualTime, share: Utilization, charge: Nanos) {
        self.now = tag.value;
        let share = share.max(MIN_UTILIZATION).parts();
        let step =
            u128::from(charge.0) * u128::from(Utilization::WHOLE.parts()) / u128::from(share);
        tag.value = tag
            .value
            .saturating_add(u64::try_from(step).unwrap_or(u64::MAX));
    }
}
