//! Reads go where every acknowledged write is, and few of them twice.

use proptest::prelude::*;
use selfpage_remote_policy::hedging::{HedgeBudget, ResponseTime, late_after};
use selfpage_remote_policy::identity::HostId;
use selfpage_remote_policy::latency::LatencyTable;
use selfpage_remote_policy::redundancy::{ReadRoute, ReadView, ServerSet, StripeRead};
use std::time::Duration;

fn stripe() -> impl Strategy<Value = StripeRead> {
    prop_oneof![
        Just(StripeRead::Never),
        Just(StripeRead::NotNow),
        Just(StripeRead::Now)
    ]
}

prop_compose! {
    fn view()(
        sets in [0u64..16, 0..16, 0..16, 0..16, 0..16],
        stripe in stripe(),
    ) -> ReadView {
        let [current, failed, asked, connected, suspected] = sets;
        ReadView { current, failed, awaited: asked & current, connected, suspected, stripe }
    }
}

/// The servers of a route, none of which lacks a write or has failed the read.
fn check(view: ReadView, route: ReadRoute) -> Result<ServerSet, TestCaseError> {
    let ReadRoute::Copy(servers) = route else {
        return Ok(0);
    };
    prop_assert_ne!(servers, 0);
    prop_assert_eq!(servers & !view.current, 0, "not a current copy");
    prop_assert_eq!(servers & view.failed, 0, "it has failed the read");
    prop_assert_eq!(servers & !view.connected, 0, "not connected");
    Ok(servers)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_read_goes_where_every_write_is_and_fails_only_where_nothing_is_left(view in view()) {
        let route = view.route();
        let servers = check(view, route)?;
        let left = view.current & !view.failed;
        let answers = left & view.connected & !view.suspected;
        prop_assert_eq!(route == ReadRoute::Fail, left == 0 && view.stripe == StripeRead::Never);
        prop_assert_eq!(route == ReadRoute::Reconstruct, answers == 0 && view.stripe == StripeRead::Now);
        if answers != 0 {
            prop_assert_eq!(servers, answers, "a suspected server beside one that answers");
        }
        if route == ReadRoute::Wait {
            prop_assert_eq!(left & view.connected, 0, "a copy is there");
        }
    }

    #[test]
    fn a_late_read_goes_to_no_server_that_has_it_or_does_not_answer(view in view()) {
        match view.hedge() {
            Some(route) => {
                let servers = check(view, route)?;
                prop_assert_eq!(servers & (view.awaited | view.suspected), 0);
                prop_assert!(route != ReadRoute::Wait && route != ReadRoute::Fail);
                prop_assert!(route != ReadRoute::Reconstruct || view.stripe == StripeRead::Now);
            }
            None => {
                let others = view.current & view.connected & !view.failed & !view.awaited;
                prop_assert_eq!(others & !view.suspected, 0);
                prop_assert_ne!(view.stripe, StripeRead::Now);
            }
        }
    }

    #[test]
    fn what_is_sent_twice_is_a_twentieth_of_what_is_answered_and_a_burst(
        events in prop::collection::vec((0u32..40, 1u32..5), 0..300),
    ) {
        let mut budget = HedgeBudget::default();
        let (mut answers, mut twice, mut refused) = (0, 0, 0);
        for (answered, requests) in events {
            (0..answered).for_each(|_| budget.on_answer());
            answers += answered;
            match budget.take(requests) {
                true => twice += requests,
                false => refused += 1,
            }
            prop_assert!(twice <= 128 + answers / 20, "{twice} of {answers}");
        }
        prop_assert!(refused == 0 || twice + 5 > 128, "refused after {twice}");
    }

    #[test]
    fn a_read_is_late_after_a_bounded_time_that_grows_with_its_servers(
        usual in 0u64..1 << 40, deviation in 0u64..1 << 40, more in 0u64..1 << 40,
    ) {
        let late = |usual, deviation| late_after(Some(ResponseTime {
            usual: Duration::from_nanos(usual),
            deviation: Duration::from_nanos(deviation),
        }));
        let unknown = late_after(None);
        let time = late(usual, deviation);
        prop_assert!(time <= unknown && time >= late(0, 0));
        prop_assert!(late(usual + more, deviation) >= time);
        prop_assert!(late(usual, deviation + more) >= time);
        prop_assert!(time >= Duration::from_nanos(usual).min(unknown));
    }
}

#[test]
fn a_server_that_is_steady_is_late_sooner_than_one_that_varies() {
    let mut latencies = LatencyTable::default();
    for second in 0..40 {
        let now = Duration::from_secs(second / 8);
        let varying = if second % 2 == 0 { 5 } else { 35 };
        latencies.on_sample(HostId(1), Duration::from_millis(20), now);
        latencies.on_sample(HostId(2), Duration::from_millis(varying), now);
    }
    let now = Duration::from_secs(5);
    let late = |host| late_after(latencies.response_time(HostId(host), now));
    assert!(late(1) < Duration::from_millis(30), "{:?}", late(1));
    assert!(late(2) > Duration::from_millis(60), "{:?}", late(2));
    assert_eq!(latencies.response_time(HostId(3), now), None);
}
