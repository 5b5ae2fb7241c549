//! Elections by a lease in a store, under lost messages, stores that change their mind and hosts that know nothing
//! of it.

mod common;

use common::{epoch, incarnation};
use proptest::prelude::*;
use selfpage_remote_policy::election::{ElectionAction, LeasedAction, LeasedCandidate, Message};
use selfpage_remote_policy::identity::{Epoch, HostId};
use std::collections::{BTreeMap, VecDeque};

const HOSTS: u64 = 4;

/// A store with one lease.
#[derive(Default)]
struct Store {
    revision: u64,
    holder: Option<(u64, u64)>,
}

impl Store {
    /// The lease goes to another host.
    fn give_to(&mut self, host: u64) {
        self.revision += 1;
        self.holder = Some((host, self.revision));
    }
}

struct Group {
    candidates: Vec<LeasedCandidate>,
    store: Store,
    waiting: VecDeque<(HostId, HostId, Message)>,
    /// What each host asked the store to confirm.
    above: Vec<u64>,
    /// Epochs that were led, and by whom.
    led: BTreeMap<Epoch, HostId>,
    /// How often a lease was offered.
    offers: usize,
}

impl Group {
    fn new() -> Self {
        let candidate = |host| {
            let mut candidate = LeasedCandidate::new(incarnation(host, 1));
            let actions = candidate.on_membership((0..HOSTS).map(HostId));
            assert!(actions.is_empty());
            candidate
        };
        Self {
            candidates: (0..HOSTS).map(candidate).collect(),
            store: Store::default(),
            waiting: VecDeque::new(),
            above: vec![0; HOSTS as usize],
            led: BTreeMap::new(),
            offers: 0,
        }
    }

    fn act(&mut self, host: u64, actions: Vec<LeasedAction>) {
        let own = HostId(host);
        for action in actions {
            match action {
                LeasedAction::Election(ElectionAction::Send { to, message }) => {
                    self.waiting.push_back((own, to, message));
                }
                LeasedAction::Election(ElectionAction::Lead(epoch)) => {
                    let leader = self.led.insert(epoch, own);
                    assert!(leader.is_none_or(|it| it == own), "{epoch} has two brokers");
                }
                LeasedAction::Election(_) => {}
                LeasedAction::ConfirmAbove(number) => {
                    let above = &mut self.above[host as usize];
                    *above = number.max(*above);
                }
                LeasedAction::EndLeaseOf(ended) => {
                    if self.store.holder.is_some_and(|(it, _)| HostId(it) == ended) {
                        self.store.give_to(host);
                    }
                }
                LeasedAction::OfferLease => {
                    self.offers += 1;
                    self.store.holder.take_if(|(it, _)| *it == host);
                }
            }
        }
    }

    /// A host reads the store.
    fn read(&mut self, host: u64) {
        let Some((holder, revision)) = self.store.holder else {
            return;
        };
        let candidate = &mut self.candidates[host as usize];
        let actions = match holder == host {
            true => candidate.on_elected(revision.max(self.above[host as usize] + 1)),
            false => candidate.on_leader(HostId(holder)),
        };
        self.act(host, actions);
    }

    fn tick(&mut self, host: u64) {
        let actions = self.candidates[host as usize].on_tick();
        self.act(host, actions);
    }

    /// The oldest message arrives, or is lost.
    fn deliver(&mut self, arrives: bool) {
        if let Some((from, to, message)) = self.waiting.pop_front()
            && arrives
        {
            let candidate = &mut self.candidates[to.0 as usize];
            let before = candidate.held();
            let actions = candidate.on_message(from, &message);
            assert!(candidate.held() >= before, "a server's epoch went back");
            self.act(to.0, actions);
        }
    }

    /// Everything arrives, and each host reads the store, for some periods.
    fn settle(&mut self) {
        for _ in 0..4 {
            for host in 0..HOSTS {
                self.read(host);
                self.tick(host);
            }
            while !self.waiting.is_empty() {
                self.deliver(true);
            }
        }
    }

    fn assert_one_broker(&self) {
        let (holder, _) = self.store.holder.unwrap();
        let holder = &self.candidates[holder as usize];
        let (led, servers) = holder.leads().expect("the lease's holder leads");
        assert_eq!(servers.count() as u64, HOSTS);
        for candidate in &self.candidates {
            assert_eq!(candidate.held(), led);
            assert_eq!(candidate.broker(), Some((led.broker.host, led)));
        }
        let leaders = self.candidates.iter().filter(|it| it.leads().is_some());
        assert_eq!(leaders.count(), 1);
    }
}

proptest! {
    #[test]
    fn the_holder_is_the_one_broker_after_any_steps(
        steps in prop::collection::vec((0u8..6, 0..HOSTS), 0..200), last in 0..HOSTS,
    ) {
        let mut group = Group::new();
        for (step, host) in steps {
            match step {
                0 => group.store.give_to(host),
                // The store begins again with no data.
                1 if host == 0 => group.store = Store::default(),
                1 | 2 => group.read(host),
                3 => group.tick(host),
                4 => group.deliver(false),
                _ => (0..=host).for_each(|_| group.deliver(true)),
            }
        }
        group.store.give_to(last);
        group.settle();
        group.assert_one_broker();
    }
}

#[test]
fn a_broker_without_its_lease_is_refused_by_servers_of_the_next() {
    let mut group = Group::new();
    group.store.give_to(0);
    group.settle();
    group.store.give_to(1);
    for host in 1..HOSTS {
        group.read(host);
        group.tick(host);
    }
    // The earlier broker has not read the store, and claims once more before the later one's claims arrive there.
    group.waiting.retain(|(_, to, _)| *to != HostId(0));
    while !group.waiting.is_empty() {
        group.deliver(true);
    }
    let (earlier, _) = group.candidates[0].leads().expect("it still leads");
    let answers = group.candidates[2].on_message(HostId(0), &Message::Claim { epoch: earlier });
    let held = group.candidates[2].held();
    assert_eq!(held.broker.host, HostId(1));
    let refusal = ElectionAction::Send {
        to: HostId(0),
        message: Message::Rejected { held },
    };
    assert_eq!(answers, [LeasedAction::Election(refusal)]);
}

#[test]
fn the_end_of_the_brokers_process_ends_its_lease() {
    let mut group = Group::new();
    group.store.give_to(0);
    group.settle();
    let actions = group.candidates[1].on_host_gone(HostId(0));
    assert_eq!(actions, [LeasedAction::EndLeaseOf(HostId(0))]);
    assert_eq!(group.candidates[1].broker(), None);
    // The end of another host's process is no news of the lease.
    assert_eq!(group.candidates[2].on_host_gone(HostId(3)), []);
}

/// Has time pass for a host that no other one answers.
fn pass_alone(group: &mut Group, host: u64, ticks: usize) {
    for _ in 0..ticks {
        group.tick(host);
        group.waiting.clear();
    }
}

#[test]
fn a_broker_that_no_other_host_answers_offers_its_lease_once() {
    let mut group = Group::new();
    group.store.give_to(0);
    group.settle();
    pass_alone(&mut group, 0, 10);
    assert_eq!((group.offers, group.store.holder.is_some()), (0, true));
    pass_alone(&mut group, 0, 10);
    assert_eq!((group.offers, group.store.holder), (1, None));
    assert!(
        group.candidates[0].leads().is_some(),
        "until another has it"
    );
    // No other host takes it.
    group.store.give_to(0);
    group.read(0);
    pass_alone(&mut group, 0, 100);
    assert_eq!((group.offers, group.store.holder.is_some()), (1, true));
    // They are back, and go again.
    group.candidates[0].on_membership([]);
    group.candidates[0].on_membership((1..HOSTS).map(HostId));
    group.settle();
    pass_alone(&mut group, 0, 20);
    assert_eq!(group.offers, 2);
    group.store.give_to(1);
    group.settle();
    group.assert_one_broker();
}

#[test]
fn a_broker_whose_other_hosts_have_ended_keeps_its_lease() {
    let mut group = Group::new();
    group.store.give_to(0);
    group.settle();
    for host in 1..HOSTS {
        let actions = group.candidates[0].on_host_gone(HostId(host));
        group.act(0, actions);
    }
    pass_alone(&mut group, 0, 100);
    assert_eq!((group.offers, group.store.holder.is_some()), (0, true));
}

#[test]
fn claims_in_the_name_of_others_and_messages_of_the_tournament_change_nothing() {
    let mut candidate = LeasedCandidate::new(incarnation(0, 1));
    let before = candidate.clone();
    let forged = Message::Claim { epoch: epoch(9, 2) };
    assert_eq!(candidate.on_message(HostId(1), &forged), []);
    let redirect = Message::Redirect { broker: HostId(1) };
    assert_eq!(candidate.on_message(HostId(1), &redirect), []);
    assert_eq!(candidate, before);
}
