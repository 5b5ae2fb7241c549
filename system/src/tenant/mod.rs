//! A tenant's side of its contract with the daemon.
//!
//! A tenant is what holds one contract: a tree of processes, for which its keeper speaks,
//! or one program that links the library. It asks once, gets frames by the limit of its
//! ledger and disk time by its IO channels, and is then asked for frames back now and then.
//!
//! Rule: it outlives the daemon. The tenant holds the memory of its ledger and of its
//! channels; a daemon that was started again is handed them and goes on where the first
//! stopped. Meanwhile faults that need the disk wait, and frames stay as they are.

pub mod file;
pub mod trace;

use crate::control::{
    Ask, Books, ChannelNumber, FaultShare, Listed, NAME, Say, TenantNumber, Ticket, cut, decode,
    encode,
};
use crate::socket::{self, Received};
use crate::terms::{DiskTerms, FrameTerms, Place, Terms};
use rate::Reservation;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a daemon may take to answer who asks for a contract: the swap file of a newcomer
/// is wiped first.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a daemon that has gone is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// What a tenant asks for; what is `None` is by the daemon's default.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// What it is called, for people.
    pub name: String,
    /// Frames.
    pub frames: Option<FrameTerms>,
    /// Disk time.
    pub disk: Option<DiskTerms>,
    /// Bytes of swap.
    pub swap: Option<u64>,
    /// Which frames; any if not said. The daemon says whether the machine has such; to get
    /// them of the kernel is the tenant's ([`bind_to_node`], `allocate_huge`).
    pub place: Option<Place>,
}

/// Why there is no contract.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// Nobody listens.
    #[error(
        "no system domain listens at {}: {why}; start one (selfpage system --config FILE), or name its socket",
        path.display()
    )]
    Nobody {
        /// Where it was looked for.
        path: PathBuf,
        /// What the kernel says.
        why: Errno,
    },
    /// It said no.
    #[error("the system domain refuses: {0}")]
    Refused(String),
    /// It says what this build does not understand.
    #[error("the system domain at the socket is of another version: install both from one build")]
    OtherBuild,
    /// It went away, or does not answer.
    #[error("the system domain stopped answering: {0}")]
    Silent(Errno),
}

/// What the daemon wants, or what has come of what it was asked.
#[derive(Debug)]
pub enum Heard {
    /// A channel that was asked for.
    Opened {
        /// As asked with.
        cookie: u64,
        /// Its number.
        channel: ChannelNumber,
        /// The channel's memory.
        memory: OwnedFd,
        /// What is rung for its client.
        bell: OwnedFd,
    },
    /// A channel that was asked for cannot be had.
    NotOpened {
        /// As asked with.
        cookie: u64,
        /// Why.
        why: String,
    },
    /// Nothing of the channel is under way any more.
    Closed(ChannelNumber),
    /// No more than `keep` frames may be owned at the deadline; then
    /// [`Tenant::answered`].
    Revoke {
        /// The number of this revocation.
        round: u32,
        /// Frames that may be kept.
        keep: u32,
        /// Until when.
        deadline: Instant,
    },
    /// The contract changes.
    Changed {
        /// To this.
        terms: Terms,
        /// What becomes less does so after this.
        notice: Duration,
    },
    /// It may have so many faults from now on.
    Faults(FaultShare),
    /// The daemon has ended: what needs it waits.
    Gone,
    /// A daemon is there again and has taken this tenant back.
    Back,
    /// The daemon does not take this tenant back.
    Refused(String),
}

/// A channel's descriptors, kept for a daemon that is started again.
struct Held {
    memory: OwnedFd,
    /// The daemon's end of what is rung for the client.
    server_bell: OwnedFd,
}

/// A contract with the daemon.
pub struct Tenant {
    path: PathBuf,
    connection: Option<OwnedFd>,
    number: TenantNumber,
    ticket: Ticket,
    terms: Terms,
    note: String,
    doorbell: OwnedFd,
    hunger: OwnedFd,
    ledger: Option<OwnedFd>,
    channels: BTreeMap<ChannelNumber, Held>,
    /// Asked for and not answered: they are asked for again.
    opening: VecDeque<(u64, u16)>,
    closing: Vec<ChannelNumber>,
    /// It asked for a share of the faults, with this reservation.
    faults: Option<Option<Reservation>>,
    looked: Instant,
    refused: bool,
}

impl Tenant {
    /// Asks for a contract, and waits for the answer.
    pub fn join(path: &Path, wanted: &Wanted) -> Result<Self, TenantError> {
        let connection = connect(path).map_err(|why| TenantError::Nobody {
            path: path.into(),
            why,
        })?;
        let ask = Ask::Join {
            name: cut(&wanted.name, NAME),
            frames: wanted.frames,
            disk: wanted.disk,
            swap: wanted.swap,
            place: wanted.place,
        };
        let (say, fds) = converse(&connection, &ask, &[])?;
        let Say::Admitted {
            tenant,
            ticket,
            terms,
            note,
        } = say
        else {
            return Err(TenantError::OtherBuild);
        };
        let [doorbell, hunger, _] = fds.map(|fd| fd.ok_or(TenantError::Silent(Errno::MFILE)));
        Ok(Self {
            path: path.into(),
            connection: Some(connection),
            number: tenant,
            ticket,
            terms,
            note,
            doorbell: doorbell?,
            hunger: hunger?,
            ledger: None,
            channels: BTreeMap::new(),
            opening: VecDeque::new(),
            closing: Vec::new(),
            faults: None,
            looked: Instant::now(),
            refused: false,
        })
    }

    /// Makes the ledger known, made for the frames of [`Tenant::terms`], and waits until
    /// the first frames are granted.
    pub fn start(&mut self, ledger: OwnedFd) -> Result<(), TenantError> {
        let connection = self
            .connection
            .as_ref()
            .ok_or(TenantError::Silent(Errno::PIPE))?;
        match converse(connection, &Ask::Ledger, &[ledger.as_fd()])?.0 {
            Say::Started => {
                self.ledger = Some(ledger);
                Ok(())
            }
            _ => Err(TenantError::OtherBuild),
        }
    }

    /// Asks for a share of the faults beside a reservation of processor time, and waits for
    /// it. Others may follow: [`Heard::Faults`]. Before [`Tenant::start`], from when on the
    /// daemon may say other things first.
    pub fn share_faults(
        &mut self,
        reservation: Option<Reservation>,
    ) -> Result<FaultShare, TenantError> {
        let connection = self
            .connection
            .as_ref()
            .ok_or(TenantError::Silent(Errno::PIPE))?;
        match converse(connection, &faults(reservation, false), &[])?.0 {
            Say::Faults(share) => {
                self.faults = Some(reservation);
                Ok(share)
            }
            _ => Err(TenantError::OtherBuild),
        }
    }

    /// Says what a fault costs by now, in nanoseconds of processor time.
    pub fn fault_unit(&self, unit: u64) {
        if self.faults.is_some() {
            self.say(&Ask::FaultUnit(unit));
        }
    }

    /// The contract.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// What it does not promise, in words; empty mostly.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Its number, for `selfpage contract`.
    pub fn number(&self) -> TenantNumber {
        self.number
    }

    /// Rung by those who put requests into channels.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Rung when more frames are wanted.
    pub fn hunger(&self) -> BorrowedFd<'_> {
        self.hunger.as_fd()
    }

    /// Readable when [`Tenant::dispatch`] has something to do. None while the daemon is away.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(AsFd::as_fd)
    }

    /// When [`Tenant::dispatch`] wants to be called though nothing is readable.
    pub fn patience(&self) -> Option<Duration> {
        (self.connection.is_none() && !self.refused).then_some(LOOK)
    }

    /// Asks for a channel for `depth` operations at a time: [`Heard::Opened`], or
    /// [`Heard::NotOpened`], follows, when there is a daemon.
    pub fn open(&mut self, depth: u16, cookie: u64) {
        self.opening.push_back((cookie, depth));
        self.say(&Ask::Open { depth, cookie });
    }

    /// A channel is no longer used: [`Heard::Closed`] follows.
    pub fn close(&mut self, channel: ChannelNumber) {
        self.closing.push(channel);
        self.say(&Ask::Close(channel));
    }

    /// A revocation was done.
    pub fn answered(&mut self, round: u32) {
        self.say(&Ask::Answered { round });
    }

    /// Does what is to be done, without waiting, and tells what happened.
    pub fn dispatch(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        if self.connection.is_none() && !self.refused && self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            match self.come_back() {
                Ok(true) => heard.push(Heard::Back),
                Ok(false) => {}
                Err(why) => {
                    self.refused = true;
                    heard.push(Heard::Refused(why));
                }
            }
        }
        while let Some(connection) = &self.connection {
            match socket::receive(connection, RecvFlags::DONTWAIT) {
                Ok(message) if message.len > 0 => self.hear(message, &mut heard),
                Err(Errno::AGAIN | Errno::INTR) => break,
                _ => {
                    self.connection = None;
                    self.looked = Instant::now();
                    heard.push(Heard::Gone);
                }
            }
        }
        heard
    }

    fn hear(&mut self, mut message: Received, heard: &mut Vec<Heard>) {
        let Some(say) = decode::<Say>(message.as_slice()) else {
            return;
        };
        heard.push(match say {
            Say::Opened { cookie, channel } => {
                self.opening.retain(|(open, _)| *open != cookie);
                match self.hold(channel, &mut message) {
                    Some((memory, bell)) => Heard::Opened {
                        cookie,
                        channel,
                        memory,
                        bell,
                    },
                    None => {
                        self.close(channel);
                        Heard::NotOpened {
                            cookie,
                            why: "no descriptor is free to receive a channel: raise `ulimit -n`"
                                .into(),
                        }
                    }
                }
            }
            Say::Closed(channel) => {
                self.forget(channel);
                Heard::Closed(channel)
            }
            Say::Revoke {
                round,
                keep,
                within,
            } => Heard::Revoke {
                round,
                keep,
                deadline: Instant::now() + within,
            },
            Say::Faults(share) => Heard::Faults(share),
            Say::Changed { terms, notice } => {
                self.terms = terms;
                Heard::Changed { terms, notice }
            }
            Say::Refused(why) => match self.opening.pop_front() {
                Some((cookie, _)) => Heard::NotOpened { cookie, why },
                None => Heard::Refused(why),
            },
            _ => return,
        });
    }

    /// Keeps a channel's memory and the daemon's end of its bell for the next daemon;
    /// returns the memory and the client's end.
    fn hold(
        &mut self,
        channel: ChannelNumber,
        message: &mut Received,
    ) -> Option<(OwnedFd, OwnedFd)> {
        let [memory, bell, server_bell, ..] = &mut message.fds;
        let (memory, bell, server_bell) = (memory.take()?, bell.take()?, server_bell.take()?);
        let copy = io::fcntl_dupfd_cloexec(&memory, 0).ok()?;
        let held = Held {
            memory: copy,
            server_bell,
        };
        self.channels.insert(channel, held);
        Some((memory, bell))
    }

    fn forget(&mut self, channel: ChannelNumber) {
        self.channels.remove(&channel);
        self.closing.retain(|closing| *closing != channel);
    }

    /// Finds a daemon and shows the ticket. False while there is none.
    fn come_back(&mut self) -> Result<bool, String> {
        let Ok(connection) = connect(&self.path) else {
            return Ok(false);
        };
        let channels = self.channels.len() as u32;
        let rejoin = Ask::Rejoin {
            ticket: self.ticket,
            channels,
        };
        // The bells are the first daemon's, which every process of the tree has: this one is
        // given them.
        let mut fds = vec![self.doorbell.as_fd(), self.hunger.as_fd()];
        fds.extend(self.ledger.iter().map(AsFd::as_fd));
        match converse(&connection, &rejoin, &fds) {
            Ok((Say::Admitted { terms, .. }, _)) => self.terms = terms,
            Err(TenantError::Refused(why)) => return Err(why),
            _ => return Ok(false),
        }
        for (number, held) in &self.channels {
            let fds = [held.memory.as_fd(), held.server_bell.as_fd()];
            if send(&connection, &Ask::Channel(*number), &fds).is_err() {
                return Ok(false);
            }
        }
        self.connection = Some(connection);
        if let Some(reservation) = self.faults {
            self.say(&faults(reservation, true));
        }
        for channel in self.closing.clone() {
            self.say(&Ask::Close(channel));
        }
        for (cookie, depth) in self.opening.clone() {
            self.say(&Ask::Open { depth, cookie });
        }
        Ok(true)
    }

    /// Says something. What a daemon that has just gone does not hear, its successor is
    /// told again.
    fn say(&self, ask: &Ask) {
        if let Some(connection) = &self.connection {
            let _ = send(connection, ask, &[]);
        }
    }
}

fn faults(reservation: Option<Reservation>, known: bool) -> Ask {
    Ask::Faults {
        reservation: reservation.map(|r| (r.runtime(), r.period())),
        known,
    }
}

/// Sends one message.
pub(crate) fn send(
    to: impl AsFd,
    message: &impl serde::Serialize,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = encode(message).map_err(|_| Errno::MSGSIZE)?;
    socket::send(to, &bytes, fds, SendFlags::empty())
}

/// An answer, and the first descriptors with it.
type Answer = (Say, [Option<OwnedFd>; 3]);

/// Says something and waits for the answer.
pub(crate) fn converse(
    connection: &OwnedFd,
    ask: &Ask,
    fds: &[BorrowedFd<'_>],
) -> Result<Answer, TenantError> {
    send(connection, ask, fds).map_err(TenantError::Silent)?;
    hear(connection)
}

/// Waits for the next answer.
pub(crate) fn hear(connection: &OwnedFd) -> Result<Answer, TenantError> {
    wait(connection, Instant::now() + PATIENCE).map_err(TenantError::Silent)?;
    let mut message =
        socket::receive(connection, RecvFlags::DONTWAIT).map_err(TenantError::Silent)?;
    if message.len == 0 {
        return Err(TenantError::Silent(Errno::PIPE));
    }
    match decode(message.as_slice()).ok_or(TenantError::OtherBuild)? {
        Say::Refused(why) => Err(TenantError::Refused(why)),
        say => Ok((say, std::array::from_fn(|at| message.fds[at].take()))),
    }
}

fn wait(connection: &OwnedFd, deadline: Instant) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Has the kernel take all memory of this process, and of those it starts from now on, from
/// one NUMA node.
pub fn bind_to_node(node: u32) -> io::Result<()> {
    let mut mask = [0u64; 16];
    let word = mask.get_mut(node as usize / 64).ok_or(Errno::INVAL)?;
    *word = 1 << (node % 64);
    let most = mask.len() * 64;
    // SAFETY: reads as many words of the mask as it is told there are.
    let bound = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::MPOL_BIND,
            mask.as_ptr(),
            most,
        )
    };
    match bound {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Connects to the daemon at `path`.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// The contracts that the daemon at `path` keeps, as far as the caller may see them.
pub fn list(path: &Path) -> Result<Vec<Listed>, TenantError> {
    ask_for_list(path, &Ask::List)
}

/// What the daemon at `path` has to promise, and what of it is taken.
pub fn books(path: &Path) -> Result<Books, TenantError> {
    let connection = connect(path).map_err(|why| TenantError::Nobody {
        path: path.into(),
        why,
    })?;
    match converse(&connection, &Ask::Books, &[])?.0 {
        Say::Books(books) => Ok(books),
        _ => Err(TenantError::OtherBuild),
    }
}

/// Changes a contract: what is `None` stays. Returns what it is now.
pub fn set(
    path: &Path,
    tenant: TenantNumber,
    frames: Option<FrameTerms>,
    disk: Option<DiskTerms>,
) -> Result<Listed, TenantError> {
    let ask = Ask::Set {
        tenant,
        frames,
        disk,
    };
    let changed = ask_for_list(path, &ask)?.pop();
    changed.ok_or(TenantError::OtherBuild)
}

fn ask_for_list(path: &Path, ask: &Ask) -> Result<Vec<Listed>, TenantError> {
    let connection = connect(path).map_err(|why| TenantError::Nobody {
        path: path.into(),
        why,
    })?;
    let mut listed = Vec::new();
    let mut next = converse(&connection, ask, &[])?.0;
    loop {
        match next {
            Say::Tenant(one) => listed.push(one),
            Say::End => return Ok(listed),
            _ => return Err(TenantError::OtherBuild),
        }
        next = hear(&connection)?.0;
    }
}
