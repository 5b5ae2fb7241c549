//! Parts on servers of their own, writes that every copy has, rebuilds in order of need.

mod common;

use common::object;
use proptest::prelude::*;
use selfpage_remote_policy::identity::HostId;
use selfpage_remote_policy::lru_size::ObjectUse;
use selfpage_remote_policy::redundancy::{
    ColdPolicy, Layout, PendingWrite, RebuildStep, Redundancy, ServerOffer, StripeShape,
    WriteState, choose_servers, plan_rebuild,
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

fn layout(number: u64, redundancy: Redundancy, faults: u64, parts: &[u64]) -> Layout {
    Layout {
        object: object(1, number),
        redundancy,
        pages: 40,
        faults,
        parts: parts.iter().map(|server| Some(HostId(*server))).collect(),
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

#[test]
fn a_rebuild_begins_with_the_object_that_can_lose_no_more() {
    let twice = Redundancy::Replicas(2);
    let mut layouts = [
        layout(1, Redundancy::Replicas(3), 9, &[1, 2, 3]),
        layout(2, twice, 1, &[1, 2]),
        layout(3, twice, 5, &[2, 1]),
        layout(4, twice, 5, &[2, 3]),
        layout(5, Redundancy::Replicas(1), 0, &[1]),
    ];
    let steps = plan_rebuild(
        HostId(1),
        &mut layouts,
        &[offer(1, 999), offer(2, 999), offer(4, 100)],
    );
    let (from, to) = (HostId(2), HostId(4));
    let copy = |number| RebuildStep::Copy {
        object: object(1, number),
        from,
        to,
    };
    let expected = [
        RebuildStep::Lost {
            object: object(1, 5),
        },
        copy(3),
        copy(2),
        RebuildStep::Wait {
            object: object(1, 1),
        },
    ];
    assert_eq!(steps, expected);
}

#[test]
fn a_shard_is_reconstructed_from_as_many_others_as_give_the_object() {
    let stripe = Redundancy::Stripe(StripeShape::FOUR_TWO);
    let mut layouts = [layout(1, stripe, 0, &[1, 2, 3, 4, 5, 6])];
    let steps = plan_rebuild(HostId(3), &mut layouts, &[offer(1, 99), offer(7, 10)]);
    let from = [(0, 1), (1, 2), (3, 4), (4, 5)]
        .map(|(shard, host)| (shard, HostId(host)))
        .to_vec();
    let to = HostId(7);
    assert_eq!(
        steps,
        [RebuildStep::Reconstruct {
            object: object(1, 1),
            shard: 2,
            from,
            to
        }]
    );
}

fn forms() -> impl Strategy<Value = Redundancy> {
    prop_oneof![
        (1u8..4).prop_map(Redundancy::Replicas),
        Just(Redundancy::Stripe(StripeShape::FOUR_ONE)),
        Just(Redundancy::Stripe(StripeShape::FOUR_TWO)),
    ]
}

proptest! {
    /// Servers fail one after the other, with time for each rebuild: nothing is lost while there
    /// is room, no server has two parts, and none gets more pages than it offered.
    #[test]
    fn rebuilds_keep_parts_apart_and_objects_whole(
        forms in prop::collection::vec((forms(), 1u64..50), 1..12),
        free in prop::collection::vec(0u64..400, 8..14),
        failures in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut offers: Vec<_> = (1..).zip(&free).map(|(host, pages)| offer(host, *pages)).collect();
        let mut layouts = Vec::new();
        for (number, (redundancy, pages)) in (0..).zip(forms) {
            let part_pages = redundancy.pages_per_part(pages);
            let Ok(servers) = choose_servers(redundancy, pages, &offers, &BTreeSet::new()) else {
                continue;
            };
            for server in &servers {
                offers.iter_mut().find(|one| one.server == *server).unwrap().free_pages -= part_pages;
            }
            let parts: Vec<_> = servers.iter().map(|server| server.0).collect();
            layouts.push(Layout { pages, ..layout(number, redundancy, number, &parts) });
        }
        for failure in failures {
            let dead = failure.get(&offers).server;
            offers.retain(|one| one.server != dead);
            for step in plan_rebuild(dead, &mut layouts, &offers) {
                let (object, shard, to) = match step {
                    RebuildStep::Copy { object, from, to } => {
                        let layout = layouts.iter().find(|one| one.object == object).unwrap();
                        prop_assert!(layout.parts.contains(&Some(from)));
                        (object, layout.parts.iter().position(Option::is_none).unwrap(), to)
                    }
                    RebuildStep::Reconstruct { object, shard, from, to } => {
                        let layout = layouts.iter().find(|one| one.object == object).unwrap();
                        prop_assert_eq!(from.len(), layout.redundancy.parts_needed());
                        prop_assert!(from.iter().all(|(index, host)| layout.parts[*index] == Some(*host)));
                        (object, shard, to)
                    }
                    RebuildStep::Wait { .. } => continue,
                    RebuildStep::Lost { object } => {
                        let layout = layouts.iter().find(|one| one.object == object).unwrap();
                        prop_assert!(layout.margin().is_none());
                        continue;
                    }
                };
                let layout = layouts.iter_mut().find(|one| one.object == object).unwrap();
                let pages = layout.redundancy.pages_per_part(layout.pages);
                let taken = offers.iter_mut().find(|one| one.server == to).unwrap();
                prop_assert!(taken.free_pages >= pages);
                taken.free_pages -= pages;
                layout.parts[shard] = Some(to);
                let held: BTreeSet<_> = layout.parts.iter().flatten().collect();
                prop_assert_eq!(held.len(), layout.parts.iter().flatten().count());
            }
        }
    }

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
