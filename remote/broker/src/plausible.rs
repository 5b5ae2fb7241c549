//! What the election takes of another host's message: a member may be hostile, or another program.

use remote_policy::election::Message;
use remote_policy::identity::HostId;

/// A broker's epoch is at most so far beyond the one that is held here: elections count by one, and etcd by revisions. So
/// no message of a host uses the numbers up.
const MAX_ADVANCE: u64 = 1 << 32;

/// The message, where a broker could have the epoch that it names, beside the number `held` here. Of a concession only the
/// servers that are known here: a claim reaches no others.
pub fn plausible(
    mut message: Message,
    held: u64,
    is_known: impl Fn(HostId) -> bool,
) -> Option<Message> {
    let epoch = match &mut message {
        Message::Concede {
            epoch,
            loser,
            servers,
        } => {
            servers.retain(|server| is_known(*server));
            // A host concedes its own epoch alone.
            if epoch.broker.host != *loser {
                return None;
            }
            epoch
        }
        Message::Claim { epoch } | Message::Granted { epoch } => epoch,
        Message::Rejected { held } => held,
        Message::Bid(_) | Message::Redirect { .. } => return Some(message),
    };
    (epoch.number <= held.saturating_add(MAX_ADVANCE)).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use remote_policy::identity::{Epoch, Incarnation};
    use std::collections::BTreeSet;

    fn epoch(number: u64, host: u64) -> Epoch {
        let broker = Incarnation::new(HostId(host), 1, 1);
        Epoch { number, broker }
    }

    #[test]
    fn epochs_far_beyond_the_one_held_are_dropped() {
        let claim = |number| Message::Claim {
            epoch: epoch(number, 7),
        };
        let taken = |number, held| plausible(claim(number), held, |_| true).is_some();
        assert!(taken(1, 0) && taken(5, 1 << 60) && taken(MAX_ADVANCE + 3, 3));
        assert!(!taken(MAX_ADVANCE + 4, 3) && !taken(u64::MAX, 0));
        assert!(taken(u64::MAX, u64::MAX - 1));
    }

    #[test]
    fn a_host_concedes_its_own_epoch_and_servers_that_are_known() {
        let concession = |loser| Message::Concede {
            loser: HostId(loser),
            epoch: epoch(3, 7),
            servers: BTreeSet::from([1, 2, 99].map(HostId)),
        };
        let is_known = |host: HostId| host.0 < 9;
        assert!(plausible(concession(8), 3, is_known).is_none());
        let Some(Message::Concede { servers, .. }) = plausible(concession(7), 3, is_known) else {
            panic!("its own");
        };
        assert_eq!(servers, BTreeSet::from([1, 2].map(HostId)));
    }
}
