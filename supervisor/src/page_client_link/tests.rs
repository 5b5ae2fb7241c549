//! The link, and a client whose messages a test sends and receives.

use super::*;
use crate::sockets::own_uid;
use pageclient::protocol::AddressedRequest;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt;

/// More channels than [`ROOM`] has messages.
const CHANNELS: u64 = 40;
/// Bytes of the supervisor's buffer for messages to the client: the least that the kernel allows.
const ROOM: usize = 4608;

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

struct Scene {
    link: PageClientLink,
    client: OwnedFd,
    /// Where processes receive the answers to their requests.
    replies: Vec<OwnedFd>,
}

impl Scene {
    /// A client whose first process serves.
    fn new() -> Self {
        let (socket, client) = seqpacket::pair().unwrap();
        sockopt::set_socket_send_buffer_size(&socket, ROOM).unwrap();
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

    /// Slots from 1 on get a channel each, of the same number.
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
            self.say(&ClientEvent::Opened { cookie, channel }, &fds);
        }
    }

    /// The client sends an event, which the supervisor handles.
    fn say(&mut self, event: &ClientEvent, fds: &[BorrowedFd<'_>]) {
        protocol::send(&self.client, event, fds).unwrap();
        self.dispatch();
    }

    fn dispatch(&mut self) {
        let mut happened = Vec::new();
        self.link.dispatch(&mut happened);
        assert_eq!(happened, []);
    }

    /// What is in the socket for the client's next process.
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

    /// All that the supervisor sends to a process which reads.
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

/// The channels that a process of the client is to attach.
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
    let mut scene = Scene::new();
    scene.open_channels();
    scene.say(&ready(2), &[]);
    let timeout = scene.link.next_timeout();
    assert!(timeout.is_some(), "what has no room waits");
    // That process has read nothing.
    scene.say(&ready(3), &[]);
    let requests = scene.received_in_turns();
    let unread = attached(&requests, 2).len() as u64;
    assert!((1..CHANNELS).contains(&unread), "{unread}");
    let all: Vec<u64> = (1..=CHANNELS).collect();
    assert_eq!(attached(&requests, 3), all);
}

#[test]
fn a_request_that_no_process_has_read_is_sent_to_the_next_one() {
    let mut scene = Scene::new();
    scene.request(7);
    scene.say(&ready(2), &[]);
    let requests = scene.received();
    let generations: Vec<_> = requests.iter().map(|it| it.generation).collect();
    assert_eq!(generations, [1, 2]);
    assert_eq!(requests[0].request, requests[1].request);
}

#[test]
fn a_channel_that_closes_before_there_was_room_for_it_is_not_attached() {
    let mut scene = Scene::new();
    scene.open_channels();
    scene.say(&ready(2), &[]);
    assert!(!scene.link.is_quiet(CHANNELS as SlotIndex));
    let requests = scene.received_in_turns();
    let others: Vec<u64> = (1..CHANNELS).collect();
    assert_eq!(attached(&requests, 2), others);
    let close = ClientRequest::Close { channel: CHANNELS };
    assert_eq!(requests.last(), Some(&close.addressed_to(2)));
    scene.say(&ClientEvent::Closed { channel: CHANNELS }, &[]);
    assert!(scene.link.is_quiet(CHANNELS as SlotIndex));
}

#[test]
fn a_channel_that_the_client_cut_off_is_not_attached_to_its_next_process() {
    let mut scene = Scene::new();
    scene.open_channels();
    scene.say(&ClientEvent::Closed { channel: 3 }, &[]);
    assert!(scene.link.is_quiet(3));
    scene.say(&ready(2), &[]);
    let requests = scene.received_in_turns();
    assert!(!attached(&requests, 2).contains(&3));
}

#[test]
fn a_client_that_is_gone_has_nothing_waiting_for_it() {
    let mut scene = Scene::new();
    scene.open_channels();
    scene.say(&ready(2), &[]);
    let (_, other) = seqpacket::pair().unwrap();
    drop(std::mem::replace(&mut scene.client, other));
    let mut happened = Vec::new();
    scene.link.dispatch(&mut happened);
    assert!(matches!(happened[..], [TreeEvent::PagesLost(_)]));
    assert_eq!(scene.link.next_timeout(), None);
    scene.request(7);
    let reply = scene.replies.last().unwrap();
    assert!(seqpacket::receive(reply, RecvFlags::DONTWAIT).unwrap().len > 0);
    assert!(scene.link.is_quiet(7));
}
