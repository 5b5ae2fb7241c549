//! A move is model-checked: a client writes and reads two pages while their object moves, messages
//! are lost, duplicated and reordered, and either server dies at any step. No read is older than
//! the last acknowledged write, and one copy is authoritative throughout.

use selfpage_remote_policy::identity::{HostId, Incarnation};
use selfpage_remote_policy::migration::{
    Admission, Generation, Move, MoveMessage, MoveOutcome, MovePhase, ObjectCopy, PageNumber,
    Route, Version,
};
use stateright::{Checker, Model, Property};
use std::collections::BTreeSet;

const SOURCE: HostId = HostId(1);
const DESTINATION: HostId = HostId(2);
const ORGANIZER: HostId = HostId(3);
const FIRST: Generation = Generation(5);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Packet {
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
struct Sent {
    from: HostId,
    to: HostId,
    packet: Packet,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Server {
    incarnation: Incarnation,
    copy: Option<ObjectCopy>,
    crashed: bool,
}

/// What the client knows: its last write of each page, and those acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    written: [Version; 2],
    acknowledged: [Version; 2],
    /// A read under way: its number, page, and what was acknowledged when it began.
    read: Option<(u8, PageNumber, Version)>,
    reads: u8,
    old_read: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    servers: [Server; 2],
    migration: Move,
    client: Client,
    network: BTreeSet<Sent>,
    faults: Faults,
}

/// The pages of the object, what may still go wrong, and what the client may still begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Faults {
    crashes: u8,
    losses: u8,
    duplicates: u8,
    cancels: u8,
    writes: u8,
    reads: u8,
    resends: u8,
    pages: u8,
}

impl Faults {
    fn all_pages(self) -> impl Iterator<Item = PageNumber> {
        (0..u64::from(self.pages)).map(PageNumber)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
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

fn server(host: HostId, boot: u128) -> Server {
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
    fn new(faults: Faults) -> Self {
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

    fn send(&mut self, from: HostId, to: HostId, packet: Packet) {
        self.network.insert(Sent { from, to, packet });
    }

    /// The move's message is sent where it is another one than before.
    fn change_move(&mut self, event: impl FnOnce(&mut Move)) {
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
    fn resend(&mut self) {
        if let Some(send) = self.migration.message() {
            self.send(ORGANIZER, send.to, Packet::Move(send.message));
        }
        for index in 0..2 {
            self.send_pages(index);
        }
        self.send_requests();
    }

    fn send_requests(&mut self) {
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

    fn send_pages(&mut self, index: usize) {
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

    fn deliver(&mut self, sent: Sent) {
        if sent.to == ORGANIZER {
            self.on_client(sent.from, sent.packet);
        } else {
            self.on_server((sent.to.0 - 1) as usize, sent);
        }
    }

    fn on_client(&mut self, from: HostId, packet: Packet) {
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

    fn on_server(&mut self, index: usize, sent: Sent) {
        let host = self.servers[index].incarnation.host;
        let peer = if index == 0 { DESTINATION } else { SOURCE };
        match sent.packet {
            Packet::Move(message) => {
                let Server {
                    incarnation, copy, ..
                } = &mut self.servers[index];
                let reply = ObjectCopy::on_message(copy, *incarnation, message);
                if let Some(reply) = reply {
                    let to = if let MoveMessage::CopyPage { .. } = message {
                        peer
                    } else {
                        ORGANIZER
                    };
                    // Progress made by the peer's acknowledgement goes to the organizer.
                    self.send(host, to, Packet::Move(reply));
                }
                self.send_pages(index);
            }
            Packet::Write {
                page,
                version,
                stamp,
            } => {
                let Some(copy) = &mut self.servers[index].copy else {
                    return;
                };
                match copy.on_write(page, version, stamp) {
                    // A write is acknowledged by its own version, also where a later one has come.
                    Admission::Serve(_) => {
                        self.send(host, ORGANIZER, Packet::Written { page, version })
                    }
                    Admission::Forward { to, generation } => {
                        self.send(
                            host,
                            to,
                            Packet::Write {
                                page,
                                version,
                                stamp: generation,
                            },
                        );
                    }
                    Admission::Retry | Admission::Stale => {}
                }
                self.send_pages(index);
            }
            Packet::Read {
                page,
                number,
                stamp,
            } => {
                let Some(copy) = &self.servers[index].copy else {
                    return;
                };
                match copy.on_read(page, stamp) {
                    Admission::Serve(version) => {
                        self.send(
                            host,
                            ORGANIZER,
                            Packet::Value {
                                page,
                                number,
                                version,
                            },
                        );
                    }
                    Admission::Forward { to, generation } => {
                        self.send(
                            host,
                            to,
                            Packet::Read {
                                page,
                                number,
                                stamp: generation,
                            },
                        );
                    }
                    Admission::Retry | Admission::Stale => {}
                }
            }
            Packet::Written { .. } | Packet::Value { .. } => {}
        }
    }

    /// The server whose copy decides what was written, by the organizer's knowledge alone.
    fn authority(&self) -> Option<&Server> {
        match self.migration.route() {
            Route::To { server, .. } => Some(&self.servers[(server.0 - 1) as usize]),
            Route::Deferred => {
                // The source, until the destination serves in its place.
                let [source, destination] = &self.servers;
                let is_handing_over = self.migration.phase() == MovePhase::HandingOver;
                Some(if is_handing_over && source.crashed {
                    destination
                } else {
                    source
                })
            }
            Route::Lost => None,
        }
    }

    /// A server that restarted has no copy, or must not serve the one it has.
    fn has_all_acknowledged(&self) -> bool {
        let Some(server) = self.authority() else {
            return true;
        };
        let is_written = |page: PageNumber, copy: &ObjectCopy| {
            copy.version(page) >= self.client.acknowledged[page.0 as usize]
        };
        match &server.copy {
            Some(copy) if copy.is_serving() || !server.crashed => {
                self.faults.all_pages().all(|page| is_written(page, copy))
            }
            _ => server.crashed,
        }
    }

    /// Two copies may serve only where one of them has a generation that no request is stamped
    /// with, nor will be.
    fn has_one_authority(&self) -> bool {
        let Route::To { generation, .. } = self.migration.route() else {
            return true;
        };
        let is_authoritative = |server: &&Server| {
            let serves = |copy: &ObjectCopy| copy.is_serving() && copy.generation() == generation;
            server.copy.as_ref().is_some_and(serves)
        };
        self.servers.iter().filter(is_authoritative).count() <= 1
    }

    fn loses_only_what_died(&self) -> bool {
        match self.migration.outcome() {
            Some(MoveOutcome::SourceLost) => self.servers[0].crashed,
            _ => true,
        }
    }

    /// Without further faults the move ends, and each write and read is answered that a living
    /// copy can answer.
    fn ends(&self) -> bool {
        let mut future = self.clone();
        (0..40).any(|_| {
            for index in 0..2 {
                if future.servers[index].crashed {
                    let host = future.servers[index].incarnation.host;
                    future.change_move(|migration| migration.on_died(host));
                }
            }
            future.resend();
            while let Some(sent) = future.network.pop_first() {
                future.deliver(sent);
            }
            future.has_ended()
        })
    }

    fn has_ended(&self) -> bool {
        let client = &self.client;
        let answered = client.acknowledged == client.written && client.read.is_none();
        let is_dead = self.authority().is_none_or(|server| server.crashed);
        self.migration.phase() == MovePhase::Ended && (answered || is_dead) && !client.old_read
    }
}

impl Model for Faults {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(*self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let faults = state.faults;
        for sent in &state.network {
            actions.push(Action::Deliver(sent.clone()));
            if faults.losses > 0 {
                actions.push(Action::Lose(sent.clone()));
            }
            if faults.duplicates > 0 {
                actions.push(Action::Duplicate(sent.clone()));
            }
        }
        if faults.resends > 0 {
            actions.push(Action::Resend);
        }
        for index in 0..2 {
            if faults.crashes > 0 && !state.servers[index].crashed {
                actions.push(Action::Crash(index));
            }
            if state.servers[index].crashed {
                actions.push(Action::NoticeDeath(index));
            }
        }
        if faults.cancels > 0 {
            actions.push(Action::Cancel);
        }
        for page in faults.all_pages() {
            if faults.writes > 0 {
                actions.push(Action::Write(page));
            }
            if faults.reads > 0 && state.client.read.is_none() {
                actions.push(Action::Read(page));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(sent) => {
                state.network.remove(&sent);
                state.deliver(sent);
            }
            Action::Duplicate(sent) => {
                state.faults.duplicates -= 1;
                state.deliver(sent);
            }
            Action::Lose(sent) => {
                state.faults.losses -= 1;
                state.network.remove(&sent);
            }
            Action::Resend => {
                state.faults.resends -= 1;
                state.resend();
            }
            Action::Crash(index) => {
                state.faults.crashes -= 1;
                let host = state.servers[index].incarnation.host;
                state.servers[index] = Server {
                    crashed: true,
                    ..server(host, 1)
                };
            }
            Action::NoticeDeath(index) => {
                let host = state.servers[index].incarnation.host;
                state.change_move(|migration| migration.on_died(host));
            }
            Action::Cancel => {
                state.faults.cancels -= 1;
                state.change_move(Move::cancel);
            }
            Action::Write(page) => {
                state.faults.writes -= 1;
                state.client.written[page.0 as usize].0 += 1;
                state.send_requests();
            }
            Action::Read(page) => {
                state.faults.reads -= 1;
                state.client.reads += 1;
                let least = state.client.acknowledged[page.0 as usize];
                state.client.read = Some((state.client.reads, page, least));
                state.send_requests();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no read is older than the last acknowledged write",
                |_, state: &State| !state.client.old_read,
            ),
            Property::always(
                "the authoritative copy has every acknowledged write",
                |_, state: &State| state.has_all_acknowledged(),
            ),
            Property::always("one copy is authoritative", |_, state: &State| {
                state.has_one_authority()
            }),
            Property::always("a copy is lost only with its server", |_, state: &State| {
                state.loses_only_what_died()
            }),
            Property::always("a run without further faults ends", |_, state: &State| {
                state.ends()
            }),
            Property::sometimes("the object moves", |_, state: &State| {
                state.migration.outcome() == Some(MoveOutcome::Moved)
            }),
        ]
    }
}

fn check(faults: Faults) {
    let checker = faults.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 1000);
}

const NONE: Faults = Faults {
    crashes: 0,
    losses: 0,
    duplicates: 0,
    cancels: 0,
    writes: 0,
    reads: 0,
    resends: 0,
    pages: 1,
};

#[test]
fn either_server_may_die_at_any_step() {
    check(Faults {
        crashes: 1,
        writes: 1,
        ..NONE
    });
}

#[test]
fn both_servers_may_die_while_a_move_is_cancelled() {
    check(Faults {
        crashes: 2,
        cancels: 1,
        ..NONE
    });
}

#[test]
fn no_read_is_old_when_messages_are_late_or_twice() {
    check(Faults {
        duplicates: 1,
        writes: 1,
        reads: 1,
        ..NONE
    });
}

#[test]
fn a_late_write_never_replaces_a_newer_one() {
    check(Faults {
        duplicates: 1,
        writes: 2,
        ..NONE
    });
}

#[test]
fn a_destination_that_restarted_never_serves_what_it_lost() {
    check(Faults {
        crashes: 1,
        duplicates: 1,
        ..NONE
    });
}

/// Takes minutes and gigabytes.
#[test]
#[ignore = "takes minutes; run it after a change of migration"]
fn a_move_survives_all_faults_together() {
    check(Faults {
        crashes: 1,
        losses: 1,
        duplicates: 1,
        writes: 1,
        reads: 1,
        ..NONE
    });
    check(Faults {
        crashes: 2,
        cancels: 1,
        writes: 2,
        ..NONE
    });
}
