//! An organizer's count of pages under any order of answers, moves and losses.

mod common;
mod organizers;

use common::{SECOND, config, epoch, incarnation, slack};
use organizers::{CLIENT, REFUSED, organizer, paging_object, place};
use proptest::prelude::*;
use selfpage_remote_policy::broker::{AllocationRequest, ReallocationRequest};
use selfpage_remote_policy::capacity::{PermitRequest, ServerCapacity};
use selfpage_remote_policy::identity::{HostId, ObjectId, RequestId};
use selfpage_remote_policy::organizer::{AbdicateAnswer, Organizer, OrganizerAction};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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
