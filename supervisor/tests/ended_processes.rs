//! The resources of an ended process: its frames are reclaimed at once, the others when none of its I/O is in flight.

// A refusal carries its text in place.
#![allow(clippy::result_large_err)]

mod common;
#[path = "common/processes.rs"]
mod processes;

use common::settings;
use frames::DomainId;
use host::seqpacket;
use link::MIN_FRAMES;
use link::client::open_channel;
use pageclient::protocol::{self, AddressedRequest, ClientEvent, ClientRequest};
use processes::{OWN_IMAGE, join, joined, until};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::RecvFlags;
use supervisor::page_client_link::PageClientConnection;
use supervisor::{Supervisor, SupervisorConfig, TreeEvent};

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// The next request that the supervisor sends to its page client, if there is one.
fn request(client: &OwnedFd) -> Option<ClientRequest> {
    let message = seqpacket::receive(client, RecvFlags::DONTWAIT).ok()?;
    protocol::decode(message.as_slice()).map(|addressed: AddressedRequest| addressed.request)
}

/// As [`request`], of a supervisor that dispatches until it sends one.
fn await_request(supervisor: &mut Supervisor, client: &OwnedFd) -> ClientRequest {
    let mut received = None;
    until(supervisor, |_| {
        received = request(client);
        received.is_some()
    });
    received.unwrap()
}

fn left(event: &TreeEvent) -> bool {
    matches!(event, TreeEvent::Left { .. })
}

#[test]
fn the_frames_of_an_ended_process_are_free_while_its_reads_wait_for_a_silent_server() {
    let (socket, client) = seqpacket::pair().unwrap();
    let mut supervisor = Supervisor::start(SupervisorConfig {
        page_client: Some(PageClientConnection {
            name: "remote client",
            generation: 1,
            socket,
            doorbell: bell(),
        }),
        ..settings(MIN_FRAMES)
    })
    .unwrap();
    supervisor.listen().unwrap();
    let port = common::port(&supervisor, true);

    let first = join(port, OWN_IMAGE);
    until(&mut supervisor, |h| h.iter().any(joined));
    let first = first.join().unwrap().unwrap();
    let slot = first.welcome.slot();
    let domain = DomainId::from_raw(first.welcome.domain);
    let own = supervisor.ledger().adopt(domain).unwrap();
    (0..MIN_FRAMES).for_each(|_| assert!(own.take().is_some()));

    let reader = std::thread::spawn(move || {
        let channel = open_channel(first.connection.fd(), 8);
        (first, channel.is_ok())
    });
    let ClientRequest::Open { cookie, .. } = await_request(&mut supervisor, &client) else {
        panic!("the supervisor requests a channel");
    };
    let [memory, own, server] = [bell(), bell(), bell()];
    let fds = [memory.as_fd(), own.as_fd(), server.as_fd()];
    protocol::send(&client, &ClientEvent::Opened { cookie, channel: 7 }, &fds).unwrap();
    until(&mut supervisor, |_| reader.is_finished());
    let (first, is_open) = reader.join().unwrap();
    assert!(is_open);

    // The process ends, and its channel has I/O in flight until the server closes it.
    drop(first);
    until(&mut supervisor, |h| h.iter().any(left));
    assert_eq!(supervisor.ledger().owned(), 0);
    let closes = await_request(&mut supervisor, &client);
    assert_eq!(closes, ClientRequest::Close { channel: 7 });

    // Another process has the frames, and not the slot, whose pages the store still has.
    let second = join(port, OWN_IMAGE);
    until(&mut supervisor, |h| h.iter().any(joined));
    let second = second.join().unwrap().unwrap();
    assert_ne!(second.welcome.slot(), slot);

    // With its channel closed the slot is free, too.
    protocol::send(&client, &ClientEvent::Closed { channel: 7 }, &[]).unwrap();
    drop(second);
    until(&mut supervisor, |h| h.iter().any(left));
    let third = join(port, OWN_IMAGE);
    until(&mut supervisor, |h| h.iter().any(joined));
    assert_eq!(third.join().unwrap().unwrap().welcome.slot(), slot);
}
