//! Late binding, the cheapest step first; moves for space and for latency.

mod common;

use common::{SECOND, config, epoch, incarnation, object, slack};
use proptest::prelude::*;
use selfpage_remote_policy::broker::{AllocationRequest, ReallocationRequest, Refusal};
use selfpage_remote_policy::capacity::{PermitRequest, ServerCapacity};
use selfpage_remote_policy::identity::{HostId, ObjectId, RequestId};
use selfpage_remote_policy::organizer::{AbdicateAnswer, KeepReason, Organizer, OrganizerAction};
use selfpage_remote_policy::permit::{Permit, PermitId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const CLIENT: u64 = 7;
const REFUSED: Refusal = Refusal::Pages {
    asked: 1,
    most: 0,
    servers: 1,
};

fn organizer() -> Organizer {
    Organizer::new(incarnation(CLIENT, 0), slack())
}

fn permit(server: u64, granted_pages: u64) -> Permit {
    Permit {
        id: PermitId {
            server: HostId(server),
            number: 1,
        },
        object: None,
        granted_pages,
        epoch: epoch(1, 1),
        client: incarnation(CLIENT, 0),
        qos: slack(),
    }
}

fn paging_object(number: u64) -> ObjectId {
    object(CLIENT, number)
}

fn place(organizer: &mut Organizer, number: u64, pages: u64, now: Duration) -> OrganizerAction {
    organizer.place(paging_object(number), pages, &BTreeSet::new(), now)
}

fn allocation(action: OrganizerAction) -> AllocationRequest {
    match action {
        OrganizerAction::Allocate(request) => request,
        other => panic!("expected a request for a permit: {other:?}"),
    }
}

fn reallocation(action: OrganizerAction) -> ReallocationRequest {
    match action {
        OrganizerAction::Reallocate(request) => request,
        other => panic!("expected a request for a larger permit: {other:?}"),
    }
}

/// An organizer with a permit at server 1, and object 1 of 800 pages there.
fn with_one_object() -> Organizer {
    let mut organizer = organizer();
    let request = allocation(place(&mut organizer, 1, 800, SECOND));
    assert_eq!(request.permit.pages, 900);
    let bound = organizer.on_permit(request.permit.id, permit(1, 900), SECOND);
    let id = permit(1, 0).id;
    assert_eq!(
        bound,
        Some(OrganizerAction::Bind {
            object: paging_object(1),
            permit: id
        })
    );
    organizer
}

#[test]
fn a_permits_spare_pages_come_first_then_a_larger_one_then_a_new_one() {
    let mut organizer = with_one_object();
    let id = permit(1, 0).id;
    let small = place(&mut organizer, 2, 100, SECOND);
    assert_eq!(
        small,
        OrganizerAction::Bind {
            object: paging_object(2),
            permit: id
        }
    );
    let larger = reallocation(place(&mut organizer, 3, 80, SECOND));
    assert_eq!((larger.permit, larger.pages), (id, 980 + 122));
    let new = allocation(organizer.on_refused(larger.id, REFUSED, SECOND).unwrap());
    assert_eq!(new.permit.pages, 80 + 16);
    assert_eq!(new.exclude, BTreeSet::from([HostId(1)]));
    let gone = organizer.on_refused(new.permit.id, REFUSED, SECOND);
    assert_eq!(
        gone,
        Some(OrganizerAction::GiveUp {
            object: paging_object(3),
            why: REFUSED
        })
    );
}

#[test]
fn the_second_copy_goes_to_another_server() {
    let mut organizer = with_one_object();
    let request = allocation(place(&mut organizer, 1, 800, SECOND));
    assert!(request.exclude.contains(&HostId(1)));
    organizer.on_permit(request.permit.id, permit(2, 900), SECOND);
    assert!(
        organizer
            .servers_of(paging_object(1))
            .eq([HostId(1), HostId(2)])
    );
}

#[test]
fn an_abdicate_request_for_an_object_in_use_is_ignored() {
    let mut organizer = with_one_object();
    let ask = |organizer: &mut Organizer, server, number, now| {
        organizer.on_abdicate_request(HostId(server), paging_object(number), now)
    };
    assert_eq!(
        ask(&mut organizer, 2, 1, SECOND),
        AbdicateAnswer::Kept(KeepReason::NotThere)
    );
    organizer.on_fault(paging_object(1), 5 * SECOND);
    assert_eq!(
        ask(&mut organizer, 1, 1, 5 * SECOND),
        AbdicateAnswer::Kept(KeepReason::InUse)
    );
    let AbdicateAnswer::Accepted(action) = ask(&mut organizer, 1, 1, 9 * SECOND) else {
        panic!("an idle object moves");
    };
    let request = allocation(action);
    assert_eq!(
        ask(&mut organizer, 1, 1, 9 * SECOND),
        AbdicateAnswer::Kept(KeepReason::Moving)
    );
    let moves = organizer.on_permit(request.permit.id, permit(2, 900), 9 * SECOND);
    let (from, to) = (HostId(1), permit(2, 0).id);
    assert_eq!(
        moves,
        Some(OrganizerAction::Move {
            object: paging_object(1),
            from,
            permit: to
        })
    );
    assert_eq!(organizer.used_pages_at(HostId(1)), 800);
    organizer.on_move_ended(paging_object(1), true);
    assert_eq!(organizer.used_pages_at(HostId(1)), 0);
    assert!(organizer.servers_of(paging_object(1)).eq([HostId(2)]));
}

#[test]
fn a_revocation_moves_what_lru_size_selects() {
    let mut organizer = with_one_object();
    place(&mut organizer, 2, 60, 2 * SECOND);
    place(&mut organizer, 3, 40, 3 * SECOND);
    // 900 pages, of which 870 may stay: the idlest 800 alone exceed S of 60.
    let actions = organizer.on_revocation(HostId(1), 870, 9 * SECOND);
    let requests: Vec<_> = actions.into_iter().map(allocation).collect();
    assert_eq!(
        requests
            .iter()
            .map(|one| one.permit.pages)
            .collect::<Vec<_>>(),
        [900]
    );
    assert_eq!(organizer.on_revocation(HostId(1), 870, 9 * SECOND), []);
}

#[test]
fn objects_leave_a_server_that_is_poor_beside_a_nearer_one_and_come_back() {
    let mut organizer = with_one_object();
    let us = Duration::from_micros;
    let measure = |organizer: &mut Organizer, times: [u64; 2], now| {
        for _ in 0..40 {
            for (server, time) in (1..).zip(times) {
                organizer.on_round_trip(HostId(server), us(time), now);
            }
        }
    };
    measure(&mut organizer, [300, 200], SECOND);
    assert_eq!(organizer.improve(SECOND), []);
    measure(&mut organizer, [5000, 200], 2 * SECOND);
    let [OrganizerAction::Allocate(request)] = &organizer.improve(2 * SECOND)[..] else {
        panic!("the object stays at a poor server");
    };
    assert_eq!(request.hints, [HostId(2)]);
    organizer.on_permit(request.permit.id, permit(2, 900), 2 * SECOND);
    organizer.on_move_ended(paging_object(1), true);
    assert_eq!(organizer.improve(2 * SECOND), []);
    measure(&mut organizer, [200, 5000], 3 * SECOND);
    let (from, to) = (HostId(2), permit(1, 0).id);
    let back = OrganizerAction::Move {
        object: paging_object(1),
        from,
        permit: to,
    };
    assert_eq!(organizer.improve(3 * SECOND), [back]);
}

#[test]
fn an_object_that_outgrows_its_permit_gets_a_larger_one_or_moves() {
    let mut organizer = with_one_object();
    organizer.on_written(paging_object(1), 1000, SECOND);
    let larger = reallocation(organizer.on_full(HostId(1), paging_object(1)).unwrap());
    assert_eq!(larger.pages, 1000 + 125);
    assert_eq!(organizer.on_full(HostId(1), paging_object(1)), None);
    assert_eq!(
        organizer.on_permit(larger.id, permit(1, 1125), SECOND),
        None
    );
    organizer.on_written(paging_object(1), 2000, SECOND);
    let larger = reallocation(organizer.on_full(HostId(1), paging_object(1)).unwrap());
    let new = allocation(organizer.on_refused(larger.id, REFUSED, SECOND).unwrap());
    assert_eq!(new.permit.pages, 2250);
    let moves = organizer.on_permit(new.permit.id, permit(2, 2250), SECOND);
    assert!(
        matches!(
            moves,
            Some(OrganizerAction::Move {
                from: HostId(1),
                ..
            })
        ),
        "{moves:?}"
    );
}

#[test]
fn a_copy_that_arrives_after_its_source_died_counts() {
    let mut organizer = with_one_object();
    let AbdicateAnswer::Accepted(action) =
        organizer.on_abdicate_request(HostId(1), paging_object(1), 9 * SECOND)
    else {
        panic!("an idle object moves");
    };
    organizer.on_permit(allocation(action).permit.id, permit(2, 900), 9 * SECOND);
    assert_eq!(organizer.on_server_lost(HostId(1)), [paging_object(1)]);
    organizer.on_move_ended(paging_object(1), true);
    assert!(organizer.servers_of(paging_object(1)).eq([HostId(2)]));
    organizer.terminate(paging_object(1));
    assert_eq!(organizer.used_pages_at(HostId(2)), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Place { number: u64, pages: u64 },
    Write { number: u64, pages: u64 },
    Answer { server: u64 },
    Refuse,
    Abdicate { server: u64, number: u64 },
    Revoke { server: u64, keep_pages: u64 },
    EndMove { arrived: bool },
    Lose { server: u64 },
    Terminate { number: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0u64..5, 1u64..200).prop_map(|(number, pages)| Step::Place { number, pages }),
        1 => (0u64..5, 1u64..400).prop_map(|(number, pages)| Step::Write { number, pages }),
        4 => (1u64..5).prop_map(|server| Step::Answer { server }),
        1 => Just(Step::Refuse),
        1 => (1u64..5, 0u64..5).prop_map(|(server, number)| Step::Abdicate { server, number }),
        1 => (1u64..5, 0u64..300).prop_map(|(server, keep_pages)| Step::Revoke { server, keep_pages }),
        2 => any::<bool>().prop_map(|arrived| Step::EndMove { arrived }),
        1 => (1u64..5).prop_map(|server| Step::Lose { server }),
        1 => (0u64..5).prop_map(|number| Step::Terminate { number }),
    ];
    prop::collection::vec(step, 1..80)
}

/// An organizer and the servers that it uses; answers come in the order of the requests.
struct World {
    organizer: Organizer,
    servers: BTreeMap<HostId, ServerCapacity>,
    requests: Vec<(RequestId, Option<ReallocationRequest>, AllocationRequest)>,
    moves: Vec<ObjectId>,
    now: Duration,
}

impl World {
    fn new() -> Self {
        let servers = (1..5)
            .map(|host| (HostId(host), Self::server(host)))
            .collect();
        Self {
            organizer: organizer(),
            servers,
            requests: Vec::new(),
            moves: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn server(host: u64) -> ServerCapacity {
        let mut server = ServerCapacity::new(config(), incarnation(host, 0), 1000);
        server
            .on_contact(incarnation(CLIENT, 0), Duration::ZERO)
            .unwrap();
        server.grant_to(epoch(1, 1)).unwrap();
        server
    }

    fn take(&mut self, action: OrganizerAction) -> Result<(), TestCaseError> {
        match action {
            OrganizerAction::Bind { .. } | OrganizerAction::GiveUp { .. } => {}
            OrganizerAction::Move {
                object,
                from,
                permit,
            } => {
                prop_assert_ne!(from, permit.server);
                self.moves.push(object);
            }
            OrganizerAction::Allocate(request) => {
                self.requests.push((request.permit.id, None, request))
            }
            OrganizerAction::Reallocate(request) => {
                let placeholder = AllocationRequest {
                    permit: PermitRequest {
                        id: request.id,
                        object: None,
                        pages: request.pages,
                        qos: slack(),
                    },
                    hints: Vec::new(),
                    exclude: BTreeSet::new(),
                };
                self.requests.push((request.id, Some(request), placeholder));
            }
        }
        Ok(())
    }

    fn answer(&mut self, server: HostId) -> Option<OrganizerAction> {
        if self.requests.is_empty() {
            return None;
        }
        let (id, larger, new) = self.requests.remove(0);
        let result = match larger {
            Some(request) => {
                let capacity = self.servers.get_mut(&request.permit.server)?;
                capacity.reallocate(epoch(1, 1), id, request.permit, request.pages)
            }
            None if new.exclude.contains(&server) => {
                return self.organizer.on_refused(id, REFUSED, self.now);
            }
            None => self
                .servers
                .get_mut(&server)?
                .allocate(epoch(1, 1), &new.permit),
        };
        match result {
            Ok(permit) => self.organizer.on_permit(id, permit, self.now),
            Err(_) => self.organizer.on_refused(id, REFUSED, self.now),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        self.now += 2 * SECOND;
        let now = self.now;
        let mut actions = Vec::new();
        match step {
            Step::Place { number, pages } => {
                actions.push(place(&mut self.organizer, number, pages, now))
            }
            Step::Write { number, pages } => {
                self.organizer.on_written(paging_object(number), pages, now)
            }
            Step::Answer { server } => actions.extend(self.answer(HostId(server))),
            Step::Refuse if !self.requests.is_empty() => {
                let (id, ..) = self.requests.remove(0);
                actions.extend(self.organizer.on_refused(id, REFUSED, now));
            }
            Step::Refuse => {}
            Step::Abdicate { server, number } => {
                let answer =
                    self.organizer
                        .on_abdicate_request(HostId(server), paging_object(number), now);
                if let AbdicateAnswer::Accepted(action) = answer {
                    actions.push(action);
                }
            }
            Step::Revoke { server, keep_pages } => {
                actions.extend(
                    self.organizer
                        .on_revocation(HostId(server), keep_pages, now),
                );
            }
            Step::EndMove { arrived } if !self.moves.is_empty() => {
                let object = self.moves.remove(0);
                self.organizer.on_move_ended(object, arrived);
            }
            Step::EndMove { .. } => {}
            Step::Lose { server } => {
                self.servers.insert(HostId(server), Self::server(server));
                self.organizer.on_server_lost(HostId(server));
            }
            Step::Terminate { number } => {
                self.organizer.terminate(paging_object(number));
                self.moves.retain(|object| *object != paging_object(number));
            }
        }
        actions.into_iter().try_for_each(|action| self.take(action))
    }
}

proptest! {
    /// Whatever the order of answers, moves and losses, the pages that count as used are those of
    /// the objects, and all are free again when these are gone.
    #[test]
    fn pages_are_used_by_objects_and_free_again_without_them(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        for number in 0..5 {
            let used = |world: &World| (1..5).map(|host| world.organizer.used_pages_at(HostId(host))).sum::<u64>();
            let before = used(&world);
            let copies = world.organizer.servers_of(paging_object(number)).count() as u64;
            world.organizer.terminate(paging_object(number));
            prop_assert!(before - used(&world) >= copies);
        }
        for host in 1..5 {
            prop_assert_eq!(world.organizer.used_pages_at(HostId(host)), 0);
        }
    }
}
