//! The two doors by which processes come in: see [`crate::client`].

use crate::client::{PORT_VARIABLE, SOCKET_VARIABLE};
use crate::socket;
use rustix::fd::OwnedFd;
use rustix::io;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::Pid;
use std::ffi::OsString;

pub(crate) const OTHER_BUILD: &str =
    "`selfpage` and libselfpage_preload.so are of different versions: install both from one build";

/// Both doors, from inside.
pub(crate) struct Doors {
    /// Where first messages arrive, each with its connection and its sender.
    pub port: OwnedFd,
    /// The other end, for the tree to inherit.
    pub inherited: OwnedFd,
    /// Where processes connect that lost the port.
    pub listener: OwnedFd,
    name: String,
}

impl Doors {
    /// Opens them.
    pub fn open() -> io::Result<Self> {
        let (port, inherited) = socket::pair()?;
        sockopt::set_socket_passcred(&port, true)?;
        let (listener, name) = listen()?;
        Ok(Self {
            port,
            inherited,
            listener,
            name,
        })
    }

    /// The variables that lead here, with the port at descriptor `number`.
    pub fn environment(&self, number: i32) -> io::Result<[(&'static str, OsString); 2]> {
        let inode = rustix::fs::fstat(&self.inherited)?.st_ino;
        let port = format!("{number}:{inode}").into();
        Ok([
            (PORT_VARIABLE, port),
            (SOCKET_VARIABLE, self.name.clone().into()),
        ])
    }

    /// The next process that has connected.
    pub fn accept(&self) -> Option<(OwnedFd, Pid)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = rustix::net::accept_with(&self.listener, flags).ok()?;
        let peer = sockopt::socket_peercred(&connection).ok()?;
        Some((connection, peer.pid))
    }
}

/// Listens under a random name in the abstract namespace: nothing to leave behind.
fn listen() -> io::Result<(OwnedFd, String)> {
    let mut random = [0u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let name = random.iter().fold("selfpage-".to_owned(), |name, byte| {
        format!("{name}{byte:02x}")
    });
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    rustix::net::listen(&socket, 1024)?;
    Ok((socket, name))
}
