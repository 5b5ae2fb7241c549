//! Parts on servers of their own, and stripes of cold objects.

mod common;

use common::object;
use selfpage_remote_policy::identity::HostId;
use selfpage_remote_policy::lru_size::ObjectUse;
use selfpage_remote_policy::redundancy::{
    ColdPolicy, Redundancy, ServerOffer, StripeShape, choose_servers,
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
}
