//! The control socket: connections, messages to them, and their end.
//!
//! Rule: connections without a contract have at most a fifth of the loop's time, all of them
//! together, and are served when tenants have been: however many there are and whatever they
//! send, no tenant waits for them longer than a turn takes ([`SHARE`]). Of descriptors they have
//! at most half, one person's at most a quarter. The daemon never blocks on a peer.

use crate::peer::Peer;
use crate::policy::PeerIdentity;
use crate::{CONNECTION, Daemon, DaemonError, STRANGERS};
use host::seqpacket;
use protocol::{DaemonEvent, TenantNumber, encode};
use rustix::event::{Timespec, epoll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use std::path::Path;
use std::time::{Duration, Instant};

/// Connections accepted, and messages received from one, in a turn of the loop.
const TURN: usize = 16;

/// After strangers were served for a time, they wait for so many times that.
const SHARE: u32 = 4;

/// How long strangers are served at a time; a message that is begun is dealt with.
const LONGEST: Duration = Duration::from_millis(1);

/// The listener, among strangers.
pub(super) const LISTENER: u64 = 0;

/// Connections without a contract, and when they are served.
pub(super) struct UnidentifiedPeers {
    epoll: OwnedFd,
    /// One of them has something to be done.
    here: bool,
    /// Not before this.
    from: Instant,
}

impl UnidentifiedPeers {
    pub fn new(epoll: OwnedFd) -> Self {
        let from = Instant::now();
        Self {
            epoll,
            here: false,
            from,
        }
    }

    /// Where they are waited for.
    pub fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// One of them has something to be done: nothing more is heard of that until it is.
    pub fn come(&mut self) {
        self.here = true;
    }

    /// When they are to be served, if one of them waits.
    pub fn patience(&self) -> Option<Duration> {
        let left = || self.from.saturating_duration_since(Instant::now());
        self.here.then(left)
    }
}

/// One end of the control socket.
pub(super) struct Connection {
    pub fd: OwnedFd,
    pub asker: PeerIdentity,
    pub peer: Peer,
    /// Whose descriptors and time it takes.
    pub person: u32,
    pub tenant: Option<TenantNumber>,
}

impl Daemon {
    /// Serves those without a contract, if it is time.
    pub(super) fn serve_strangers(&mut self) {
        if self.strangers.patience() != Some(Duration::ZERO) {
            return;
        }
        let begin = Instant::now();
        let mut ready = [const { std::mem::MaybeUninit::uninit() }; 16];
        let now = Timespec::default();
        let tokens: Vec<u64> = match epoll::wait(&self.strangers.epoll, &mut ready, Some(&now)) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        };
        for token in tokens {
            // Those that are not come to are first the next time.
            if begin.elapsed() > LONGEST {
                break;
            }
            match token {
                LISTENER => self.accept(),
                _ => self.at_connection(token),
            }
        }
        self.strangers.here = false;
        self.strangers.from = Instant::now() + begin.elapsed() * SHARE;
        let data = epoll::EventData::new_u64(STRANGERS);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        // It was there before: nothing new is needed for it.
        let _ = epoll::modify(&self.epoll, &self.strangers.epoll, data, flags);
    }

    /// A connection is a tenant's from now on, and served with tenants, or is none's any more.
    pub(super) fn set_tenant(&mut self, token: u64, tenant: Option<TenantNumber>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.tenant = tenant;
        let (to, from) = match tenant {
            Some(_) => (&self.epoll, &self.strangers.epoll),
            None => (&self.strangers.epoll, &self.epoll),
        };
        let data = epoll::EventData::new_u64(token);
        // Where the kernel has no memory for it, it is served where it was.
        if epoll::add(to, &connection.fd, data, epoll::EventFlags::IN).is_ok() {
            let _ = epoll::delete(from, &connection.fd);
        }
    }

    pub(super) fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..TURN {
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(fd) => self.let_in(fd),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    // No descriptor is free, most likely. Pending connections keep the socket
                    // readable, so it is not polled for a while.
                    tracing::warn!("accept: {errno}; no connection is accepted for a second");
                    let _ = epoll::delete(&self.strangers.epoll, &self.listener);
                    self.deaf = true;
                    return;
                }
            }
        }
    }

    /// Re-arms the listening socket.
    pub(super) fn listen_again(&mut self) {
        if self.deaf {
            let data = epoll::EventData::new_u64(LISTENER);
            let heard = epoll::add(
                &self.strangers.epoll,
                &self.listener,
                data,
                epoll::EventFlags::IN,
            );
            self.deaf = heard.is_err();
        }
    }

    fn let_in(&mut self, fd: OwnedFd) {
        let Ok(peer) = Peer::of(&fd) else {
            return self.closer.close(u32::MAX, fd);
        };
        let person = self.guests.person(peer.uid);
        if let Some(why) = self.crowded(peer.uid).or_else(|| self.besieged(peer.uid)) {
            if let Ok(bytes) = encode(&DaemonEvent::Refused(why)) {
                let _ = seqpacket::send(&fd, &bytes, &[], SendFlags::DONTWAIT);
            }
            return self.closer.close(person, fd);
        }
        let token = CONNECTION | (self.next_connection & 0xffff_ffff);
        self.next_connection += 1;
        let data = epoll::EventData::new_u64(token);
        let known = self.connections.contains_key(&token);
        if known || epoll::add(&self.strangers.epoll, &fd, data, epoll::EventFlags::IN).is_err() {
            return self.closer.close(person, fd);
        }
        tracing::debug!(
            token,
            pid = peer.pid.as_raw_nonzero().get(),
            uid = peer.uid,
            "connection"
        );
        let connection = Connection {
            asker: PeerIdentity::of(&peer),
            peer,
            person,
            fd,
            tenant: None,
        };
        self.connections.insert(token, connection);
    }

    /// Receives from a connection.
    pub(super) fn at_connection(&mut self, token: u64) {
        for _ in 0..TURN {
            let Some(connection) = self.connections.get(&token) else {
                return;
            };
            let person = connection.person;
            if self.closer.is_behind(person) {
                return self.cut_off(token, "what it sent cannot be closed");
            }
            match seqpacket::receive_all(&connection.fd, RecvFlags::DONTWAIT) {
                Ok(mut arrived) => {
                    let (len, whole) = (arrived.message.len, arrived.whole);
                    match (len, whole) {
                        (0, _) => self.hung_up(token),
                        (_, false) => self.cut_off(token, "its message is longer than any of ours"),
                        (_, true) => self.hear(token, &mut arrived.message),
                    }
                    let first = arrived.message.fds.into_iter().flatten();
                    first
                        .chain(arrived.more)
                        .for_each(|fd| self.closer.close(person, fd));
                }
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => return self.hung_up(token),
            }
        }
    }

    /// The other end is gone; a tenant's contract ends with it.
    pub(super) fn hung_up(&mut self, token: u64) {
        let tenant = self.connections.get(&token).and_then(|c| c.tenant);
        self.close(token);
        if let Some(number) = tenant {
            let Some(tenancy) = self.tenants.get_mut(&number) else {
                return;
            };
            tenancy.connection = None;
            if tenancy.has_begun() {
                // Unless it has given its frames back already.
                return self.kill(number);
            }
            self.resign(number);
        }
    }

    /// Ends a connection that violates the protocol, and the tenant that has it.
    pub(super) fn cut_off(&mut self, token: u64, why: &str) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        let (uid, pid, tenant) = (connection.asker.uid, connection.peer.pid, connection.tenant);
        self.refuse(token, why);
        let pid = pid.as_raw_nonzero();
        match tenant {
            Some(number) => tracing::warn!("tenant {number} is cut off: {why}"),
            // Rate-limited: a client that reconnects again and again does not fill the log.
            None if self.hasty(uid).is_none() => {
                tracing::warn!("process {pid} of user {uid} is cut off: {why}")
            }
            None => {}
        }
        self.hung_up(token);
    }

    /// Sends a message to a tenant, if it is connected. A tenant that does not read loses the
    /// message; the daemon does not block.
    pub(super) fn say(&self, number: TenantNumber, say: &DaemonEvent) {
        let tenancy = self.tenants.get(&number);
        if let Some(token) = tenancy.and_then(|tenancy| tenancy.connection) {
            self.say_at(token, say, &[]);
        }
    }

    /// Sends a message on a connection. Returns true if it was queued.
    pub(super) fn say_at(&self, token: u64, say: &DaemonEvent, fds: &[BorrowedFd<'_>]) -> bool {
        let (Some(connection), Ok(bytes)) = (self.connections.get(&token), encode(say)) else {
            return false;
        };
        seqpacket::send(&connection.fd, &bytes, fds, SendFlags::DONTWAIT).is_ok()
    }

    pub(super) fn refuse(&self, token: u64, why: impl std::fmt::Display) {
        let why = protocol::cut(&why.to_string(), protocol::TEXT);
        self.say_at(token, &DaemonEvent::Refused(why), &[]);
    }

    pub(super) fn close(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            let _ = epoll::delete(&self.epoll, &connection.fd);
            let _ = epoll::delete(&self.strangers.epoll, &connection.fd);
            // With what was sent there and not read.
            self.closer.close(connection.person, connection.fd);
        }
    }
}

/// Listens at `path`. A stale socket, without a listener, is removed.
pub(super) fn listen(path: &Path) -> Result<OwnedFd, DaemonError> {
    let fail = |why: String| DaemonError::Listen {
        path: path.into(),
        why,
    };
    if host::seqpacket::connect(path).is_ok() {
        return Err(fail(
            "another daemon does already; stop that one first".into(),
        ));
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .map_err(|why| fail(format!("{}: {why}", folder.display())))?;
    }
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|there| std::os::unix::fs::FileTypeExt::is_socket(&there.file_type()));
    if is_socket {
        let _ = std::fs::remove_file(path);
    }
    let bound = || -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
        );
        let socket = rustix::net::socket_with(family, kind, flags, None)?;
        let address = rustix::net::SocketAddrUnix::new(path)?;
        // Authorisation is by SO_PEERCRED, not by the socket's mode. The mode is set as the
        // file is made: a later change by name could hit another file.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o111));
        let bound = rustix::net::bind(&socket, &address);
        rustix::process::umask(mask);
        bound?;
        rustix::net::listen(&socket, 1024)?;
        Ok(socket)
    };
    bound().map_err(|errno| fail(errno.to_string()))
}
