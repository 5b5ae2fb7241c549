//! A supervisor, and the way to it.

// Each test uses a part of it.
#![allow(dead_code)]

use link::client::SupervisorPort;
use rustix::fd::AsRawFd;
use store::StoreConfig;
use supervisor::{Supervisor, SupervisorConfig};

/// What a tree without a store is promised.
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

/// With both sockets that processes come in by where there is no filter.
pub fn start(frames: u32, store: Option<StoreConfig>) -> Supervisor {
    let settings = SupervisorConfig {
        store,
        ..settings(frames)
    };
    let mut supervisor = Supervisor::start(settings).unwrap();
    supervisor.listen().unwrap();
    supervisor
}

/// Both doors, or only the listening one.
pub fn port(supervisor: &Supervisor, both: bool) -> SupervisorPort {
    let number = supervisor.door().as_raw_fd();
    let environment = supervisor.environment(number).unwrap();
    let value = |i: usize| environment[i].1.as_encoded_bytes();
    SupervisorPort::parse(both.then(|| value(0)), Some(value(1))).unwrap()
}
