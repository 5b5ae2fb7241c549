//! The client side of the supervisor: a process of the tree joins in a preloaded library's
//! constructor and in the child of a fork.
//!
//! Rule: raw system calls only; nothing here allocates, takes a lock, or calls a
//! function of the C library.
//!
//! A process requests its connection through the tree's seccomp filter ([`host::seccomp::call`]): that
//! needs neither a descriptor nor a name, and no process outside the tree can do it. A process that
//! joins sends its first message in that call, and has the reply when the call returns.
//!
//! Where the kernel allows no filter (a listener is installed already) there are two sockets
//! instead. The *port* is one that every process of the tree inherits at a high descriptor
//! number; a process makes a connection of its own and sends one end through it. A program
//! may close descriptors it does not know (`close_range(3, ~0)`), so there is a listening
//! socket too, named in the abstract namespace: it leaves no file behind, and it works
//! inside a chroot.

// Refusals carry their text in place: nothing here may allocate.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

use crate::MAX_PROCESSES;
use crate::connection::receive_reply;
pub use crate::connection::{Connection, open_channel};
use crate::handshake::{ChildMessage, FdRole, Hello, Message, RawDomainId, Reply, Welcome};
pub use crate::join_error::{JoinError, RefusalText};
use crate::stats_page::StatsPage;
use host::seccomp::call::{self, CarriedMessage};
use host::seqpacket::{self, Received};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Set to [`BY_FILTER`] where processes join through the filter.
pub const CONNECT_VARIABLE: &str = "SELFPAGE_CONNECT";

/// The one value of [`CONNECT_VARIABLE`].
pub const BY_FILTER: &str = "filter";

/// Names the port in the environment: `FD:INODE`. The inode tells whether the program
/// has closed it and now has something else at that number.
pub const PORT_VARIABLE: &str = "SELFPAGE_PORT";

/// Names the listening socket in the environment.
pub const SOCKET_VARIABLE: &str = "SELFPAGE_SOCKET";

/// All environment variables that name a way to the supervisor.
pub const VARIABLES: [&str; 3] = [CONNECT_VARIABLE, PORT_VARIABLE, SOCKET_VARIABLE];

/// Longest name of a listening socket, in bytes.
const NAME: usize = 64;

/// The way to the supervisor. Plain data: keep a copy for the children of forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupervisorPort {
    fd: RawFd,
    inode: u64,
    name: [u8; NAME],
    name_len: u8,
    by_filter: bool,
}

/// The resources of a process that has joined. All descriptors are close-on-exec.
#[derive(Debug)]
pub struct Joined {
    /// The supervisor's reply to the first message.
    pub welcome: Welcome,
    /// The process's connection. Open for as long as the image lives: when the connection ends
    /// the supervisor reclaims everything. Keep it where the program cannot close it.
    pub connection: Connection,
    /// The ledger's memory.
    pub ledger: OwnedFd,
    /// The stats page's memory.
    pub stats_page: OwnedFd,
    /// The store's descriptors, in its own order.
    pub store: [Option<OwnedFd>; 12],
    /// /dev/userfaultfd, where `run` could open it.
    pub userfaultfd: Option<OwnedFd>,
    /// The bell to ring when the tree wants more frames, where the daemon grants them.
    pub pressure_bell: Option<OwnedFd>,
}

impl Joined {
    /// Maps the stats page.
    pub fn map_stats_page(&self) -> io::Result<StatsPage> {
        StatsPage::attach(&self.stats_page, MAX_PROCESSES)
    }
}

impl SupervisorPort {
    /// Connects through the seccomp filter that this process is under.
    pub const BY_FILTER: Self = Self {
        fd: -1,
        inode: 0,
        name: [0; NAME],
        name_len: 0,
        by_filter: true,
    };

    /// From the values of [`PORT_VARIABLE`] and [`SOCKET_VARIABLE`].
    pub fn parse(port: Option<&[u8]>, socket: Option<&[u8]>) -> Result<Self, JoinError> {
        let mut it = Self {
            fd: -1,
            inode: 0,
            name: [0; NAME],
            name_len: 0,
            by_filter: false,
        };
        if let Some((fd, inode)) = port.and_then(parse_port) {
            (it.fd, it.inode) = (fd, inode);
        }
        if let Some(name) = socket.filter(|n| !n.is_empty() && n.len() <= NAME) {
            it.name[..name.len()].copy_from_slice(name);
            it.name_len = name.len() as u8;
        }
        match it.fd < 0 && it.name_len == 0 {
            true => Err(JoinError::NotInTree),
            false => Ok(it),
        }
    }

    /// From an environment block as the kernel lays it out.
    ///
    /// # Safety
    /// `environ` is null, or an array of C strings ended by null.
    pub unsafe fn from_environ(environ: *const *const std::ffi::c_char) -> Result<Self, JoinError> {
        let (mut port, mut socket) = (None, None);
        let mut at = environ;
        // SAFETY: the caller's promise: an array of C strings up to a null.
        while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
            // SAFETY: as above.
            let bytes = unsafe { std::ffi::CStr::from_ptr(*entry) }.to_bytes();
            let value = |name: &str| bytes.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
            if value(CONNECT_VARIABLE) == Some(BY_FILTER.as_bytes()) {
                return Ok(Self::BY_FILTER);
            }
            port = port.or(value(PORT_VARIABLE));
            socket = socket.or(value(SOCKET_VARIABLE));
            at = at.wrapping_add(1);
        }
        Self::parse(port, socket)
    }

    /// The descriptor number that the port was inherited at, for a library that prevents
    /// the program from closing it; `None` where processes join through the filter.
    pub fn raw_fd(&self) -> Option<RawFd> {
        (self.fd >= 0).then_some(self.fd)
    }

    /// Returns true if the supervisor still runs.
    pub fn is_open(&self) -> bool {
        self.port().is_some() || self.connect().is_ok()
    }

    /// Joins: [`Hello::Exec`] for a new image, [`Hello::Fork`] for a fork's child.
    pub fn join(&self, hello: Hello) -> Result<Joined, JoinError> {
        let (connection, reply) = self.request(hello)?;
        match Reply::decode(reply.as_slice()) {
            Some(Reply::Welcome(welcome)) => assign_roles(welcome, connection, reply.fds),
            other => Err(JoinError::of(other)),
        }
    }

    /// Gives back the domain admitted for a child: the fork failed, or the child has no pager.
    pub fn release_child(&self, parent: RawDomainId, child: RawDomainId) -> Result<(), JoinError> {
        self.request(Hello::Release { parent, child }).map(|_| ())
    }

    /// Sends a message before, or without, joining.
    pub fn send_message(&self, message: ChildMessage) -> Result<(), JoinError> {
        let bytes = message.encode();
        if let Some(port) = self.port()
            && seqpacket::send(port, bytes.as_slice(), &[], SendFlags::empty()).is_ok()
        {
            return Ok(());
        }
        let connection = self.connect().map_err(JoinError::Unreachable)?;
        seqpacket::send(&connection, bytes.as_slice(), &[], SendFlags::empty())
            .map_err(JoinError::Unreachable)
    }

    fn request(&self, hello: Hello) -> Result<(Connection, Received), JoinError> {
        let connection = self.send(hello).map_err(JoinError::Unreachable)?;
        receive_reply(&connection).map(|reply| (Connection(connection), reply))
    }

    /// Sends a first message, and returns the connection that the reply arrives on.
    fn send(&self, hello: Hello) -> io::Result<OwnedFd> {
        // The filter names the thread that calls, and processes join by their number.
        let joins = matches!(hello, Hello::Exec { .. } | Hello::Fork { .. })
            && rustix::thread::gettid() == rustix::process::getpid();
        let bytes = hello.encode();
        if let Some(message) =
            CarriedMessage::new(bytes.as_slice()).filter(|_| self.by_filter && joins)
        {
            return call::request(message);
        }
        if let Some(port) = self.port() {
            let (ours, theirs) = seqpacket::pair()?;
            let fds = [theirs.as_fd()];
            if seqpacket::send(port, bytes.as_slice(), &fds, SendFlags::empty()).is_ok() {
                return Ok(ours);
            }
        }
        let connection = self.connect()?;
        seqpacket::send(&connection, bytes.as_slice(), &[], SendFlags::empty())?;
        Ok(connection)
    }

    /// The inherited port, if the program has left it open.
    fn port(&self) -> Option<BorrowedFd<'_>> {
        if self.fd < 0 {
            return None;
        }
        // SAFETY: fstat checks that the number is open; nothing closes it
        // between here and the send, in a constructor or a fork's child.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        (rustix::fs::fstat(fd).ok()?.st_ino == self.inode).then_some(fd)
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        if self.by_filter {
            return call::request(CarriedMessage::default());
        }
        let name = &self.name[..usize::from(self.name_len)];
        if name.is_empty() {
            return Err(Errno::NOTCONN);
        }
        let address = SocketAddrUnix::new_abstract_name(name)?;
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::connect(&socket, &address)?;
        Ok(socket)
    }
}

fn parse_port(value: &[u8]) -> Option<(RawFd, u64)> {
    let text = std::str::from_utf8(value).ok()?;
    let (fd, inode) = text.split_once(':')?;
    Some((fd.parse().ok().filter(|fd| *fd >= 0)?, inode.parse().ok()?))
}

/// Assigns each descriptor by its role.
fn assign_roles<const N: usize>(
    welcome: Welcome,
    connection: Connection,
    fds: [Option<OwnedFd>; N],
) -> Result<Joined, JoinError> {
    let (mut ledger, mut stats_page, mut userfaultfd, mut pressure_bell) = (None, None, None, None);
    let mut store = [const { None }; 12];
    let mut stored = 0;
    for (role, fd) in welcome.roles.iter().zip(fds) {
        match role {
            FdRole::Nothing => {}
            FdRole::Ledger => ledger = fd,
            FdRole::StatsPage => stats_page = fd,
            FdRole::Userfaultfd => userfaultfd = fd,
            FdRole::PressureBell => pressure_bell = fd,
            FdRole::Store => {
                *store.get_mut(stored).ok_or(JoinError::OtherBuild)? = fd;
                stored += 1;
            }
        }
    }
    let (Some(ledger), Some(stats_page)) = (ledger, stats_page) else {
        return Err(JoinError::Refused(RefusalText::new(
            b"this process has no free descriptors left to receive the shared memory: raise `ulimit -n`",
        )));
    };
    Ok(Joined {
        welcome,
        connection,
        ledger,
        stats_page,
        store,
        userfaultfd,
        pressure_bell,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_read_from_the_environment() {
        let port = SupervisorPort::parse(Some(b"1000:77"), Some(b"selfpage-x")).unwrap();
        assert_eq!(port.raw_fd(), Some(1000));
        assert!(matches!(
            SupervisorPort::parse(None, None),
            Err(JoinError::NotInTree)
        ));
        assert!(matches!(
            SupervisorPort::parse(Some(b"-1:5"), None),
            Err(JoinError::NotInTree)
        ));
        assert!(matches!(
            SupervisorPort::parse(Some(b"junk"), Some(b"")),
            Err(JoinError::NotInTree)
        ));
    }

    #[test]
    fn an_environment_block_is_searched_to_its_end() {
        let entries = [
            c"A=1".as_ptr(),
            c"SELFPAGE_PORT=9:4".as_ptr(),
            c"SELFPAGE_PORTS=no".as_ptr(),
            std::ptr::null(),
        ];
        // SAFETY: an array of C strings ended by null.
        let port = unsafe { SupervisorPort::from_environ(entries.as_ptr()) }.unwrap();
        assert_eq!((port.fd, port.inode), (9, 4));
        // SAFETY: null is allowed.
        assert!(unsafe { SupervisorPort::from_environ(std::ptr::null()) }.is_err());
    }
}
