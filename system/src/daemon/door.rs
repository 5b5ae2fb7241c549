//! The control socket: who comes, what is said to them, and their leaving.
//!
//! Rule: whoever connects costs a bounded part of each turn of the daemon's loop and of its
//! descriptors, says what he likes and reads or not: nobody waits for him.

use super::access::Asker;
use super::peer::Peer;
use super::{CONNECTION, Daemon, DaemonError, LISTENER};
use crate::control::{Say, TenantNumber, encode};
use crate::socket;
use rustix::event::epoll;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use std::path::Path;

/// Connections taken in, and messages heard of one, in a turn of the loop.
const TURN: usize = 16;

/// One end of the control socket.
pub(super) struct Connection {
    pub fd: OwnedFd,
    pub asker: Asker,
    pub peer: Peer,
    pub tenant: Option<TenantNumber>,
}

impl Daemon {
    pub(super) fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..TURN {
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(fd) => self.let_in(fd),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    // No descriptor is free, most likely. Whoever waits at the door rings on,
                    // so it is not heard for a while.
                    self.log(format_args!("nobody is let in for a second: {errno}"));
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.deaf = true;
                    return;
                }
            }
        }
    }

    /// Hears the door again.
    pub(super) fn listen_again(&mut self) {
        if self.deaf {
            let data = epoll::EventData::new_u64(LISTENER);
            let heard = epoll::add(&self.epoll, &self.listener, data, epoll::EventFlags::IN);
            self.deaf = heard.is_err();
        }
    }

    fn let_in(&mut self, fd: OwnedFd) {
        let Ok(peer) = Peer::of(&fd) else {
            return self.closer.close(u32::MAX, fd);
        };
        let uid = peer.uid;
        if let Some(why) = self.crowded(uid) {
            if let Ok(bytes) = encode(&Say::Refused(why)) {
                let _ = socket::send(&fd, &bytes, &[], SendFlags::DONTWAIT);
            }
            return self.closer.close(uid, fd);
        }
        let token = CONNECTION | (self.next_connection & 0xffff_ffff);
        self.next_connection += 1;
        let data = epoll::EventData::new_u64(token);
        let known = self.connections.contains_key(&token);
        if known || epoll::add(&self.epoll, &fd, data, epoll::EventFlags::IN).is_err() {
            return self.closer.close(uid, fd);
        }
        let connection = Connection {
            asker: Asker::of(&peer),
            peer,
            fd,
            tenant: None,
        };
        self.connections.insert(token, connection);
    }

    /// Reads what a connection says.
    pub(super) fn at_connection(&mut self, token: u64) {
        for _ in 0..TURN {
            let Some(connection) = self.connections.get(&token) else {
                return;
            };
            let uid = connection.asker.uid;
            if self.closer.is_behind(uid) {
                return self.cut_off(token, "what it sent cannot be closed");
            }
            match socket::receive_all(&connection.fd, RecvFlags::DONTWAIT) {
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
                        .for_each(|fd| self.closer.close(uid, fd));
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

    /// Ends a connection that nobody of ours would have, and the tenant that has it.
    pub(super) fn cut_off(&mut self, token: u64, why: &str) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        let (uid, pid, tenant) = (connection.asker.uid, connection.peer.pid, connection.tenant);
        self.refuse(token, why);
        let pid = pid.as_raw_nonzero();
        match tenant {
            Some(number) => self.log(format_args!("tenant {number} is cut off: {why}")),
            // As often as it may be: who comes again and again does not fill the log.
            None if self.hasty(uid).is_none() => self.log(format_args!(
                "process {pid} of user {uid} is cut off: {why}"
            )),
            None => {}
        }
        self.hung_up(token);
    }

    /// Says something to a tenant, if it is there. One that does not read what it is told
    /// loses it, and nobody waits.
    pub(super) fn say(&self, number: TenantNumber, say: &Say) {
        let tenancy = self.tenants.get(&number);
        if let Some(token) = tenancy.and_then(|tenancy| tenancy.connection) {
            self.say_at(token, say, &[]);
        }
    }

    /// Says something at a connection; whether it will be there to be read.
    pub(super) fn say_at(&self, token: u64, say: &Say, fds: &[BorrowedFd<'_>]) -> bool {
        let (Some(connection), Ok(bytes)) = (self.connections.get(&token), encode(say)) else {
            return false;
        };
        socket::send(&connection.fd, &bytes, fds, SendFlags::DONTWAIT).is_ok()
    }

    pub(super) fn refuse(&self, token: u64, why: impl std::fmt::Display) {
        let why = crate::control::cut(&why.to_string(), crate::control::TEXT);
        self.say_at(token, &Say::Refused(why), &[]);
    }

    pub(super) fn close(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            let _ = epoll::delete(&self.epoll, &connection.fd);
            // With what was sent there and not read.
            self.closer.close(connection.asker.uid, connection.fd);
        }
    }
}

/// Listens at `path`. A socket that nobody listens at any more is taken away.
pub(super) fn listen(path: &Path) -> Result<OwnedFd, DaemonError> {
    let fail = |why: String| DaemonError::Listen {
        path: path.into(),
        why,
    };
    if crate::tenant::connect(path).is_ok() {
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
        // Who may ask is decided by who he is, not by the file's rights. They are given as the
        // file is made: changed later, by its name, they could be another file's by then.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o111));
        let bound = rustix::net::bind(&socket, &address);
        rustix::process::umask(mask);
        bound?;
        rustix::net::listen(&socket, 1024)?;
        Ok(socket)
    };
    bound().map_err(|errno| fail(errno.to_string()))
}
