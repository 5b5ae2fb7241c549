//! Leases end by time or by a restart; round trips are judged by many samples.

mod common;

use common::{SECOND, incarnation};
use selfpage_remote_policy::identity::{HostId, Incarnation};
use selfpage_remote_policy::latency::LatencyTable;
use selfpage_remote_policy::lease::{LeaseTable, Renewal};
use std::time::Duration;

#[test]
fn any_request_renews_a_lease_and_silence_ends_it() {
    let mut leases = LeaseTable::new(10 * SECOND);
    let client = incarnation(1, 0);
    leases.renew(client, SECOND);
    assert_eq!(leases.renew(client, 5 * SECOND), Renewal::Renewed);
    assert_eq!(leases.next_expiry(), Some(15 * SECOND));
    // A request that was delayed does not shorten it.
    leases.renew(client, 2 * SECOND);
    assert_eq!(leases.expire(14 * SECOND), []);
    assert_eq!(leases.expire(15 * SECOND), [client]);
    assert_eq!(leases.until(client), None);
}

#[test]
fn a_restart_ends_the_earlier_incarnation_whatever_arrives_late() {
    let mut leases = LeaseTable::new(10 * SECOND);
    let [first, second] = [0, 1].map(|boot| incarnation(1, boot));
    let third = Incarnation {
        start_ticks: 9,
        ..second
    };
    leases.renew(first, SECOND);
    assert_eq!(
        leases.renew(second, SECOND),
        Renewal::Replaced { ended: first }
    );
    assert_eq!(leases.renew(first, SECOND), Renewal::Ended);
    assert_eq!(
        leases.renew(third, SECOND),
        Renewal::Replaced { ended: second }
    );
    assert_eq!(leases.renew(second, SECOND), Renewal::Ended);
    assert_eq!(leases.until(third), Some(11 * SECOND));
    assert_eq!(leases.until(second), None);
}

#[test]
fn a_server_is_judged_by_several_fresh_samples() {
    let mut table = LatencyTable::default();
    let (near, far) = (HostId(1), HostId(2));
    for _ in 0..5 {
        table.on_sample(near, Duration::from_micros(100), SECOND);
    }
    assert_eq!(table.of(near, SECOND), None);
    for _ in 0..40 {
        table.on_sample(near, Duration::from_micros(100), SECOND);
        table.on_sample(far, Duration::from_micros(900), SECOND);
    }
    assert_eq!(table.nearest(SECOND), [near, far]);
    assert_eq!(table.better_than(far, SECOND), [near]);
    assert_eq!(table.better_than(near, SECOND), []);
    // One bad sample moves nothing.
    table.on_sample(near, Duration::from_micros(2000), SECOND);
    assert_eq!(table.better_than(near, SECOND), []);
    assert_eq!(table.nearest(12 * SECOND), []);
}
