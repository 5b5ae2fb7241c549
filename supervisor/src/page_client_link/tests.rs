//! The link, and a client whose messages a test sends and receives.

use super::*;
use crate::sockets::own_uid;
use pageclient::protocol::AddressedRequest;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt;

/// More channels than [`SEND_BUFFER`] has messages.
const CHANNELS: u64 = 40;
/// Bytes of the supervisor's send buffer: the least that the kernel allows.
const SEND_BUFFER: usize = 4608;

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

struct Fixture {
    link: PageClientLink,
    client: OwnedFd,
    /// The sockets on which processes receive the replies to their requests.
    replies: Vec<OwnedFd>,
}

impl Fixture {
    /// A link to a client whose first process serves.
    fn new() -> Self {
        let (socket, client) = seqpacket::pair().unwrap();
        sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER).unwrap();
        let link = PageClientLink::new(PageClientConnection {
            name: "remote client",
            generation: 1,
            socket,
            doorbell: bell(),
        });
        Self {
            link,
            client,
            replies: Vec::new(),
        }
    }

    /// The process in a slot requests a channel.
    fn request(&mut self, slot: SlotIndex) {
        let (reply, theirs) = seqpacket::pair().unwrap();
        self.replies.push(reply);
        self.link.open(slot, 8, PeerFd::new(theirs, own_uid()));
    }

    /// Opens a channel for each slot from 1 on, with the slot's number.
    fn open_channels(&mut self) {
        for channel in 1..=CHANNELS {
            self.request(channel as SlotIndex);
            let [request] = &self.received()[..] else {
                panic!("one request at a time");
            };
            let ClientRequest::Open { cookie, .. } = request.request else {
                panic!("{request:?}");
            };
            let [memory, own, server] = [bell(), bell(), bell()];
            let fds = [memory.as_fd(), own.as_fd(), server.as_fd()];
            self.send_event(&ClientEvent::Opened { cookie, channel }, &fds);
        }
    }

    /// The client sends an event, which the supervisor handles.
    fn send_event(&mut self, event: &ClientEvent, fds: &[BorrowedFd<'_>]) {
        protocol::send(&self.client, event, fds).unwrap();
        self.dispatch();
    }

    fn dispatch(&mut self) {
        let mut events = Vec::new();
        self.link.dispatch(&mut events);
        assert_eq!(events, []);
    }

    /// The messages in the socket for the client's next process.
    fn received(&mut self) -> Vec<AddressedRequest> {
        let messages = std::iter::from_fn(|| {
            let message = seqpacket::receive(&self.client, RecvFlags::DONTWAIT).ok()?;
            let request: AddressedRequest = protocol::decode(message.as_slice()).unwrap();
            let is_attach = matches!(request.request, ClientRequest::Attach { .. });
            assert_eq!(
                message.fds.iter().flatten().count(),
                match is_attach {
                    true => 2,
                    false => 0,
                }
            );
            Some(request)
        });
        messages.collect()
    }

    /// All messages that the supervisor sends to a process that reads them.
    fn received_in_turns(&mut self) -> Vec<AddressedRequest> {
        let mut all = self.received();
        while self.link.next_timeout().is_some() {
            self.dispatch();
            all.extend(self.received());
        }
        all
    }
}

fn ready(generation: u64) -> ClientEvent {
    ClientEvent::Ready {
        generation,
        connected: 1,
        named: 1,
    }
}

/// The channels that the process of a generation is requested to attach.
fn attached(requests: &[AddressedRequest], generation: u64) -> Vec<u64> {
    let own = requests.iter().filter(|it| it.generation == generation);
    own.filter_map(|it| match it.request {
        ClientRequest::Attach { channel } => Some(channel),
        _ => None,
    })
    .collect()
}

#[test]
fn a_client_that_is_killed_while_it_takes_over_has_each_channel_attached_once() {
    let mut fixture = Fixture::new();
    fixture.open_channels();
    fixture.send_event(&ready(2), &[]);
    let timeout = fixture.link.next_timeout();
    assert!(timeout.is_some(), "requests without room wait");
    // That process has read nothing.
    fixture.send_event(&ready(3), &[]);
    let requests = fixture.received_in_turns();
    let unread = attached(&requests, 2).len() as u64;
    assert!((1..CHANNELS).contains(&unread), "{unread}");
    let all: Vec<u64> = (1..=CHANNELS).collect();
    assert_eq!(attached(&requests, 3), all);
}

#[test]
fn a_request_that_no_process_has_read_is_sent_to_the_next_one() {
    let mut fixture = Fixture::new();
    fixture.request(7);
    fixture.send_event(&ready(2), &[]);
    let requests = fixture.received();
    let generations: Vec<_> = requests.iter().map(|it| it.generation).collect();
    assert_eq!(generations, [1, 2]);
    assert_eq!(requests[0].request, requests[1].request);
}

#[test]
fn a_channel_that_closes_before_there_was_room_for_it_is_not_attached() {
    let mut fixture = Fixture::new();
    fixture.open_channels();
    fixture.send_event(&ready(2), &[]);
    assert!(!fixture.link.is_quiet(CHANNELS as SlotIndex));
    let requests = fixture.received_in_turns();
    let others: Vec<u64> = (1..CHANNELS).collect();
    assert_eq!(attached(&requests, 2), others);
    let close = ClientRequest::Close { channel: CHANNELS };
    assert_eq!(requests.last(), Some(&close.addressed_to(2)));
    fixture.send_event(&ClientEvent::Closed { channel: CHANNELS }, &[]);
    assert!(fixture.link.is_quiet(CHANNELS as SlotIndex));
}

#[test]
fn a_channel_that_the_client_closed_is_not_attached_to_its_next_process() {
    let mut fixture = Fixture::new();
    fixture.open_channels();
    fixture.send_event(&ClientEvent::Closed { channel: 3 }, &[]);
    assert!(fixture.link.is_quiet(3));
    fixture.send_event(&ready(2), &[]);
    let requests = fixture.received_in_turns();
    assert!(!attached(&requests, 2).contains(&3));
}

#[test]
fn no_request_waits_for_a_client_that_has_ended() {
    let mut fixture = Fixture::new();
    fixture.open_channels();
    fixture.send_event(&ready(2), &[]);
    let (_, other) = seqpacket::pair().unwrap();
    drop(std::mem::replace(&mut fixture.client, other));
    let mut events = Vec::new();
    fixture.link.dispatch(&mut events);
    assert!(matches!(events[..], [TreeEvent::PagesLost(_)]));
    assert_eq!(fixture.link.next_timeout(), None);
    fixture.request(7);
    let reply = fixture.replies.last().unwrap();
    assert!(seqpacket::receive(reply, RecvFlags::DONTWAIT).unwrap().len > 0);
    assert!(fixture.link.is_quiet(7));
}
