//! Which server a broker has issue a permit, and what it does when it was wrong.

mod common;

use common::{config, epoch, incarnation, request, slice};
use selfpage_remote_policy::broker::{
    AllocationRequest, Broker, BrokerAction, ReallocationRequest, Refusal, ServerAnswer,
    UpdateOutcome,
};
use selfpage_remote_policy::capacity::{AllocateError, ServerCapacity};
use selfpage_remote_policy::identity::{Epoch, HostId, Incarnation, RequestId};
use selfpage_remote_policy::permit::PermitId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A broker of epoch 1 and servers of so many pages each, numbered from 1.
struct Machines {
    broker: Broker,
    servers: BTreeMap<HostId, ServerCapacity>,
}

impl Machines {
    fn new(pages: &[u64]) -> Self {
        let mut machines = Self {
            broker: Broker::new(epoch(1, 1)),
            servers: BTreeMap::new(),
        };
        for (host, pages) in (1..).zip(pages) {
            let mut server = ServerCapacity::new(config(), incarnation(host, 0), *pages);
            server.on_contact(client(), Duration::ZERO).unwrap();
            let report = server.grant_to(machines.broker.epoch()).unwrap();
            machines.broker.on_report(&report);
            machines.servers.insert(HostId(host), server);
        }
        machines
    }

    fn answer(
        &mut self,
        server: HostId,
        epoch: Epoch,
        action: &BrokerAction,
    ) -> (RequestId, ServerAnswer) {
        let capacity = self.servers.get_mut(&server).unwrap();
        let (id, result) = match action {
            BrokerAction::Allocate { request, .. } => {
                (request.id, capacity.allocate(epoch, request))
            }
            BrokerAction::Reallocate { request, .. } => (
                request.id,
                capacity.reallocate(epoch, request.id, request.permit, request.pages),
            ),
            other => panic!("{other:?} is not for a server"),
        };
        let answer = match result {
            Ok(permit) => ServerAnswer::Permit {
                permit,
                update: capacity.update(),
            },
            Err(AllocateError::Epoch(error)) => ServerAnswer::WrongEpoch { held: error.held },
            Err(AllocateError::Pages { .. }) => ServerAnswer::Refused,
            Err(_) => ServerAnswer::Unable,
        };
        (id, answer)
    }

    /// Carries actions out until only those for the client are left.
    fn run(&mut self, action: BrokerAction) -> Vec<BrokerAction> {
        let mut queue = vec![action];
        let mut for_client = Vec::new();
        while let Some(action) = queue.pop() {
            match &action {
                BrokerAction::Allocate { server, epoch, .. }
                | BrokerAction::Reallocate { server, epoch, .. } => {
                    let (id, answer) = self.answer(*server, *epoch, &action);
                    queue.extend(self.broker.on_answer(*server, id, answer));
                }
                BrokerAction::RequestReport { server } => {
                    let report = self.servers[server].report();
                    self.broker.on_report(&report);
                }
                _ => for_client.push(action),
            }
        }
        for_client
    }

    fn allocate(&mut self, request: AllocationRequest) -> Vec<BrokerAction> {
        let action = self.broker.allocate(request);
        self.run(action)
    }
}

fn client() -> Incarnation {
    incarnation(7, 0)
}

fn allocation(number: u64, pages: u64) -> AllocationRequest {
    AllocationRequest {
        permit: request(client(), number, pages),
        hints: Vec::new(),
        exclude: BTreeSet::new(),
    }
}

fn server_of(actions: &[BrokerAction]) -> u64 {
    match actions {
        [BrokerAction::SendPermit { permit, .. }] => permit.id.server.0,
        other => panic!("expected a permit: {other:?}"),
    }
}

#[test]
fn the_server_with_most_space_issues_the_first_permit_and_is_preferred_from_then_on() {
    let mut machines = Machines::new(&[500, 900, 800]);
    assert_eq!(server_of(&machines.allocate(allocation(1, 300))), 2);
    // Server 3 has more space now, and the client uses server 2 already.
    assert_eq!(server_of(&machines.allocate(allocation(2, 300))), 2);
    assert_eq!(server_of(&machines.allocate(allocation(3, 300))), 3);
}

#[test]
fn hints_come_before_space_and_excluded_servers_not_at_all() {
    let mut machines = Machines::new(&[500, 900, 800]);
    let hints = vec![HostId(1), HostId(3)];
    let exclude = BTreeSet::from([HostId(2)]);
    let hinted = |number, pages| AllocationRequest {
        hints: hints.clone(),
        exclude: exclude.clone(),
        ..allocation(number, pages)
    };
    assert_eq!(server_of(&machines.allocate(hinted(1, 300))), 1);
    assert_eq!(server_of(&machines.allocate(hinted(2, 300))), 3);
    let refused = machines.allocate(hinted(3, 790));
    assert!(
        matches!(
            refused[..],
            [BrokerAction::Refuse {
                why: Refusal::Pages { asked: 790, .. },
                ..
            }]
        ),
        "{refused:?}"
    );
}

#[test]
fn a_refusal_sends_the_request_to_the_next_server() {
    let mut machines = Machines::new(&[500, 900]);
    // The broker's record of server 2 is old.
    machines
        .servers
        .get_mut(&HostId(2))
        .unwrap()
        .on_usage(900, 800, Duration::ZERO);
    assert_eq!(server_of(&machines.allocate(allocation(1, 300))), 1);
}

#[test]
fn a_server_that_refused_a_request_does_not_get_it_again() {
    let mut machines = Machines::new(&[900, 800]);
    let with_time = |number, exclude: &[u64]| {
        let mut request = allocation(number, 100);
        request.permit.qos = slice(50);
        request.exclude = exclude.iter().copied().map(HostId).collect();
        request
    };
    machines.allocate(with_time(1, &[2]));
    machines.allocate(with_time(2, &[1]));
    let mut action = machines.broker.allocate(with_time(3, &[]));
    for host in [1, 2] {
        let (id, answer) = machines.answer(HostId(host), machines.broker.epoch(), &action);
        assert_eq!(answer, ServerAnswer::Unable);
        action = machines
            .broker
            .on_answer(HostId(host), id, answer)
            .remove(0);
    }
    assert!(matches!(action, BrokerAction::Refuse { .. }), "{action:?}");
    // It is time that they lack: others get their pages.
    assert_eq!(server_of(&machines.allocate(allocation(4, 700))), 1);
}

#[test]
fn a_copy_of_a_request_gets_the_same_permit_and_no_second_one() {
    let mut machines = Machines::new(&[500, 900]);
    let first = machines.allocate(allocation(1, 300));
    assert_eq!(machines.allocate(allocation(1, 300)), first);
    let granted: u64 = machines
        .servers
        .values()
        .map(ServerCapacity::granted_pages)
        .sum();
    assert_eq!(granted, 300);
}

#[test]
fn a_server_that_stays_silent_is_passed_over_where_another_has_room() {
    let mut machines = Machines::new(&[500, 900]);
    let server_asked = |action: &BrokerAction| match action {
        BrokerAction::Allocate { server, .. } => server.0,
        other => panic!("{other:?}"),
    };
    let asked = |machines: &mut Machines, pages| {
        let copies = (0..5).map(|_| machines.broker.allocate(allocation(pages, pages)));
        copies
            .map(|action| server_asked(&action))
            .collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut machines, 300), [2, 2, 2, 1, 1]);
    assert_eq!(asked(&mut machines, 250), [2; 5], "no other has room");
    let late = machines.broker.allocate(allocation(300, 300));
    assert_eq!(server_of(&machines.run(late)), 1);
}

#[test]
fn two_requests_at_once_do_not_go_to_a_server_with_room_for_one() {
    let mut machines = Machines::new(&[1000, 900]);
    let both = [1, 2].map(|number| machines.broker.allocate(allocation(number, 700)));
    let servers = both.map(|action| match action {
        BrokerAction::Allocate { server, .. } => server.0,
        other => panic!("{other:?}"),
    });
    assert_eq!(servers, [1, 2]);
}

#[test]
fn a_permit_is_enlarged_and_reduced_by_its_own_server() {
    let mut machines = Machines::new(&[500, 900]);
    let permit = match machines.allocate(allocation(1, 300))[..] {
        [BrokerAction::SendPermit { permit, .. }] => permit,
        ref other => panic!("{other:?}"),
    };
    let mut rewrite = |number, pages| {
        let id = RequestId {
            client: client(),
            number,
        };
        let action = machines.broker.reallocate(ReallocationRequest {
            id,
            permit: permit.id,
            pages,
        });
        machines.run(action)
    };
    assert_eq!(server_of(&rewrite(2, 500)), 2);
    let refused = rewrite(3, 5000);
    assert!(
        matches!(
            refused[..],
            [BrokerAction::Refuse {
                why: Refusal::Reallocation(_),
                ..
            }]
        ),
        "{refused:?}"
    );
    assert_eq!(server_of(&rewrite(4, 100)), 2);
    assert_eq!(machines.servers[&HostId(2)].granted_pages(), 100);
}

#[test]
fn a_new_broker_regenerates_its_record_from_the_servers() {
    let mut machines = Machines::new(&[500, 900]);
    machines.allocate(allocation(1, 300));
    let old = machines.broker.clone();
    let mut new = Broker::new(epoch(2, 2));
    for server in machines.servers.values_mut() {
        new.on_report(&server.grant_to(new.epoch()).unwrap());
    }
    assert!(new.permits().eq(old.permits()));

    // The old broker is still there: its requests reach no server any more.
    let refused = machines.allocate(allocation(2, 100));
    assert!(
        matches!(refused[..], [BrokerAction::Refuse { .. }]),
        "{refused:?}"
    );
    assert_eq!(machines.broker.servers().count(), 0);
}

#[test]
fn a_request_under_way_survives_a_raise_of_its_brokers_epoch() {
    let mut machines = Machines::new(&[900]);
    let forwarded = machines.broker.allocate(allocation(1, 300));
    let raised = epoch(5, 1);
    machines.broker.raise_epoch(raised);
    let report = machines
        .servers
        .get_mut(&HostId(1))
        .unwrap()
        .grant_to(raised)
        .unwrap();
    machines.broker.on_report(&report);
    assert_eq!(server_of(&machines.run(forwarded)), 1);
}

#[test]
fn an_update_about_changes_without_the_broker_needs_a_report() {
    let mut machines = Machines::new(&[900]);
    machines.allocate(allocation(1, 300));
    let server = machines.servers.get_mut(&HostId(1)).unwrap();
    let before = server.update();
    assert_eq!(machines.broker.on_update(&before), UpdateOutcome::Current);
    let permit = server.report().permits[0].id;
    server.release(permit);
    assert_eq!(
        machines.broker.on_update(&server.update()),
        UpdateOutcome::ReportNeeded
    );
    machines.broker.on_report(&server.report());
    assert_eq!(machines.broker.permits().count(), 0);
    assert_eq!(machines.broker.on_update(&before), UpdateOutcome::Stale);
}

#[test]
fn requests_at_a_server_that_dies_go_to_another() {
    let mut machines = Machines::new(&[500, 900]);
    machines.broker.allocate(allocation(1, 300));
    let actions = machines.broker.on_server_lost(HostId(2));
    let [
        BrokerAction::Allocate {
            server: HostId(1), ..
        },
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!(server_of(&machines.run(actions[0].clone())), 1);
}

#[test]
fn a_permit_of_another_server_in_an_answer_is_a_refusal() {
    let mut machines = Machines::new(&[900, 800]);
    let action = machines.broker.allocate(allocation(1, 300));
    let BrokerAction::Allocate { server, epoch, .. } = action else {
        panic!("expected a request of a server: {action:?}");
    };
    assert_eq!(server, HostId(1));
    let (id, answer) = machines.answer(HostId(2), epoch, &action);
    let actions = machines.broker.on_answer(server, id, answer);
    let [
        BrokerAction::Allocate {
            server: HostId(2), ..
        },
    ] = actions.as_slice()
    else {
        panic!("expected a request of the other server: {actions:?}");
    };
}

#[test]
fn a_request_that_no_client_waits_for_is_forgotten_with_its_pages() {
    const LONG: usize = 100;
    let mut machines = Machines::new(&[1000]);
    let server = HostId(1);
    let request = allocation(1, 500);
    let id = request.permit.id;
    let forwarded = machines.broker.allocate(request.clone());
    let larger = ReallocationRequest {
        id: RequestId { number: 2, ..id },
        permit: PermitId { server, number: 9 },
        pages: 10,
    };
    machines.broker.reallocate(larger);
    (0..LONG).for_each(|_| machines.broker.forget_abandoned(|_| true));
    let report = machines.servers[&server].report();
    assert_eq!(machines.broker.on_report(&report).len(), 2);
    assert_eq!(machines.broker.lendable_pages_at(server), Some(400));
    // A client that asks again is not gone.
    for _ in 0..LONG {
        machines.broker.forget_abandoned(|_| false);
        machines.broker.forget_abandoned(|_| true);
    }
    assert_eq!(machines.broker.on_report(&report).len(), 2);
    (0..LONG).for_each(|_| machines.broker.forget_abandoned(|_| false));
    assert_eq!(machines.broker.on_report(&report), []);
    assert_eq!(machines.broker.lendable_pages_at(server), Some(900));
    // The answer comes late.
    let epoch = machines.broker.epoch();
    let (id, answer) = machines.answer(server, epoch, &forwarded);
    assert_eq!(machines.broker.on_answer(server, id, answer), []);
    // The server has the permit for the request, which its client sends again.
    let again = machines.broker.allocate(request);
    let replies = machines.run(again);
    let is_permit = |reply: &BrokerAction| matches!(reply, BrokerAction::SendPermit { .. });
    assert!(replies.iter().any(is_permit), "{replies:?}");
}
