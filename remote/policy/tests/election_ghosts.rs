//! Members that are not there: in the clear any host can name them, and each takes a bid.

mod common;

use common::incarnation;
use selfpage_remote_policy::election::{Candidate, ElectionAction, Message};
use selfpage_remote_policy::identity::HostId;

/// The hosts to which a candidate bids, one in each period.
fn bids(candidate: &mut Candidate, periods: usize) -> Vec<HostId> {
    let mut bids = Vec::new();
    for _ in 0..periods {
        bids.extend(
            candidate
                .repeat_signs()
                .into_iter()
                .filter_map(|it| match it {
                    ElectionAction::Send {
                        to,
                        message: Message::Bid(_),
                    } => Some(to),
                    _ => None,
                }),
        );
    }
    bids
}

#[test]
fn bids_go_to_the_hosts_that_are_named_first_and_then_round_all_others() {
    const GHOSTS: u64 = 1000;
    let (mut candidate, _) = Candidate::new(incarnation(GHOSTS + 1, 1), None);
    let order = [GHOSTS + 3, GHOSTS + 2].into_iter().chain(2..GHOSTS);
    let order: Vec<_> = order.map(HostId).collect();
    candidate.on_membership(order.iter().copied());
    assert_eq!(bids(&mut candidate, order.len()), order);
    assert_eq!(bids(&mut candidate, 2), order[..2]);
}

#[test]
fn a_round_of_bids_goes_on_where_it_was_when_the_members_change() {
    let (mut candidate, _) = Candidate::new(incarnation(0, 1), None);
    let hosts = |numbers: &[u64]| numbers.iter().copied().map(HostId).collect::<Vec<_>>();
    candidate.on_membership(hosts(&[5, 4, 3, 2]));
    assert_eq!(bids(&mut candidate, 2), hosts(&[5, 4]));
    candidate.on_membership(hosts(&[9, 5, 4, 3, 2]));
    assert_eq!(bids(&mut candidate, 3), hosts(&[3, 2, 9]));
}

#[test]
fn a_round_of_bids_goes_on_behind_a_host_that_comes_and_goes() {
    let hosts = |numbers: &[u64]| numbers.iter().copied().map(HostId).collect::<Vec<_>>();
    let leave: [fn(&mut Candidate); 2] = [
        |candidate| drop(candidate.on_host_gone(HostId(4))),
        |candidate| candidate.on_membership([5, 3, 2].map(HostId)),
    ];
    for leave in leave {
        let (mut candidate, _) = Candidate::new(incarnation(0, 1), None);
        candidate.on_membership(hosts(&[5, 4, 3, 2]));
        assert_eq!(bids(&mut candidate, 2), hosts(&[5, 4]));
        leave(&mut candidate);
        assert_eq!(bids(&mut candidate, 1), hosts(&[3]));
        candidate.on_membership(hosts(&[5, 4, 3, 2]));
        assert_eq!(bids(&mut candidate, 2), hosts(&[2, 5]));
    }
}
