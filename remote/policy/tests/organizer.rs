//! Late binding, the cheapest step first; moves for space and for latency.

mod common;
mod organizers;

use common::{SECOND, epoch, incarnation, slack};
use organizers::{CLIENT, REFUSED, organizer, paging_object, place};
use selfpage_remote_policy::broker::{AllocationRequest, ReallocationRequest, Refusal};
use selfpage_remote_policy::identity::HostId;
use selfpage_remote_policy::latency::MIN_SAMPLES;
use selfpage_remote_policy::organizer::{AbdicateAnswer, KeepReason, Organizer, OrganizerAction};
use selfpage_remote_policy::permit::{Permit, PermitId};
use std::collections::BTreeSet;
use std::time::Duration;

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
            why: REFUSED,
            is_full: true
        })
    );
}

#[test]
fn placements_that_wait_for_one_server_ask_for_the_pages_of_all() {
    let mut organizer = with_one_object();
    let requests: Vec<_> = (2..6)
        .map(|object| reallocation(place(&mut organizer, object, 400, SECOND)))
        .collect();
    let all = 800 + 4 * 400;
    assert!(requests.last().unwrap().pages >= all, "{requests:?}");
    for (request, object) in requests.into_iter().zip(2..) {
        let larger = permit(1, request.pages);
        let bound = organizer.on_permit(request.id, larger, SECOND);
        let (object, permit) = (paging_object(object), larger.id);
        assert_eq!(bound, Some(OrganizerAction::Bind { object, permit }));
    }
}

#[test]
fn a_placement_that_finds_no_server_to_ask_finds_none_full() {
    let mut organizer = with_one_object();
    // The only other server cannot be reached: it is excluded, as the first one is.
    let out = BTreeSet::from([HostId(2)]);
    let object = paging_object(1);
    let new = allocation(organizer.place(object, 800, &out, SECOND));
    assert_eq!(new.exclude, BTreeSet::from([HostId(1), HostId(2)]));
    for (most, is_full) in [(0, false), (100, true)] {
        let why = Refusal::Pages {
            asked: 900,
            most,
            servers: 2,
        };
        let new = allocation(organizer.place(object, 800, &out, SECOND));
        let given_up = OrganizerAction::GiveUp {
            object,
            why,
            is_full,
        };
        let refused = organizer.on_refused(new.permit.id, why, SECOND);
        assert_eq!(refused, Some(given_up));
    }
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
fn a_client_that_moved_knows_its_servers_distances_after_as_many_round_trips_as_at_first() {
    let mut organizer = with_one_object();
    let us = Duration::from_micros;
    let measure = |organizer: &mut Organizer, times: [u64; 2], now| {
        for _ in 0..MIN_SAMPLES {
            for (server, time) in (1..).zip(times) {
                organizer.on_round_trip(HostId(server), us(time), now);
            }
        }
    };
    // The server of the object is near for long, and then far: all connections end in between.
    for _ in 0..10 {
        measure(&mut organizer, [200, 5000], SECOND);
    }
    for server in [1, 2] {
        organizer.on_disconnected(HostId(server));
    }
    assert_eq!(organizer.improve(2 * SECOND), [], "no distance is known");
    measure(&mut organizer, [5000, 200], 2 * SECOND);
    let [OrganizerAction::Allocate(request)] = &organizer.improve(2 * SECOND)[..] else {
        panic!("the object stays at the server that is far now");
    };
    assert_eq!(request.hints, [HostId(2)]);
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

#[test]
fn a_near_permit_is_enlarged_before_a_poor_servers_spare_pages_are_used() {
    let mut organizer = with_one_object();
    let second = place(&mut organizer, 2, 3000, SECOND);
    let larger = reallocation(second);
    let new = allocation(organizer.on_refused(larger.id, REFUSED, SECOND).unwrap());
    organizer.on_permit(new.permit.id, permit(2, 9000), SECOND);
    for (server, time) in [(1, 200), (2, 5000)].repeat(40) {
        organizer.on_round_trip(HostId(server), Duration::from_micros(time), SECOND);
    }
    // Server 2 has spare pages, and the object would leave it at once for server 1.
    let larger = reallocation(place(&mut organizer, 3, 1000, SECOND));
    assert_eq!(larger.permit, permit(1, 0).id);
    let bound = organizer.on_refused(larger.id, REFUSED, SECOND);
    let (object, permit) = (paging_object(3), permit(2, 0).id);
    assert_eq!(bound, Some(OrganizerAction::Bind { object, permit }));
}

#[test]
fn a_request_that_waited_is_not_sent_where_anothers_permit_has_the_room() {
    let mut organizer = organizer();
    let first = allocation(place(&mut organizer, 1, 800, SECOND));
    let waiting = allocation(place(&mut organizer, 2, 50, SECOND));
    organizer.on_permit(first.permit.id, permit(1, 900), SECOND);
    let next = organizer.reconsider(waiting.permit.id, SECOND);
    let bound = OrganizerAction::Bind {
        object: paging_object(2),
        permit: permit(1, 0).id,
    };
    assert_eq!(next, Some(bound));
    assert_eq!(organizer.reconsider(waiting.permit.id, SECOND), None);
}

#[test]
fn an_organizer_that_is_restored_goes_on_as_the_one_that_was() {
    let mut before = with_one_object();
    let object = paging_object(1);
    let mut after = organizer();
    after.restore([permit(1, 900)], [(object, 800, HostId(1))], 1 << 32);
    assert_eq!(after.used_pages_at(HostId(1)), 800);
    assert_eq!(after.permit_at(HostId(1)), Some(permit(1, 900)));
    assert_eq!(after.servers_of(object).collect::<Vec<_>>(), [HostId(1)]);
    // A second object: the same step, under a number that no request before had.
    let earlier = reallocation(place(&mut before, 2, 500, SECOND));
    let later = reallocation(place(&mut after, 2, 500, SECOND));
    assert_eq!((later.permit, later.pages), (earlier.permit, earlier.pages));
    assert!(later.id.number > 1 << 32 && earlier.id.number < 1 << 32);
    after.on_copy_lost(object, HostId(1));
    assert_eq!(after.used_pages_at(HostId(1)), 0);
}

#[test]
fn copies_at_servers_without_a_permit_are_not_restored() {
    let mut organizer = organizer();
    organizer.restore([], [(paging_object(1), 800, HostId(1))], 0);
    assert_eq!(organizer.servers_of(paging_object(1)).count(), 0);
    assert_eq!(organizer.used_pages_at(HostId(1)), 0);
}
