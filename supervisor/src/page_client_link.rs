//! The supervisor's side of a tree's page client: a remote client, or an object client.
//!
//! Processes of the tree connect to their supervisor only, which has the client open IO channels for
//! them, as the daemon does where the tree has a contract (`daemon_link`).
//!
//! Rule: nothing here blocks. Requests that the client's socket has no room for wait here. When the client ends its pages
//! are lost, so the tree ends. A client whose process was killed has not ended: another process continues, and gets the
//! channels, which are kept here for that.

use crate::TreeEvent;
use crate::channel_slots::ChannelSlots;
use crate::sockets::refuse;
use host::fd_reaper::PeerFd;
use host::seqpacket;
use link::handshake::SlotIndex;
use pageclient::protocol::{self, ClientEvent, ClientRequest, RETRY};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, shutdown};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A page client that serves this tree.
#[derive(Debug)]
pub struct PageClientConnection {
    /// The client's name in messages, as in "the remote client has ended".
    pub name: &'static str,
    /// The generation of the client's process that serves, by its [`ClientEvent::Ready`].
    pub generation: u64,
    /// The socket to the client's process.
    pub socket: OwnedFd,
    /// The doorbell of all its channels.
    pub doorbell: OwnedFd,
}

impl PageClientConnection {
    /// The connection's descriptor numbers.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.socket.as_raw_fd(), self.doorbell.as_raw_fd()]
    }
}

/// The descriptors by which another process of the client serves a channel.
struct ChannelEnds {
    memory: OwnedFd,
    server_bell: OwnedFd,
}

/// The connection, and the slot that has each channel.
pub(crate) struct PageClientLink {
    connection: PageClientConnection,
    next: u64,
    channels: ChannelSlots<u64>,
    /// The ends of the channels that are not closing, for another process of the client.
    ends: BTreeMap<u64, ChannelEnds>,
    /// Requests to the process that serves, in order.
    unsent: VecDeque<ClientRequest>,
    is_lost: bool,
}

impl PageClientLink {
    pub fn new(connection: PageClientConnection) -> Self {
        Self {
            connection,
            next: 1,
            channels: ChannelSlots::new(),
            ends: BTreeMap::new(),
            unsent: VecDeque::new(),
            is_lost: false,
        }
    }

    /// Readable when there is something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.connection.socket.as_fd()
    }

    /// Notifies the client of the tree's end. The socket's other end closes when the client has deleted the tree's pages, and
    /// ends.
    pub fn end(&self) -> BorrowedFd<'_> {
        let _ = shutdown(&self.connection.socket, Shutdown::Write);
        self.fd()
    }

    /// Requests a channel for the process in `slot`; the reply goes to `reply`.
    pub fn open(&mut self, slot: SlotIndex, depth: u16, reply: PeerFd) {
        let cookie = self.next;
        self.next += 1;
        match self.request(ClientRequest::Open { cookie, depth }) {
            true => self.channels.request(cookie, slot, depth, reply),
            false => {
                let name = self.connection.name;
                refuse(&reply, &format!("the {name} has ended"));
            }
        }
    }

    /// The process in `slot` has ended. Returns true if none of its I/O is in flight.
    pub fn is_quiet(&mut self, slot: SlotIndex) -> bool {
        for channel in self.channels.release(slot) {
            self.close(channel);
        }
        self.is_lost || self.channels.is_quiet(slot)
    }

    /// The time after which [`PageClientLink::dispatch`] is to be called even if the client has sent nothing.
    pub fn next_timeout(&self) -> Option<Duration> {
        (!self.unsent.is_empty()).then_some(RETRY)
    }

    /// Handles pending messages, and sends requests that wait for room.
    pub fn dispatch(&mut self, events: &mut Vec<TreeEvent>) {
        self.receive(events);
        self.send();
    }

    fn receive(&mut self, events: &mut Vec<TreeEvent>) {
        while !self.is_lost {
            let received = seqpacket::receive(&self.connection.socket, RecvFlags::DONTWAIT);
            let mut message = match received {
                Ok(message) if message.len > 0 => message,
                Err(Errno::AGAIN | Errno::INTR) => return,
                _ => {
                    self.on_lost();
                    let why = format!("the {} has ended", self.connection.name);
                    events.push(TreeEvent::PagesLost(why));
                    return;
                }
            };
            match protocol::decode(message.as_slice()) {
                Some(ClientEvent::Opened { cookie, channel }) => {
                    let fds = [0, 1, 2].map(|at| message.fds[at].take());
                    self.on_opened(cookie, channel, fds);
                }
                Some(ClientEvent::NotOpened { cookie, why }) => {
                    self.channels.refuse(cookie, &why);
                }
                Some(ClientEvent::Closed { channel }) => self.on_closed(channel),
                Some(ClientEvent::Ready { generation, .. }) => self.on_restarted(generation),
                Some(ClientEvent::Failed { .. }) | None => {}
            }
        }
    }

    /// Another process of the client serves: it gets the open channels, and the pending requests for others. The earlier
    /// process has no I/O in flight, so closing channels are closed. Messages that the earlier process has not read are
    /// dropped by the new one, by their generation.
    fn on_restarted(&mut self, generation: u64) {
        self.connection.generation = generation;
        self.channels.on_server_restarted();
        let channels = self.ends.keys();
        let attach = channels.map(|channel| ClientRequest::Attach { channel: *channel });
        let requests = self.channels.requests();
        let open = requests.map(|(cookie, depth)| ClientRequest::Open { cookie, depth });
        self.unsent = attach.chain(open).collect();
    }

    /// The client has closed a channel: without a request if its process dropped the channel, or the channel is corrupt.
    /// The client's next process must not serve it.
    fn on_closed(&mut self, channel: u64) {
        self.ends.remove(&channel);
        self.channels.on_closed(channel);
    }

    fn on_lost(&mut self) {
        self.is_lost = true;
        self.unsent.clear();
    }

    fn on_opened(&mut self, cookie: u64, channel: u64, fds: [Option<OwnedFd>; 3]) {
        let [Some(memory), Some(bell), Some(server_bell)] = fds else {
            let why = "no descriptor is free to receive a channel: raise `ulimit -n`";
            self.channels.refuse(cookie, why);
            return self.close(channel);
        };
        let doorbell = self.connection.doorbell.as_fd();
        let fds = [memory.as_fd(), doorbell, bell.as_fd()];
        if !self.channels.open(cookie, channel, &fds) {
            return self.close(channel);
        }
        let ends = ChannelEnds {
            memory,
            server_bell,
        };
        self.ends.insert(channel, ends);
    }

    fn close(&mut self, channel: u64) {
        self.ends.remove(&channel);
        if self.channels.start_close(channel) {
            self.request(ClientRequest::Close { channel });
        }
    }

    /// Sends a request, now or when there is room. Returns false if the client has ended.
    fn request(&mut self, request: ClientRequest) -> bool {
        self.unsent.push_back(request);
        self.send()
    }

    /// Sends the requests that there is room for. Returns false if the client has ended, which closes its socket, too.
    fn send(&mut self) -> bool {
        while let Some(request) = self.unsent.front() {
            match self.try_send(request) {
                Ok(()) => _ = self.unsent.pop_front(),
                Err(errno) if protocol::has_no_room(errno) => break,
                Err(_) => {
                    self.unsent.clear();
                    return false;
                }
            }
        }
        !self.is_lost
    }

    fn try_send(&self, request: &ClientRequest) -> Result<(), Errno> {
        let fds = match request {
            ClientRequest::Attach { channel } => match self.ends.get(channel) {
                Some(ends) => Some([ends.memory.as_fd(), ends.server_bell.as_fd()]),
                // The channel was closed meanwhile.
                None => return Ok(()),
            },
            ClientRequest::Open { .. } | ClientRequest::Close { .. } => None,
        };
        let message = request.clone().addressed_to(self.connection.generation);
        let fds = fds.as_ref().map_or(&[][..], |fds| fds);
        protocol::try_send(&self.connection.socket, &message, fds)
    }
}

#[cfg(test)]
mod tests;
