//! Two brokers at once are model-checked: a server that changes hands, requests that are lost,
//! late and repeated. Capacity is never promised twice, and a client's request gets one permit.

mod common;

use common::{config, epoch, incarnation, request};
use selfpage_remote_policy::broker::{AllocationRequest, Broker, BrokerAction, ServerAnswer};
use selfpage_remote_policy::capacity::{AllocateError, ServerCapacity};
use selfpage_remote_policy::identity::{Epoch, HostId, RequestId};
use stateright::{Checker, Model, Property};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The server has room for one request.
const OWNED_PAGES: u64 = 1000;
const PAGES: u64 = 900;

/// A message to the server, or its answer to broker 0 or 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Packet {
    Action(usize, BrokerAction),
    Answer(usize, RequestId, ServerAnswer),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    server: ServerCapacity,
    brokers: [Broker; 2],
    claims: [u64; 2],
    network: Vec<Packet>,
    /// Requests that the client has yet to make, by number, with the broker that it knows.
    requested: BTreeSet<(u64, usize)>,
    duplicates: u8,
    permits: BTreeMap<RequestId, BTreeSet<u64>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Claim(usize),
    Request(u64, usize),
    Deliver(usize),
    Duplicate(usize),
    Lose(usize),
}

struct TwoBrokers {
    claims: u64,
    requests: u64,
    duplicates: u8,
}

fn epoch_of(broker: usize, claims: u64) -> Epoch {
    epoch(claims, broker as u64 + 1)
}

impl State {
    fn deliver(&mut self, packet: Packet) {
        let (to, actions) = match packet {
            Packet::Action(from, action) => {
                let BrokerAction::Allocate { epoch, request, .. } = action else {
                    return;
                };
                let answer = match self.server.allocate(epoch, &request) {
                    Ok(permit) => {
                        self.permits
                            .entry(request.id)
                            .or_default()
                            .insert(permit.id.number);
                        let update = self.server.update();
                        ServerAnswer::Permit { permit, update }
                    }
                    Err(AllocateError::Epoch(error)) => {
                        ServerAnswer::WrongEpoch { held: error.held }
                    }
                    Err(AllocateError::Pages { .. }) => ServerAnswer::Refused,
                    Err(_) => ServerAnswer::Unable,
                };
                self.network.push(Packet::Answer(from, request.id, answer));
                return;
            }
            Packet::Answer(to, id, answer) => {
                (to, self.brokers[to].on_answer(HostId(9), id, answer))
            }
        };
        self.enqueue(to, actions);
    }

    fn enqueue(&mut self, from: usize, actions: Vec<BrokerAction>) {
        let for_server = |action: &BrokerAction| matches!(action, BrokerAction::Allocate { .. });
        let actions = actions.into_iter().filter(for_server);
        self.network
            .extend(actions.map(|action| Packet::Action(from, action)));
    }
}

impl Model for TwoBrokers {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut server = ServerCapacity::new(config(), incarnation(9, 0), OWNED_PAGES);
        server
            .on_contact(incarnation(7, 0), Duration::ZERO)
            .unwrap();
        vec![State {
            server,
            brokers: [0, 1].map(|broker| Broker::new(epoch_of(broker, 0))),
            claims: [0, 0],
            network: Vec::new(),
            requested: BTreeSet::new(),
            duplicates: self.duplicates,
            permits: BTreeMap::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for broker in 0..2 {
            if state.claims[broker] < self.claims {
                actions.push(Action::Claim(broker));
            }
            let unmade =
                (1..=self.requests).filter(|number| !state.requested.contains(&(*number, broker)));
            actions.extend(unmade.map(|number| Action::Request(number, broker)));
        }
        for index in 0..state.network.len() {
            actions.push(Action::Deliver(index));
            if state.duplicates > 0 {
                actions.push(Action::Duplicate(index));
                actions.push(Action::Lose(index));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Claim(broker) => {
                state.claims[broker] += 1;
                // Each claims above the other's last epoch, so the server changes hands each time.
                let number = state.server.epoch().number + 1;
                let epoch = epoch_of(broker, number);
                state.brokers[broker].raise_epoch(epoch);
                let report = state.server.grant_to(epoch).ok()?;
                state.brokers[broker].on_report(&report);
            }
            Action::Request(number, broker) => {
                state.requested.insert((number, broker));
                let request = AllocationRequest {
                    permit: request(incarnation(7, 0), number, PAGES),
                    hints: Vec::new(),
                    exclude: BTreeSet::new(),
                };
                let action = state.brokers[broker].allocate(request);
                state.enqueue(broker, vec![action]);
            }
            Action::Deliver(index) => {
                let packet = state.network.remove(index);
                state.deliver(packet);
            }
            Action::Duplicate(index) => {
                state.duplicates -= 1;
                let packet = state.network[index].clone();
                state.deliver(packet);
            }
            Action::Lose(index) => {
                state.duplicates -= 1;
                state.network.remove(index);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("capacity is promised once", |_, state: &State| {
                state.server.granted_pages() + config().lend_above_pages <= OWNED_PAGES
            }),
            Property::always("a request gets one permit", |_, state: &State| {
                state.permits.values().all(|numbers| numbers.len() == 1)
            }),
            Property::always(
                "a broker has only permits that their servers issued",
                |_, state: &State| {
                    let issued: BTreeSet<_> = state.permits.values().flatten().copied().collect();
                    let known = state.brokers.iter().flat_map(Broker::permits);
                    known
                        .map(|permit| permit.id.number)
                        .all(|number| issued.contains(&number))
                },
            ),
            Property::sometimes("the server lends all it can", |_, state: &State| {
                state.permits.len() == 1
            }),
        ]
    }
}

#[test]
fn two_brokers_at_once_promise_nothing_twice() {
    let model = TwoBrokers {
        claims: 2,
        requests: 2,
        duplicates: 1,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
#[ignore = "a larger model, for a change of broker or capacity"]
fn brokers_that_take_a_server_from_each_other_promise_nothing_twice() {
    let model = TwoBrokers {
        claims: 2,
        requests: 3,
        duplicates: 1,
    };
    model
        .checker()
        .threads(2)
        .spawn_bfs()
        .join()
        .assert_properties();
}
