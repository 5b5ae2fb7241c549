//! A member and a runtime, for tests.

use crate::protocol::Member;
use remote_policy::identity::{HostId, Incarnation};
use std::net::SocketAddr;

/// A host in its first life, with both ports at one address.
pub(crate) fn member_at(number: u64, address: SocketAddr) -> Member {
    Member {
        server: Incarnation::new(HostId(number), 1, 1),
        name: "test".to_owned(),
        paging: address,
        control: address,
        since: 1,
    }
}

/// What the tests' tasks run on.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}
