//! What contracts that have ended used ahead of their shares.
//!
//! Not in the paper. A client may use its slice at the beginning of its period. If its share were free as soon as it
//! ends, the next client, which may be the same one, would begin with a whole slice at once, and the time would be
//! given twice: a client that leaves and comes back would have the disk to itself.
//!
//! Rule: the time that an ended contract used ahead is taken from what is promised next: of its share until that time would have
//! come at an even pace. A contract that needs the share begins then.

use super::client::Client;
use super::contract::Utilization;
use crate::time::{Nanos, Time};

/// One transaction may cost hundreds of slices of a small contract. Beyond the period no contract waits longer than this for time
/// that another used: the time is taken from a larger share.
const LONGEST_DEBT: Nanos = Nanos::seconds(1);

/// The contracts that have ended ahead of their shares.
#[derive(Debug, Default)]
pub(super) struct EndedContracts {
    /// Until when shares are taken, the soonest first.
    shares: Vec<(Time, Utilization)>,
}

impl EndedContracts {
    /// Adds a client's contract, which ends now.
    pub(super) fn enter(&mut self, now: Time, client: &Client) {
        self.shares.retain(|(until, _)| *until > now);
        let even = client.even_at();
        let until = even.min(client.deadline.max(now + LONGEST_DEBT));
        if client.totals.periods > 0 && until > now {
            let ahead = client.share().in_period(even - now);
            let place = self.shares.partition_point(|(other, _)| *other <= until);
            self.shares
                .insert(place, (until, Utilization::of(ahead, until - now)));
        }
    }

    /// When a share of `asked` is free, where contracts leave `spare` of the capacity, at least as much.
    pub(super) fn free_at(&self, now: Time, asked: Utilization, spare: Utilization) -> Time {
        let mut at = now;
        let taken = self.shares.iter().filter(|(until, _)| *until > now);
        let mut needed = taken.clone().fold(asked, |sum, (_, share)| sum + *share);
        for (until, share) in taken {
            if needed <= spare {
                break;
            }
            needed = needed - *share;
            at = *until;
        }
        at
    }
}
