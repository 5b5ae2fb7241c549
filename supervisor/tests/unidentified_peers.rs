//! A supervisor and processes that are not of its tree. The test process is the ancestor of all that it
//! starts, so a child plays the supervisor, and its parent the process that connects from outside. Tests
//! whose threads play supervisors are elsewhere: a fork's child waits for ever for a lock that one of
//! their threads holds at the fork (`host::fd_reaper`).

// A refusal carries its text in place.
#![allow(clippy::result_large_err)]

mod common;
#[path = "common/processes.rs"]
mod processes;

use common::start;
use link::client::{JoinError, SupervisorPort};
use processes::{OWN_IMAGE, child, end, is_readable};
use rustix::fd::AsFd;
use std::time::{Duration, Instant};
use supervisor::Supervisor;

#[test]
fn a_process_from_outside_the_tree_is_not_admitted() {
    let (ours, theirs) = host::seqpacket::pair().unwrap();
    let supervisor = child(|| {
        let mut supervisor = listening(&theirs);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) {
            supervisor.dispatch();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    drop(theirs);
    let name = receive(&ours);
    let outcome = SupervisorPort::parse(None, Some(name.as_slice()))
        .unwrap()
        .join(OWN_IMAGE);
    assert!(
        matches!(outcome, Err(JoinError::Unreachable(_))),
        "{outcome:?}"
    );
    end(supervisor);
}

#[test]
fn one_dispatch_accepts_a_bounded_number_of_connections_by_name() {
    const MANY: usize = 200;
    let (ours, theirs) = host::seqpacket::pair().unwrap();
    let supervisor = child(|| {
        let mut supervisor = listening(&theirs);
        receive(&theirs);
        supervisor.dispatch();
        send(&theirs, b"one turn");
        receive(&theirs);
    });
    let name = receive(&ours);
    let connections: Vec<_> = (0..MANY).map(|_| connect(&name)).collect();
    send(&ours, b"all are connected");
    receive(&ours);
    // The supervisor closes each that it takes, beside its loop, since this process is not of its tree.
    let (mut taken, begin) = (0, Instant::now());
    while taken == 0 && begin.elapsed() < Duration::from_secs(20) {
        let is_taken = |it: &&rustix::fd::OwnedFd| is_readable(it.as_fd());
        taken = connections.iter().filter(is_taken).count();
    }
    assert!((1..MANY / 2).contains(&taken), "{taken} of {MANY}");
    end(supervisor);
}

fn connect(name: &[u8]) -> rustix::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name).unwrap()).unwrap();
    socket
}

/// A supervisor that sends the name of its socket.
fn listening(to: impl AsFd) -> Supervisor {
    let supervisor = start(1024, None);
    let name = &supervisor.environment(0).unwrap()[1].1;
    send(to, name.as_encoded_bytes());
    supervisor
}

fn send(to: impl AsFd, bytes: &[u8]) {
    host::seqpacket::send(to, bytes, &[], rustix::net::SendFlags::empty()).unwrap();
}

fn receive(from: impl AsFd) -> Vec<u8> {
    let message = host::seqpacket::receive(from, rustix::net::RecvFlags::empty()).unwrap();
    message.as_slice().to_vec()
}
