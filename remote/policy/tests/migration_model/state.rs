//! The state of the model: two servers, an organizer with its client, and the network.

use selfpage_remote_policy::identity::{HostId, Incarnation};
use selfpage_remote_policy::migration::{
    Admission, Generation, Move, MoveMessage, ObjectCopy, PageNumber, Route, Version,
};
use std::collections::BTreeSet;

pub const SOURCE: HostId = HostId(1);
pub const DESTINATION: HostId = HostId(2);
pub const ORGANIZER: HostId = HostId(3);
pub const FIRST: Generation = Generation(5);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Packet {
    Move(MoveMessage),
    Write {
        page: PageNumber,
        version: Version,
        stamp: Generation,
    },
    Written {
        page: PageNumber,
        version: Version,
    },
    Read {
        page: PageNumber,
        number: u8,
        stamp: Generation,
    },
    Value {
        page: PageNumber,
        number: u8,
        version: Version,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sent {
    pub from: HostId,
    pub to: HostId,
    pub packet: Packet,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub incarnation: Incarnation,
    pub copy: Option<ObjectCopy>,
    pub crashed: bool,
}

/// What the client knows: its last write of each page, and those acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub written: [Version; 2],
    pub acknowledged: [Version; 2],
    /// A read under way: its number, page, and what was acknowledged when it began.
    pub read: Option<(u8, PageNumber, Version)>,
    pub reads: u8,
    pub old_read: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub servers: [Server; 2],
    pub migration: Move,
    pub client: Client,
    pub network: BTreeSet<Sent>,
    pub faults: Faults,
}

/// The pages of the object, what may still go wrong, and what the client may still begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    pub crashes: u8,
    pub losses: u8,
    pub duplicates: u8,
    pub cancels: u8,
    pub writes: u8,
    pub reads: u8,
    pub resends: u8,
    pub pages: u8,
}

impl Faults {
    pub fn all_pages(self) -> impl Iterator<Item = PageNumber> {
        (0..u64::from(self.pages)).map(PageNumber)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Deliver(Sent),
    Duplicate(Sent),
    Lose(Sent),
    Resend,
    Crash(usize),
    NoticeDeath(usize),
    Cancel,
    Write(PageNumber),
    Read(PageNumber),
}

pub fn server(host: HostId, boot: u128) -> Server {
    Server {
        incarnation: Incarnation {
            host,
            boot,
            start_ticks: 0,
        },
        copy: None,
        crashed: false,
    }
}

impl State {
    pub fn new(faults: Faults) -> Self {
        let mut source = server(SOURCE, 0);
        let mut copy = ObjectCopy::new(source.incarnation, FIRST);
        for page in faults.all_pages() {
            copy.on_write(page, Version(1), FIRST);
        }
        source.copy = Some(copy);
        let mut state = Self {
            servers: [source, server(DESTINATION, 0)],
            migration: Move::new(SOURCE, DESTINATION, FIRST, FIRST),
            client: Client {
                written: [Version(1); 2],
                acknowledged: [Version(1); 2],
                read: None,
                reads: 0,
                old_read: false,
            },
            network: BTreeSet::new(),
            faults,
        };
        state.resend();
        state
    }

    pub fn send(&mut self, from: HostId, to: HostId, packet: Packet) {
        self.network.insert(Sent { from, to, packet });
    }

    /// The move's message is sent where it is another one than before.
    pub fn change_move(&mut self, event: impl FnOnce(&mut Move)) {
        let before = (self.migration.message(), self.migration.route());
        event(&mut self.migration);
        let route = self.migration.route();
        if let Some(send) = self.migration.message()
            && before.0 != Some(send)
        {
            self.send(ORGANIZER, send.to, Packet::Move(send.message));
        }
        if before.1 != route {
            self.send_requests();
        }
    }

    /// Everything that waits for an answer is sent again.
    pub fn resend(&mut self) {
        if let Some(send) = self.migration.message() {
            self.send(ORGANIZER, send.to, Packet::Move(send.message));
        }
        for index in 0..2 {
            self.send_pages(index);
        }
        self.send_requests();
    }

    pub fn send_requests(&mut self) {
        let Route::To {
            server,
            generation: stamp,
        } = self.migration.route()
        else {
            return;
        };
        for page in self.faults.all_pages() {
            let version = self.client.written[page.0 as usize];
            if version > self.client.acknowledged[page.0 as usize] {
                self.send(
                    ORGANIZER,
                    server,
                    Packet::Write {
                        page,
                        version,
                        stamp,
                    },
                );
            }
        }
        if let Some((number, page, _)) = self.client.read {
            self.send(
                ORGANIZER,
                server,
                Packet::Read {
                    page,
                    number,
                    stamp,
                },
            );
        }
    }

    pub fn send_pages(&mut self, index: usize) {
        let pages: Vec<_> = self.servers[index]
            .copy
            .iter()
            .flat_map(ObjectCopy::pages_to_copy)
            .collect();
        for message in pages {
            let MoveMessage::CopyPage { destination, .. } = message else {
                continue;
            };
            let from = self.servers[index].incarnation.host;
            self.send(from, destination.host, Packet::Move(message));
        }
    }

    pub fn deliver(&mut self, sent: Sent) {
        if sent.to == ORGANIZER {
            self.on_client(sent.from, sent.packet);
        } else {
            self.on_server((sent.to.0 - 1) as usize, sent);
        }
    }

    pub fn on_client(&mut self, from: HostId, packet: Packet) {
        match packet {
            Packet::Move(message) => {
                self.change_move(|migration| migration.on_message(from, message));
            }
            Packet::Written { page, version } => {
                let last = &mut self.client.acknowledged[page.0 as usize];
                *last = version.max(*last);
            }
            Packet::Value {
                page,
                number,
                version,
            } => {
                if let Some((_, _, least)) = self
                    .client
                    .read
                    .take_if(|read| (read.0, read.1) == (number, page))
                {
                    self.client.old_read |= version < least;
                }
            }
            Packet::Write { .. } | Packet::Read { .. } => {}
        }
    }

    pub fn on_server(&mut self, index: usize, sent: Sent) {
        match sent.packet {
            Packet::Move(message) => self.on_move(index, message),
            Packet::Write {
                page,
                version,
                stamp,
            } => self.on_write(index, page, version, stamp),
            Packet::Read {
                page,
                number,
                stamp,
            } => self.on_read(index, page, number, stamp),
            Packet::Written { .. } | Packet::Value { .. } => {}
        }
    }

    fn on_move(&mut self, index: usize, message: MoveMessage) {
        let Server {
            incarnation, copy, ..
        } = &mut self.servers[index];
        let host = incarnation.host;
        // Progress made by the peer's acknowledgement goes to the organizer.
        let to = match (&message, index) {
            (MoveMessage::CopyPage { .. }, 0) => DESTINATION,
            (MoveMessage::CopyPage { .. }, _) => SOURCE,
            _ => ORGANIZER,
        };
        if let Some(reply) = ObjectCopy::on_message(copy, *incarnation, message) {
            self.send(host, to, Packet::Move(reply));
        }
        self.send_pages(index);
    }

    fn on_write(&mut self, index: usize, page: PageNumber, version: Version, stamp: Generation) {
        let host = self.servers[index].incarnation.host;
        let Some(copy) = &mut self.servers[index].copy else {
            return;
        };
        match copy.on_write(page, version, stamp) {
            // A write is acknowledged by its own version, also where a later one has come.
            Admission::Serve(_) => self.send(host, ORGANIZER, Packet::Written { page, version }),
            Admission::Forward { to, generation } => {
                let stamp = generation;
                let packet = Packet::Write {
                    page,
                    version,
                    stamp,
                };
                self.send(host, to, packet);
            }
            Admission::Retry | Admission::Stale => {}
        }
        self.send_pages(index);
    }

    fn on_read(&mut self, index: usize, page: PageNumber, number: u8, stamp: Generation) {
        let Server {
            incarnation, copy, ..
        } = &self.servers[index];
        let (host, Some(copy)) = (incarnation.host, copy) else {
            return;
        };
        match copy.on_read(page, stamp) {
            Admission::Serve(version) => {
                let packet = Packet::Value {
                    page,
                    number,
                    version,
                };
                self.send(host, ORGANIZER, packet);
            }
            Admission::Forward { to, generation } => {
                let stamp = generation;
                let packet = Packet::Read {
                    page,
                    number,
                    stamp,
                };
                self.send(host, to, packet);
            }
            Admission::Retry | Admission::Stale => {}
        }
    }
}
