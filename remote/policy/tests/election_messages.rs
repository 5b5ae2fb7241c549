//! How many messages an election costs.

use selfpage_remote_policy::election::{Candidate, ElectionAction, Message};
use selfpage_remote_policy::identity::{HostId, Incarnation};
use std::collections::VecDeque;

const HOSTS: u64 = 200;

fn incarnation(host: u64) -> Incarnation {
    Incarnation::new(HostId(host), 1, 1)
}

/// Messages of a kind.
#[derive(Default)]
struct Sent {
    claims: u64,
    all: u64,
    queue: VecDeque<(HostId, HostId, Message)>,
}

impl Sent {
    fn enter(&mut self, from: HostId, actions: Vec<ElectionAction>) {
        for action in actions {
            if let ElectionAction::Send { to, message } = action {
                self.all += 1;
                self.claims += u64::from(matches!(message, Message::Claim { .. }));
                self.queue.push_back((from, to, message));
            }
        }
    }
}

#[test]
fn a_tournament_of_many_costs_each_host_some_messages_and_not_one_for_each_other_host() {
    let hosts = || (0..HOSTS).map(HostId);
    let mut candidates: Vec<_> = hosts()
        .map(|host| Candidate::new(incarnation(host.0), None).0)
        .collect();
    let mut sent = Sent::default();
    for candidate in &mut candidates {
        candidate.on_membership(hosts());
        sent.enter(candidate.host(), candidate.on_tick());
    }
    while let Some((from, to, message)) = sent.queue.pop_front() {
        let actions = candidates[to.0 as usize].on_message(from, message);
        sent.enter(to, actions);
    }
    let winner = candidates[0].held();
    assert!(
        candidates
            .iter()
            .all(|candidate| candidate.held() == winner)
    );
    // The winner raises its epoch at the first concession, and claims what it has then.
    assert!(sent.claims <= 2 * HOSTS, "{} claims", sent.claims);
    assert!(sent.all <= 8 * HOSTS, "{} messages", sent.all);
}

#[test]
fn a_bid_that_followers_lead_to_each_other_ends() {
    let hosts = [1, 2, 3].map(HostId);
    let [mut one, mut other, mut broker] =
        [1, 2, 3].map(|host| Candidate::new(incarnation(host), None).0);
    // Each of the first two has lost to the other.
    let claim = |by: &Candidate| Message::Claim { epoch: by.held() };
    let claims = [claim(&one), claim(&other)];
    one.on_message(HostId(2), claims[1].clone());
    other.on_message(HostId(1), claims[0].clone());
    let mut sent = Sent::default();
    for _ in 0..2 {
        broker.on_membership(hosts);
        sent.enter(HostId(3), broker.on_tick());
        while let Some((from, to, message)) = sent.queue.pop_front() {
            assert!(sent.all < 100, "{message:?} from {from:?} to {to:?}");
            let candidate = match to.0 {
                1 => &mut one,
                2 => &mut other,
                _ => &mut broker,
            };
            let actions = candidate.on_message(from, message);
            sent.enter(to, actions);
        }
    }
}
