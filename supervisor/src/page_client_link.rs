//! The supervisor's side of a tree's page client: a remote client, or an object client.
//!
//! Processes of the tree connect to their supervisor only, which has the client open IO channels for
//! them, as it has the daemon do so where the tree has a contract with one (`daemon_link`).
//!
//! Rule: nothing here blocks. When the client is gone its pages are, so the tree ends. A client whose process was
//! killed is not gone: another one goes on, and gets the channels, which are kept here for that.

use crate::TreeEvent;
use crate::channel_slots::ChannelSlots;
use crate::sockets::refuse;
use host::fd_reaper::PeerFd;
use host::seqpacket;
use link::handshake::SlotIndex;
use pageclient::protocol::{self, ClientEvent, ClientRequest};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, shutdown};
use std::collections::BTreeMap;

/// A page client that serves this tree.
#[derive(Debug)]
pub struct PageClientConnection {
    /// What it is, as in "the remote client has ended".
    pub name: &'static str,
    /// To its process.
    pub socket: OwnedFd,
    /// The doorbell of all its channels.
    pub doorbell: OwnedFd,
}

impl PageClientConnection {
    /// The numbers of its descriptors.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.socket.as_raw_fd(), self.doorbell.as_raw_fd()]
    }
}

/// What another process of the client serves a channel by.
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
    is_lost: bool,
}

impl PageClientLink {
    pub fn new(connection: PageClientConnection) -> Self {
        Self {
            connection,
            next: 1,
            channels: ChannelSlots::new(),
            ends: BTreeMap::new(),
            is_lost: false,
        }
    }

    /// Readable when there is something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.connection.socket.as_fd()
    }

    /// Tells the client that the tree has ended. Hung up once the client has ended, too: nothing of the tree's pages is left
    /// then.
    pub fn end(&self) -> BorrowedFd<'_> {
        let _ = shutdown(&self.connection.socket, Shutdown::Write);
        self.fd()
    }

    /// Gets a channel for the process in `slot`; it is answered on `reply`.
    pub fn open(&mut self, slot: SlotIndex, depth: u16, reply: PeerFd) {
        let cookie = self.next;
        self.next += 1;
        match self.ask(&ClientRequest::Open { cookie, depth }) {
            true => self.channels.request(cookie, slot, depth, reply),
            false => {
                let name = self.connection.name;
                refuse(&reply, &format!("the {name} does not answer"));
            }
        }
    }

    /// The process in `slot` has ended. Returns true if none of its I/O is under way.
    pub fn is_quiet(&mut self, slot: SlotIndex) -> bool {
        for channel in self.channels.release(slot) {
            self.close(channel);
        }
        self.is_lost || self.channels.is_quiet(slot)
    }

    /// Handles pending messages.
    pub fn dispatch(&mut self, happened: &mut Vec<TreeEvent>) {
        while !self.is_lost {
            let received = seqpacket::receive(&self.connection.socket, RecvFlags::DONTWAIT);
            let mut message = match received {
                Ok(message) if message.len > 0 => message,
                Err(Errno::AGAIN | Errno::INTR) => return,
                _ => {
                    self.is_lost = true;
                    let why = format!("the {} has ended", self.connection.name);
                    happened.push(TreeEvent::PagesLost(why));
                    return;
                }
            };
            match protocol::decode(message.as_slice()) {
                Some(ClientEvent::Opened { cookie, channel }) => {
                    let fds = [0, 1, 2].map(|at| message.fds[at].take());
                    self.opened(cookie, channel, fds);
                }
                Some(ClientEvent::NotOpened { cookie, why }) => {
                    self.channels.refuse(cookie, &why);
                }
                Some(ClientEvent::Closed { channel }) => self.channels.on_closed(channel),
                Some(ClientEvent::Ready { .. }) => self.on_restarted(),
                Some(ClientEvent::Failed { .. }) | None => {}
            }
        }
    }

    /// Another process of the client serves: it gets the channels that are open, and the requests for others. None of
    /// the earlier one's I/O is under way, so what was closing is closed.
    fn on_restarted(&mut self) {
        self.channels.on_server_restarted();
        for (
            channel,
            ChannelEnds {
                memory,
                server_bell,
            },
        ) in &self.ends
        {
            let attach = ClientRequest::Attach { channel: *channel };
            let fds = [memory.as_fd(), server_bell.as_fd()];
            // Where that one is killed, too, the next gets them.
            let _ = protocol::send(&self.connection.socket, &attach, &fds);
        }
        for (cookie, depth) in self.channels.requests() {
            self.ask(&ClientRequest::Open { cookie, depth });
        }
    }

    fn opened(&mut self, cookie: u64, channel: u64, fds: [Option<OwnedFd>; 3]) {
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
            self.ask(&ClientRequest::Close { channel });
        }
    }

    fn ask(&self, request: &ClientRequest) -> bool {
        protocol::send(&self.connection.socket, request, &[]).is_ok()
    }
}
