//! Parts on servers of their own, writes that every copy has, stripes of cold objects.

mod common;

use common::object;
use proptest::prelude::*;
use selfpage_remote_policy::identity::HostId;
use selfpage_remote_policy::lru_size::ObjectUse;
use selfpage_remote_policy::redundancy::{
    ColdPolicy, PendingWrite, Redundancy, ServerOffer, StripeShape, WriteState, choose_servers,
};
use std::collections::BTreeSet;
use std::time::Duration;

fn offer(server: u64, free_pages: u64) -> ServerOffer {
    ServerOffer {
        server: HostId(server),
        free_pages,
        is_in_use: false,
        round_trip: None,
    }
}

fn hosts<const N: usize>(numbers: [u64; N]) -> BTreeSet<HostId> {
    numbers.into_iter().map(HostId).collect()
}

#[test]
fn near_servers_come_first_then_those_in_use_then_those_with_most_space() {
    let near = ServerOffer {
        round_trip: Some(Duration::from_micros(50)),
        ..offer(1, 100)
    };
    let used = ServerOffer {
        is_in_use: true,
        ..offer(2, 100)
    };
    let offers = [offer(4, 500), offer(3, 900), used, near, offer(5, 10)];
    let chosen = choose_servers(Redundancy::Replicas(4), 100, &offers, &BTreeSet::new()).unwrap();
    assert_eq!(chosen, [1, 2, 3, 4].map(HostId));
    let error =
        choose_servers(Redundancy::Replicas(5), 100, &offers, &BTreeSet::new()).unwrap_err();
    assert_eq!((error.asked, error.there), (5, 4));
}

#[test]
fn a_write_waits_for_every_copy_that_can_be_read() {
    let mut write = PendingWrite::new(hosts([1, 2]), 1);
    assert_eq!(write.on_written(HostId(1)), WriteState::Pending);
    assert!(write.missing().eq([HostId(2)]));
    assert_eq!(write.on_written(HostId(9)), WriteState::Pending);
    assert_eq!(write.on_copy_removed(HostId(2)), WriteState::Acknowledged);
    assert_eq!(write.on_copy_removed(HostId(1)), WriteState::Failed);
}

#[test]
fn a_strict_policy_waits_for_the_rebuilt_copy() {
    let mut write = PendingWrite::new(hosts([1, 2]), 2);
    write.on_written(HostId(1));
    assert_eq!(write.on_copy_removed(HostId(2)), WriteState::Pending);
    assert_eq!(write.on_copy_added(HostId(3)), WriteState::Pending);
    assert_eq!(write.on_written(HostId(3)), WriteState::Acknowledged);
}

#[test]
fn cold_large_objects_become_the_safest_stripe_that_there_are_servers_for() {
    let policy = ColdPolicy::default();
    let now = Duration::from_secs(1000);
    let usage = |number, size_pages, last_used| ObjectUse {
        object: object(1, number),
        size_pages,
        last_used: Duration::from_secs(last_used),
        faults: 0,
    };
    let objects = [
        usage(1, 400, 300),
        usage(2, 400, 100),
        usage(3, 400, 900),
        usage(4, 10, 0),
    ];
    let twice = Redundancy::Replicas(2);
    assert_eq!(policy.select(&objects, twice, 4, now), []);
    let choices = policy.select(&objects, twice, 5, now);
    let got: Vec<_> = choices
        .iter()
        .map(|one| (one.usage.object.number, one.shape, one.saved_pages))
        .collect();
    // 800 pages in two copies, 500 as 4+1, 600 as 4+2.
    assert_eq!(
        got,
        [
            (2, StripeShape::FOUR_ONE, 300),
            (1, StripeShape::FOUR_ONE, 300)
        ]
    );
    let choices = policy.select(&objects, twice, 6, now);
    assert!(
        choices
            .iter()
            .all(|one| (one.shape, one.saved_pages) == (StripeShape::FOUR_TWO, 200))
    );
    assert!(!policy.should_dissolve(400, 99));
    assert!(policy.should_dissolve(400, 100));
}

proptest! {
    /// Any copy that is left can be read after an acknowledgement.
    #[test]
    fn every_copy_has_an_acknowledged_write(
        events in prop::collection::vec((0u8..3, 1u64..5), 0..20),
        least in 1usize..3,
    ) {
        let mut copies = hosts([1, 2]);
        let mut has = BTreeSet::new();
        let mut write = PendingWrite::new(copies.clone(), least);
        for (event, host) in events {
            let host = HostId(host);
            let state = match event {
                0 => {
                    if copies.contains(&host) {
                        has.insert(host);
                    }
                    write.on_written(host)
                }
                1 => {
                    copies.remove(&host);
                    has.remove(&host);
                    write.on_copy_removed(host)
                }
                _ => {
                    copies.insert(host);
                    write.on_copy_added(host)
                }
            };
            let is_safe = copies.is_subset(&has) && copies.len() >= least;
            prop_assert_eq!(state == WriteState::Acknowledged, is_safe && !copies.is_empty());
            prop_assert_eq!(state == WriteState::Failed, copies.is_empty());
        }
    }
}
