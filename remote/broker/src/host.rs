//! A host's part in the control plane: its seat, its broker where it has it, and its paging server.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 3.2 and 3.5. One task owns all of it and waits
//! for nothing but events, so that a host that is slow delays no other. What it decides comes from
//! `remote-policy`.
//!
//! Rule: an epoch is its broker's alone to use, so an operation on the server is refused unless its sender
//! is the host of its epoch's broker; and a client's request names the client that sends it.

use crate::directory::Directory;
use crate::paging_server::PagingServer;
use crate::peer_log::PeerLog;
use crate::peers::Peers;
use crate::permits::PermitDesk;
use crate::plausible::plausible;
use crate::protocol::{ClusterStatus, HostMessage, Member, Reply, Request};
use crate::seat::{LeaseEvent, Seat};
use crate::status_cut;
use remote_policy::broker::{ServerAnswer, UpdateOutcome};
use remote_policy::election::{ElectionAction, PERIOD, PERIODS_PER_TICK};
use remote_policy::identity::{Epoch, HostId, Incarnation, RequestId};
use std::net::SocketAddr;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver};
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

/// Events that are handled at the end of a period at most.
const BEFORE_PERIOD: usize = 1024;
/// What a host's task is told.
pub enum Event {
    /// The hosts in reach have changed.
    Members(Vec<Member>),
    /// A host has connected.
    Connected {
        /// The host.
        member: Member,
        /// The connection's number.
        link: u64,
    },
    /// A host's connection has ended.
    Disconnected {
        /// The host.
        host: HostId,
        /// The connection's number.
        link: u64,
    },
    /// The process of a host has ended: its kernel refuses connections.
    Ended(HostId),
    /// A host has sent a message.
    FromHost {
        /// The host.
        from: HostId,
        /// The message.
        message: HostMessage,
    },
    /// A client has sent a request.
    FromClient {
        /// The client, where it is one that may have permits.
        client: Option<Incarnation>,
        /// Its host's name.
        name: String,
        /// The request.
        request: Request,
        /// Where the reply goes.
        reply: oneshot::Sender<Reply>,
    },
    /// The lease of the broker has another holder.
    Lease(LeaseEvent),
    /// The host's own paging server has something for another host.
    FromServer {
        /// The receiver.
        to: HostId,
        /// The message.
        message: HostMessage,
    },
}

/// A host's task.
pub struct Host {
    pub directory: Directory,
    pub seat: Box<dyn Seat>,
    pub server: PagingServer,
    pub peers: Peers,
    pub desk: PermitDesk,
    /// Periods until now.
    pub periods: u32,
    /// Addresses of hosts to be introduced to.
    pub addresses: watch::Sender<Vec<SocketAddr>>,
    pub log: PeerLog,
}

impl Host {
    /// Serves until `events` end.
    pub async fn run(
        mut self,
        mut own: watch::Receiver<Member>,
        first: Vec<ElectionAction>,
        mut events: Receiver<Event>,
        mut answers: UnboundedReceiver<Event>,
    ) {
        self.on_election(first);
        let mut periods = interval(PERIOD);
        // After a stop one claim is as good as many.
        periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                due = periods.tick() => {
                    // A host that had no processor for a period knows nothing of that period.
                    let is_late = due.elapsed() >= PERIOD;
                    // Signs of life that wait here are there.
                    for _ in 0..BEFORE_PERIOD {
                        let next = answers.try_recv().ok().or_else(|| events.try_recv().ok());
                        match next {
                            Some(event) => self.on_event(event),
                            None => break,
                        }
                    }
                    self.on_period(is_late);
                }
                Some(event) = answers.recv() => self.on_event(event),
                Ok(()) = own.changed() => {
                    let own = own.borrow_and_update().clone();
                    self.directory.set_own(own.clone());
                    self.peers.set_own(own);
                }
                event = events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => return,
                },
            }
        }
    }

    fn on_period(&mut self, is_late: bool) {
        self.periods = self.periods.wrapping_add(1);
        let counts_silence = !is_late && self.periods.is_multiple_of(PERIODS_PER_TICK);
        let actions = match counts_silence {
            true => {
                // Some may be silent for too long now.
                self.on_hosts();
                self.seat.on_tick()
            }
            false => self.seat.repeat_signs(),
        };
        self.on_election(actions);
        self.server.update();
        self.desk.forget_abandoned();
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Members(members) => {
                self.directory.set_members(members);
                self.on_hosts();
            }
            Event::Connected { member, link } => {
                self.directory.on_connected(member, link);
                self.on_hosts();
            }
            Event::Disconnected { host, link } => {
                self.directory.on_disconnected(host, link);
                self.on_hosts();
            }
            Event::Ended(host) => {
                self.directory.on_ended(host);
                self.on_hosts();
                let actions = self.seat.on_host_gone(host);
                self.on_election(actions);
            }
            Event::FromHost { from, message } => {
                self.directory.on_message(from);
                self.on_message(from, message);
            }
            Event::FromServer { to, message } => self.send(to, message),
            Event::Lease(event) => self.on_lease(&event),
            Event::FromClient {
                client,
                name,
                request,
                reply,
            } => self.on_request(client, name, request, reply),
        }
    }

    /// The holder of the lease is a host to be introduced to: it may be on no link of this one, and no peer.
    fn on_lease(&mut self, event: &LeaseEvent) {
        if let LeaseEvent::HeldBy(holder) = event {
            self.addresses.send_replace(vec![holder.control]);
        }
        let actions = self.seat.on_lease(event);
        self.on_election(actions);
    }

    /// The hosts in reach may be others now.
    fn on_hosts(&mut self) {
        let directory = &self.directory;
        self.peers.retain(|host| directory.find(host).is_some());
        let actions = self.seat.on_membership(&directory.hosts());
        self.on_election(actions);
    }

    /// Sends a message to a host, this one too.
    fn send(&mut self, to: HostId, message: HostMessage) {
        if to == self.directory.own().host() {
            return self.on_message(to, message);
        }
        match self.directory.find(to) {
            Some(member) => self.peers.send(to, member.control, message),
            None => tracing::debug!("{to} is not known here"),
        }
    }

    fn on_election(&mut self, actions: Vec<ElectionAction>) {
        for action in actions {
            match action {
                ElectionAction::Send { to, message } => {
                    self.send(to, HostMessage::Election(message));
                }
                ElectionAction::GrantServer(epoch) => self.server.grant_to(epoch),
                ElectionAction::Lead(epoch) => {
                    tracing::info!("is broker of epoch {}", epoch.number);
                    self.directory.on_lead();
                    self.desk.lead(epoch);
                }
                ElectionAction::Resign { winner } => {
                    self.directory.on_resign();
                    let name = self.directory.name(winner);
                    tracing::info!("is not broker any more: {name} is");
                    self.desk
                        .resign(&self.directory.cluster(self.seat.broker()));
                }
                ElectionAction::DropServer(server) => {
                    let name = self.directory.name(server);
                    tracing::info!("{name} is not among the broker's servers any more");
                    let sends = self.desk.on_server_lost(server);
                    self.send_all(sends);
                }
            }
        }
    }

    fn send_all(&mut self, sends: Vec<(HostId, HostMessage)>) {
        for (to, message) in sends {
            self.send(to, message);
        }
    }

    fn on_message(&mut self, from: HostId, message: HostMessage) {
        let held = self.seat.broker().map_or(0, |(_, held)| held.number);
        let is_known = |host| self.directory.find(host).is_some();
        match message {
            HostMessage::Election(message) => match plausible(message, held, is_known) {
                Some(message) => {
                    let actions = self.seat.on_message(from, message);
                    self.on_election(actions);
                }
                None => self.warn_of(from),
            },
            HostMessage::Allocate { epoch, request } if epoch.broker.host == from => {
                match self.other_broker(from) {
                    None => self.server.allocate(from, epoch, request),
                    Some(held) => self.send(from, wrong_epoch(request.id, held)),
                }
            }
            HostMessage::Reallocate { epoch, request } if epoch.broker.host == from => {
                match self.other_broker(from) {
                    None => self.server.reallocate(from, epoch, request),
                    Some(held) => self.send(from, wrong_epoch(request.id, held)),
                }
            }
            // Of a broker that has lost the server meanwhile, too.
            HostMessage::RequestReport if self.other_broker(from).is_some() => {}
            HostMessage::RequestReport => self.server.report(),
            // Of a server that is not this broker's, or not any more: the seat alone ends what it has.
            HostMessage::Report(_) | HostMessage::Update(_) if !self.has_server(from) => {}
            HostMessage::Report(report) if report.update.server == from => {
                let sends = self.desk.on_report(&report);
                self.send_all(sends);
            }
            HostMessage::Update(update) if update.server == from => {
                if self.desk.on_update(&update) == UpdateOutcome::ReportNeeded {
                    self.send(from, HostMessage::RequestReport);
                }
            }
            HostMessage::Answer {
                request,
                answer,
                sealed,
            } => {
                let sends = self.desk.on_answer(from, request, answer, sealed);
                self.send_all(sends);
            }
            // What another host has no business to send.
            _ => self.warn_of(from),
        }
    }

    fn warn_of(&self, from: HostId) {
        let name = self.directory.name(from);
        let line = format_args!("{name} sent what is not its own to send");
        self.log.warn(line);
    }

    /// Returns true if the seat has a host's server, and the host is in reach: its process has not ended.
    fn has_server(&self, host: HostId) -> bool {
        let is_own = host == self.directory.own().host();
        self.seat.has_server(host) && (is_own || self.directory.find(host).is_some())
    }

    /// The epoch that is held here, where it is another host's: the paging server does nothing for that one.
    fn other_broker(&self, from: HostId) -> Option<Epoch> {
        let (_, held) = self.seat.broker()?;
        (held.broker.host != from).then_some(held)
    }

    fn on_request(
        &mut self,
        client: Option<Incarnation>,
        name: String,
        request: Request,
        reply: oneshot::Sender<Reply>,
    ) {
        let cluster = self.directory.cluster(self.seat.broker());
        let requested_by = match &request {
            Request::Allocate(request) => Some(request.permit.id.client),
            Request::Reallocate(request) => Some(request.id.client),
            _ => None,
        };
        if requested_by.is_some() && requested_by != client {
            let text = "a request for a permit is its client's alone to send".to_owned();
            _ = reply.send(Reply::Invalid(text));
            return;
        }
        let contract = match &request {
            Request::Allocate(request) if request.permit.pages == 0 => {
                Err("a permit is for one page at least".to_owned())
            }
            Request::Allocate(request) => {
                let checked = request.permit.check_contract();
                checked.map_err(|why| why.to_string())
            }
            _ => Ok(()),
        };
        if let Err(text) = contract {
            _ = reply.send(Reply::Invalid(text));
            return;
        }
        match request {
            Request::FindBroker { others } => {
                if !others.is_empty() {
                    self.addresses.send_replace(others);
                }
                _ = reply.send(Reply::Cluster(cluster));
            }
            Request::Allocate(_) | Request::Reallocate(_) if !self.desk.is_broker() => {
                _ = reply.send(Reply::Cluster(cluster));
            }
            Request::Allocate(request) => {
                let sends = self.desk.allocate(request, reply);
                self.send_all(sends);
            }
            Request::Reallocate(request) => {
                let sends = self.desk.reallocate(request, reply);
                self.send_all(sends);
            }
            Request::ReportUse(usage) => {
                if let Some(client) = client {
                    self.desk.on_use(client, name, usage);
                }
                _ = reply.send(Reply::Done);
            }
            Request::Status => {
                let status = ClusterStatus {
                    cluster,
                    is_broker: self.desk.is_broker(),
                    servers: self.desk.servers(),
                    clients: self.desk.clients(),
                    clients_left_out: 0,
                };
                _ = reply.send(Reply::Status(status_cut::cut(status)));
            }
        }
    }
}

/// The answer to a request of a host that does not hold the server.
fn wrong_epoch(request: RequestId, held: Epoch) -> HostMessage {
    HostMessage::Answer {
        request,
        answer: ServerAnswer::WrongEpoch { held },
        sealed: None,
    }
}
