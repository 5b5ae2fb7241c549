//! Hosts, clients and contracts of tests.
#![allow(dead_code, reason = "each test uses a part")]

use disk::atropos::{DiskContract, Utilization};
use disk::time::Nanos;
use selfpage_remote_policy::capacity::{CapacityConfig, PermitRequest};
use selfpage_remote_policy::identity::{Epoch, HostId, Incarnation, ObjectId, RequestId};
use std::time::Duration;

pub const SECOND: Duration = Duration::from_secs(1);

pub fn incarnation(host: u64, boot: u128) -> Incarnation {
    Incarnation::new(HostId(host), boot, 0)
}

pub fn epoch(number: u64, host: u64) -> Epoch {
    Epoch {
        number,
        broker: incarnation(host, 0),
    }
}

pub fn object(client: u64, number: u64) -> ObjectId {
    let client = HostId(client);
    ObjectId { client, number }
}

/// Slack time only: the tests of pages promise no time.
pub fn slack() -> DiskContract {
    slice(0)
}

pub fn slice(percent: u64) -> DiskContract {
    DiskContract::new(Nanos::millis(percent), Nanos::millis(100)).with_slack()
}

pub fn request(client: Incarnation, number: u64, pages: u64) -> PermitRequest {
    PermitRequest {
        id: RequestId { client, number },
        object: None,
        pages,
        qos: slack(),
    }
}

pub fn config() -> CapacityConfig {
    CapacityConfig {
        lend_above_pages: 100,
        revoke_below_pages: 50,
        lendable_time: Utilization::percent(90),
        lease: 30 * SECOND,
        notice: 2 * SECOND,
        deadline: 5 * SECOND,
    }
}
