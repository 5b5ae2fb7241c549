//! The server that a broker chooses by its indices is the one that a scan of all servers gives.

mod common;

use common::{config, epoch, incarnation, request};
use proptest::prelude::*;
use selfpage_remote_policy::broker::{
    AllocationRequest, Broker, BrokerAction, MAX_CHOICES, ReallocationRequest, ServerAnswer,
};
use selfpage_remote_policy::capacity::{AllocateError, ServerCapacity};
use selfpage_remote_policy::identity::{HostId, RequestId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const CLIENTS: u64 = 3;

struct Group {
    broker: Broker,
    servers: BTreeMap<HostId, ServerCapacity>,
}

impl Group {
    fn new(pages: &[u64]) -> Self {
        let mut broker = Broker::new(epoch(1, 1));
        let mut servers = BTreeMap::new();
        for (host, pages) in (1..).zip(pages) {
            let mut server = ServerCapacity::new(config(), incarnation(host, 0), *pages);
            for client in 0..CLIENTS {
                server
                    .on_contact(incarnation(100 + client, 0), Duration::ZERO)
                    .unwrap();
            }
            broker.on_report(&server.grant_to(broker.epoch()).unwrap());
            servers.insert(HostId(host), server);
        }
        Self { broker, servers }
    }

    /// The rule, by a scan: hints in their order, servers in use, most space, the lowest host.
    fn scanned(&self, asked: &AllocationRequest) -> Option<HostId> {
        let client = asked.permit.id.client;
        let fits = |(host, server): &(&HostId, &ServerCapacity)| {
            !asked.exclude.contains(host) && server.lendable_pages() >= asked.permit.pages
        };
        let rank = |(host, server): &(&HostId, &ServerCapacity)| {
            let hint = asked.hints.iter().position(|hint| hint == *host);
            let is_used = server
                .report()
                .permits
                .iter()
                .any(|permit| permit.client == client);
            let lendable = Reverse(server.lendable_pages());
            (hint.unwrap_or(usize::MAX), !is_used, lendable, **host)
        };
        let best = self.servers.iter().filter(fits).min_by_key(rank);
        best.map(|(host, _)| *host)
    }

    /// Carries out an operation at its server.
    fn run(&mut self, action: BrokerAction) -> Option<HostId> {
        let (server, id, result) = match action {
            BrokerAction::Allocate {
                server,
                epoch,
                request,
            } => {
                let capacity = self.servers.get_mut(&server).unwrap();
                (server, request.id, capacity.allocate(epoch, &request))
            }
            BrokerAction::Reallocate {
                server,
                epoch,
                request,
            } => {
                let capacity = self.servers.get_mut(&server).unwrap();
                let permit = request.permit;
                (
                    server,
                    request.id,
                    capacity.reallocate(epoch, request.id, permit, request.pages),
                )
            }
            _ => return None,
        };
        let update = self.servers[&server].update();
        let answer = match result {
            Ok(permit) => ServerAnswer::Permit { permit, update },
            Err(AllocateError::Pages { .. }) => ServerAnswer::Refused,
            Err(_) => ServerAnswer::Unable,
        };
        self.broker.on_answer(server, id, answer);
        Some(server)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        client: u64,
        pages: u64,
        hints: Vec<u64>,
        exclude: Vec<u64>,
    },
    Enlarge {
        permit: prop::sample::Index,
        pages: u64,
    },
    Release {
        permit: prop::sample::Index,
    },
    Lose {
        server: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let hosts = || prop::collection::vec(1..7u64, 0..3);
    prop_oneof![
        4 => (0..CLIENTS, 1..120u64, hosts(), hosts()).prop_map(|(client, pages, hints, exclude)| {
            Step::Allocate { client, pages, hints, exclude }
        }),
        2 => (any::<prop::sample::Index>(), 1..200u64).prop_map(|(permit, pages)| Step::Enlarge { permit, pages }),
        1 => any::<prop::sample::Index>().prop_map(|permit| Step::Release { permit }),
        1 => (1..7u64).prop_map(|server| Step::Lose { server }),
    ]
}

proptest! {
    #[test]
    fn the_indices_give_the_server_that_a_scan_gives(
        pages in prop::collection::vec(100..600u64, 1..7),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut group = Group::new(&pages);
        for (number, step) in (1..).zip(steps) {
            let held: Vec<_> = group.broker.permits().copied().collect();
            match step {
                Step::Allocate { client, pages, hints, exclude } => {
                    let asked = AllocationRequest {
                        permit: request(incarnation(100 + client, 0), number, pages),
                        hints: hints.into_iter().map(HostId).collect(),
                        exclude: exclude.into_iter().map(HostId).collect::<BTreeSet<_>>(),
                    };
                    let scanned = group.scanned(&asked);
                    let action = group.broker.allocate(asked.clone());
                    prop_assert_eq!(group.run(action), scanned);
                    // A copy of it gets the permit that was issued, and no other.
                    let again = group.broker.allocate(asked);
                    let is_same = matches!(again, BrokerAction::SendPermit { .. });
                    prop_assert_eq!(is_same, scanned.is_some());
                }
                Step::Enlarge { permit, pages } if !held.is_empty() => {
                    let permit = permit.get(&held);
                    let id = RequestId { client: permit.client, number };
                    let action = group.broker.reallocate(ReallocationRequest { id, permit: permit.id, pages });
                    group.run(action);
                }
                Step::Release { permit } if !held.is_empty() => {
                    let id = permit.get(&held).id;
                    let server = group.servers.get_mut(&id.server).unwrap();
                    server.release(id);
                    group.broker.on_report(&server.report());
                }
                Step::Lose { server } => {
                    let server = HostId(server);
                    group.broker.on_server_lost(server);
                    group.servers.remove(&server);
                }
                Step::Enlarge { .. } | Step::Release { .. } => {}
            }
        }
    }
}

#[test]
fn a_request_with_more_servers_than_a_client_chooses_among_is_no_message() {
    let read = |hints: usize, exclude: usize| {
        let hosts = |count| (0..count as u64).map(HostId);
        let sent = AllocationRequest {
            permit: request(incarnation(7, 0), 1, 1),
            hints: hosts(hints).collect(),
            exclude: hosts(exclude).collect(),
        };
        let bytes = postcard::to_stdvec(&sent).unwrap();
        let read = postcard::from_bytes::<AllocationRequest>(&bytes);
        read.is_ok_and(|read| read == sent)
    };
    assert!(read(MAX_CHOICES, MAX_CHOICES));
    assert!(!read(MAX_CHOICES + 1, 0) && !read(0, MAX_CHOICES + 1));
}
