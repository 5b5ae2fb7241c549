//! The sockets by which processes join where there is no filter: see [`link::client`].

use host::fd_reaper::PeerFd;
use host::process_tree::{self, ProcStatus};
use host::seqpacket::{self, Received, UntrustedMessage};
use link::client::{BY_FILTER, CONNECT_VARIABLE, PORT_VARIABLE, SOCKET_VARIABLE};
use link::handshake::{Message, Reply};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, sockopt,
};
use rustix::process::Pid;
use std::ffi::OsString;

pub(crate) const OTHER_BUILD: &str =
    "`selfpage` and libselfpage_preload.so are of different versions: install both from one build";

/// The supervisor's ends of both sockets.
pub(crate) struct Listeners {
    /// The port, on which first messages arrive, each with its connection and its sender.
    pub port: OwnedFd,
    /// The other end of the port, which the tree inherits.
    pub inherited: OwnedFd,
    /// The socket with a name, for processes that have closed the port.
    listener: Option<OwnedFd>,
    name: String,
}

impl Listeners {
    /// Opens the port, and draws the name.
    pub fn open() -> io::Result<Self> {
        let (port, inherited) = seqpacket::pair()?;
        sockopt::set_socket_passcred(&port, true)?;
        let name = random_name()?;
        Ok(Self {
            port,
            inherited,
            listener: None,
            name,
        })
    }

    /// The environment variables by which processes join, with the port at descriptor `number`.
    pub fn environment(&self, number: i32) -> io::Result<Vec<(&'static str, OsString)>> {
        let inode = rustix::fs::fstat(&self.inherited)?.st_ino;
        let port = format!("{number}:{inode}").into();
        Ok(vec![
            (PORT_VARIABLE, port),
            (SOCKET_VARIABLE, self.name.clone().into()),
        ])
    }

    /// Listens by the name. Every user of the machine can connect then, so this is not done where
    /// processes join through the filter.
    pub fn listen(&mut self) -> io::Result<()> {
        self.listener = Some(listen(&self.name)?);
        Ok(())
    }

    /// The socket with the name, once it listens.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// Accepts the next connection; `None` when none waits.
    pub fn accept(&self) -> Option<(PeerFd, Peer)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = rustix::net::accept_with(self.listener.as_ref()?, flags).ok()?;
        let peer = Peer::of(&connection);
        let uid = peer.uid.unwrap_or(u32::MAX);
        Some((PeerFd::new(connection, uid), peer))
    }
}

/// The environment variable by which processes join through the filter.
pub(crate) fn filter_environment() -> Vec<(&'static str, OsString)> {
    vec![(CONNECT_VARIABLE, BY_FILTER.into())]
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// `None` for a process in a PID namespace that is not below this one.
    pub pid: Option<Pid>,
    /// Its user, as the kernel recorded it; `None` where the process joined by a call, which does not have it.
    pub uid: Option<u32>,
}

impl From<UCred> for Peer {
    fn from(sender: UCred) -> Self {
        Self {
            pid: Some(sender.pid),
            uid: Some(sender.uid.as_raw()),
        }
    }
}

/// Most generations between the supervisor and a process of another user that connects by the name: each
/// look-up of an ancestor takes time, and any user may connect.
const OTHERS_LEVELS: usize = 8;

impl Peer {
    /// Returns true if a process that connected by the name is below this one. The user is checked
    /// first: only a root supervisor has processes of other users.
    pub fn is_of_tree(&self) -> bool {
        let us = rustix::process::getpid();
        let own = rustix::process::geteuid();
        self.pid.is_some_and(|pid| {
            if self.uid == Some(own.as_raw()) {
                process_tree::descends(pid, us)
            } else {
                own.is_root() && process_tree::descends_within(pid, us, OTHERS_LEVELS)
            }
        })
    }

    /// Its user, looked up where the kernel recorded none; only an exec needs it. `None` if the process has ended.
    pub fn user(&self) -> Option<u32> {
        let look_up = || self.pid.and_then(ProcStatus::of).map(|status| status.user);
        self.uid.or_else(look_up)
    }

    /// The peer as the kernel recorded it at the connection.
    fn of(connection: &OwnedFd) -> Self {
        let mut it = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: fills the structure of the length given. By hand, since rustix's form has no
        // value for the process number 0.
        unsafe {
            libc::getsockopt(
                connection.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut it).cast(),
                &raw mut len,
            );
        }
        Self {
            pid: Pid::from_raw(it.pid),
            uid: Some(it.uid),
        }
    }
}

/// A random name for the abstract namespace, in which no file stays behind.
fn random_name() -> io::Result<String> {
    let mut random = [0u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random.iter().fold("selfpage-".to_owned(), |name, byte| {
        format!("{name}{byte:02x}")
    }))
}

fn listen(name: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket)
}

/// Receives a message, without waiting, and its descriptors, charged to the sender's user, or to `uid` where it is unknown.
pub(crate) fn receive(
    from: impl AsFd,
    uid: u32,
) -> io::Result<(Received, std::vec::IntoIter<PeerFd>)> {
    let arrived = seqpacket::receive_all(from, RecvFlags::DONTWAIT)?;
    let UntrustedMessage {
        mut message, more, ..
    } = arrived;
    let uid = message.sender.map_or(uid, |sender| sender.uid.as_raw());
    let first = std::mem::take(&mut message.fds).into_iter().flatten();
    let fds: Vec<_> = first.chain(more).map(|fd| PeerFd::new(fd, uid)).collect();
    Ok((message, fds.into_iter()))
}

/// The user of this process, and so of the tree.
pub(crate) fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Replies to a process. Returns true if the reply was sent; the pidfd of a dead process reports its
/// end.
pub(crate) fn send_reply(connection: impl AsFd, reply: Reply, fds: &[BorrowedFd<'_>]) -> bool {
    try_send_reply(connection, reply, fds).is_ok()
}

/// Replies to a process that waits for the reply.
///
/// # Errors
/// EPIPE where the process has ended; ETOOMANYREFS where the user's descriptors in flight stayed at
/// their limit for a second, for which the supervisor's loop waits.
pub(crate) fn try_send_reply(
    connection: impl AsFd,
    reply: Reply,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let message = reply.encode();
    seqpacket::send(connection, message.as_slice(), fds, SendFlags::DONTWAIT)?;
    Ok(())
}

/// Refuses a process's request, with the reason.
pub(crate) fn refuse(connection: impl AsFd, why: &str) {
    send_reply(connection, Reply::Refused(why.as_bytes()), &[]);
}
