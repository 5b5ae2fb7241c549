//! The client side of one contract: its messages. [`resume`] handles a restart of the
//! daemon, [`revocation`] the messages that change the ledger.
//!
//! Rule: once the contract has begun nothing here blocks. A channel that is requested while no daemon
//! runs opens when the next one does.

mod requests;
mod resume;
mod revocation;

use super::connection::{self, connect, send};
use super::outage::Outage;
use super::{ContractRequest, Revocation, SessionEvent, TenantError};
use host::seqpacket::{self, Received};
use protocol::contract_spec::ContractSpec;
use protocol::{
    ChannelNumber, DaemonEvent, FaultShare, NAME, ResumeToken, TenantNumber, TenantRequest, cut,
    decode,
};
use rate::Reservation;
use requests::{RequestQueue, faults};
use resume::Resumption;
use resume::{KeptChannel, REATTACH_PAUSE};
use revocation::RECLAIM_POLL;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between two attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// A contract with the daemon.
pub struct Session {
    path: PathBuf,
    connection: Option<OwnedFd>,
    /// A connection that the resume token was presented on, while the daemon has not replied yet or lacks channels.
    resuming: Option<Resumption>,
    number: TenantNumber,
    resume_token: ResumeToken,
    /// The request for the contract.
    join: TenantRequest,
    terms: ContractSpec,
    note: String,
    doorbell: OwnedFd,
    pressure_bell: OwnedFd,
    ledger: Option<OwnedFd>,
    channels: BTreeMap<ChannelNumber, KeptChannel>,
    /// Channels that the daemon has no room for yet, and when they were handed over last.
    unattached: (Vec<ChannelNumber>, Instant),
    /// Channels that are requested and not opened: the next daemon is sent the requests again.
    opening: VecDeque<(u64, u16)>,
    /// The cookie of the next request for a channel.
    next_cookie: u64,
    closing: Vec<ChannelNumber>,
    unsent: RequestQueue,
    /// The reservation that a share of the faults was requested with; `None` where no share was requested.
    faults: Option<Option<Reservation>>,
    /// When the session last tried to reconnect, or lost its connection.
    attempted: Instant,
    /// An event received before the first [`Session::dispatch`].
    early: Option<SessionEvent>,
    /// Frames of the guarantee that are reserved for memory that is not paged.
    unpaged: u32,
    /// The revocation under way.
    revocation: Option<Revocation>,
    /// The tenant requested to leave.
    leaving: bool,
    /// The contract has ended.
    has_ended: bool,
}

impl Session {
    /// Requests a contract, and waits for the reply.
    pub fn join(path: &Path, request: &ContractRequest) -> Result<Self, TenantError> {
        let resume_token = ResumeToken::draw().map_err(TenantError::Silent)?;
        let join = TenantRequest::Join {
            resume_token,
            name: cut(&request.name, NAME),
            frames: request.frames,
            disk: request.disk,
            swap: request.swap,
            place: request.place,
        };
        let (connection, (event, fds)) = connection::request_contract(path, connect(path)?, &join)?;
        let DaemonEvent::Admitted {
            tenant,
            terms,
            note,
        } = event
        else {
            return Err(TenantError::OtherBuild);
        };
        let [doorbell, pressure_bell, _] =
            fds.map(|fd| fd.ok_or(TenantError::Silent(Errno::MFILE)));
        Ok(Self {
            path: path.into(),
            connection: Some(connection),
            resuming: None,
            number: tenant,
            resume_token,
            join,
            terms,
            note,
            doorbell: doorbell?,
            pressure_bell: pressure_bell?,
            ledger: None,
            channels: BTreeMap::new(),
            unattached: (Vec::new(), Instant::now()),
            opening: VecDeque::new(),
            next_cookie: 0,
            closing: Vec::new(),
            unsent: RequestQueue::default(),
            faults: None,
            attempted: Instant::now(),
            early: None,
            unpaged: 0,
            revocation: None,
            leaving: false,
            has_ended: false,
        })
    }

    /// Sends the ledger, which was made for the frames of [`Session::terms`], and waits until
    /// the first frames are granted.
    pub fn start(&mut self, ledger: OwnedFd) -> Result<(), TenantError> {
        match self.request(&TenantRequest::Ledger, &[ledger.as_fd()]) {
            Ok(DaemonEvent::Started) => {
                self.ledger = Some(ledger);
                Ok(())
            }
            Ok(_) => Err(TenantError::OtherBuild),
            Err(why) if why.is_end() => {
                self.ledger = Some(ledger);
                self.start_with_next()
            }
            Err(why) => Err(why),
        }
    }

    /// Sends a request before the contract has begun, and waits for the reply. Keeps an event that arrives
    /// first: a changed contract, or a changed share of the faults.
    fn request(
        &mut self,
        request: &TenantRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<DaemonEvent, TenantError> {
        let disconnected = TenantError::Silent(Errno::PIPE);
        let connection = self.connection.as_ref().ok_or(disconnected)?;
        send(connection, request, fds).map_err(TenantError::Silent)?;
        loop {
            match (connection::recv(connection)?.0, request) {
                (DaemonEvent::Faults(share), TenantRequest::Ledger) => {
                    self.early = Some(SessionEvent::Faults(share))
                }
                (DaemonEvent::Changed { terms, notice }, _) => {
                    self.terms = terms;
                    self.early = Some(SessionEvent::Changed { terms, notice });
                }
                (event, _) => return Ok(event),
            }
        }
    }

    /// Requests a share of the faults beside a reservation of processor time, and waits for
    /// it. Later shares arrive as [`SessionEvent::Faults`]. Called before [`Session::start`], after which the
    /// daemon may send other events before the reply.
    pub fn share_faults(
        &mut self,
        reservation: Option<Reservation>,
    ) -> Result<FaultShare, TenantError> {
        let mut outage = Outage::new();
        loop {
            outage.on_request(Instant::now());
            match self.request(&faults(reservation, false), &[]) {
                Ok(DaemonEvent::Faults(share)) => {
                    self.faults = Some(reservation);
                    return Ok(share);
                }
                Ok(_) => return Err(TenantError::OtherBuild),
                Err(why) if why.is_end() => {
                    outage.on_end(Instant::now()).ok_or(why)?;
                    self.join_again()?;
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// Reports the measured cost of a fault, in nanoseconds of processor time.
    pub fn fault_unit(&mut self, unit: u64) {
        // While requests wait this one is dropped: the cost is measured and sent again later.
        if self.faults.is_some() && self.unsent.is_empty() {
            self.send(TenantRequest::FaultUnit(unit));
        }
    }

    /// The contract.
    pub fn terms(&self) -> ContractSpec {
        self.terms
    }

    /// A note on what the contract does not promise; mostly empty.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// The tenant's number, for `selfpage contract`.
    pub fn number(&self) -> TenantNumber {
        self.number
    }

    /// The doorbell: a client rings it after it puts requests into a channel.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// The bell that a process rings when it reaches the limit of frames.
    pub fn pressure_bell(&self) -> BorrowedFd<'_> {
        self.pressure_bell.as_fd()
    }

    /// The connection, which is readable when [`Session::dispatch`] has something to do. `None` while no daemon runs;
    /// another descriptor after [`SessionEvent::Resumed`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(AsFd::as_fd)
    }

    /// The time after which [`Session::dispatch`] is to be called even if nothing is readable.
    pub fn timeout(&self) -> Option<Duration> {
        let is_polling = self.revocation.is_some() || !self.unsent.is_empty();
        let polling = is_polling.then_some(RECLAIM_POLL);
        let is_disconnected = self.connection.is_none() && !self.has_ended;
        let lacks_channels = !self.unattached.0.is_empty();
        let reconnecting = is_disconnected.then_some(RECONNECT_PAUSE);
        polling
            .or(reconnecting)
            .or(lacks_channels.then_some(REATTACH_PAUSE))
    }

    /// Requests a channel for `depth` operations at a time. [`SessionEvent::Opened`] or
    /// [`SessionEvent::NotOpened`] follows, once a daemon runs, with the cookie that this returns.
    pub fn open(&mut self, depth: u16) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.opening.push_back((cookie, depth));
        self.send(TenantRequest::Open { depth, cookie });
        cookie
    }

    /// A channel is no longer used: [`SessionEvent::Closed`] follows.
    pub fn close(&mut self, channel: ChannelNumber) {
        self.closing.push(channel);
        self.send(TenantRequest::Close(channel));
    }

    /// Returns true once the contract has ended.
    pub fn is_over(&self) -> bool {
        self.has_ended
    }

    fn send(&mut self, request: TenantRequest) {
        self.unsent.send(self.connection.as_ref(), request);
    }

    /// Reports a revocation as done.
    fn acknowledge(&mut self, round: u64) {
        self.send(TenantRequest::RevocationDone { round });
    }

    /// Gives the contract back: [`SessionEvent::Left`] follows, or [`SessionEvent::LeaveRefused`] where the daemon
    /// finds that something of it is still used. The caller sends no other request meanwhile.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.send(TenantRequest::Leave);
    }

    fn receive(&mut self) -> Vec<SessionEvent> {
        let mut events: Vec<_> = self.early.take().into_iter().collect();
        let is_disconnected = self.connection.is_none() && !self.has_ended;
        if is_disconnected && self.attempted.elapsed() >= RECONNECT_PAUSE {
            self.attempted = Instant::now();
            match self.resume() {
                Ok(true) => events.push(SessionEvent::Resumed),
                Ok(false) => {}
                Err(why) => {
                    self.has_ended = true;
                    // A session that is leaving: the former daemon released the contract, and ended before it could reply.
                    events.push(match self.leaving {
                        true => SessionEvent::Left,
                        false => SessionEvent::Lost(why.into()),
                    });
                }
            }
        }
        self.unsent.flush(self.connection.as_ref());
        self.reattach();
        while let Some(connection) = &self.connection {
            match seqpacket::receive(connection, RecvFlags::DONTWAIT) {
                Ok(message) if message.len > 0 => self.on_message(message, &mut events),
                Err(Errno::AGAIN | Errno::INTR) => break,
                _ => {
                    self.connection = None;
                    self.unsent.clear();
                    self.attempted = Instant::now();
                    events.push(SessionEvent::Disconnected);
                }
            }
        }
        events
    }

    fn on_message(&mut self, mut message: Received, events: &mut Vec<SessionEvent>) {
        let Some(event) = decode::<DaemonEvent>(message.as_slice()) else {
            return;
        };
        events.push(match event {
            DaemonEvent::Opened { cookie, channel } => {
                self.opening.retain(|(open, _)| *open != cookie);
                match self.keep_channel(channel, &mut message) {
                    Some((memory, bell)) => SessionEvent::Opened {
                        cookie,
                        channel,
                        memory,
                        bell,
                    },
                    None => {
                        self.close(channel);
                        SessionEvent::NotOpened {
                            cookie,
                            why: "no descriptor is free to receive a channel: raise `ulimit -n`"
                                .into(),
                        }
                    }
                }
            }
            DaemonEvent::Closed(channel) => {
                self.drop_channel(channel);
                SessionEvent::Closed(channel)
            }
            DaemonEvent::NoRoomYet(channel) => return self.unattached.0.push(channel),
            DaemonEvent::Revoke {
                round,
                keep,
                within,
            } => SessionEvent::Revoke(Revocation {
                round,
                keep,
                deadline: Instant::now() + within,
            }),
            DaemonEvent::Faults(share) => SessionEvent::Faults(share),
            DaemonEvent::Changed { terms, notice } => {
                self.terms = terms;
                SessionEvent::Changed { terms, notice }
            }
            DaemonEvent::Unpaged { frames } => SessionEvent::Unpaged(frames),
            DaemonEvent::OverGuarantee {
                resident,
                owned,
                within,
            } => SessionEvent::OverGuarantee {
                resident,
                owned,
                within,
            },
            DaemonEvent::Left => {
                // Further messages of the daemon are not for this contract.
                (self.connection, self.has_ended) = (None, true);
                SessionEvent::Left
            }
            DaemonEvent::LeaveRefused(why) => {
                self.leaving = false;
                SessionEvent::LeaveRefused(why)
            }
            DaemonEvent::NotOpened { cookie, why } => {
                self.opening.retain(|(open, _)| *open != cookie);
                SessionEvent::NotOpened { cookie, why }
            }
            DaemonEvent::Refused(why) => SessionEvent::Refused(why),
            _ => return,
        });
    }
}
