//! A supervisor, and the ports by which processes join it.

// Each test binary uses a part of this module.
#![allow(dead_code)]

use link::client::SupervisorPort;
use rustix::fd::AsRawFd;
use store::StoreConfig;
use supervisor::{Supervisor, SupervisorConfig};

/// The configuration of a tree without a store.
pub fn settings(frames: u32) -> SupervisorConfig {
    SupervisorConfig {
        frames,
        store: None,
        options: Default::default(),
        userfaultfd: None,
        share_store: false,
        ram_of_frames: false,
        tenant: None,
        page_client: None,
    }
}

/// A supervisor with both sockets by which processes join where there is no filter.
pub fn start(frames: u32, store: Option<StoreConfig>) -> Supervisor {
    let settings = SupervisorConfig {
        store,
        ..settings(frames)
    };
    let mut supervisor = Supervisor::start(settings).unwrap();
    supervisor.listen().unwrap();
    supervisor
}

/// A port with both sockets, or only with the listening one.
pub fn port(supervisor: &Supervisor, both: bool) -> SupervisorPort {
    let number = supervisor.inherited_port().as_raw_fd();
    let environment = supervisor.environment(number).unwrap();
    let value = |i: usize| environment[i].1.as_encoded_bytes();
    SupervisorPort::parse(both.then(|| value(0)), Some(value(1))).unwrap()
}
