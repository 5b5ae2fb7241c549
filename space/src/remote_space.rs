//! The address space of another process that agreed (2.1): a process is an address space and a
//! memory object.
//!
//! A process agrees by serving its space at one end of a Unix socket
//! ([`AddressSpace::serve`](crate::AddressSpace::serve)); the holder of the other end is a
//! [`RemoteSpace`], with the operations of an address space. A loader or a debugger lays another
//! process's memory out in this way. The socket is the capability: its holder can change and take
//! away whatever the space has.
//!
//! One request at a time: a message of postcard, and where an object is passed a second message
//! with its descriptor ([`MemoryObject::send`]). Replies have no number, so a thread has the socket
//! from its request until all of the reply is there.

use crate::address_space::MemoryStatus;
use crate::error::SpaceError;
use crate::flags::{CommitFlags, MapFlags};
use crate::object::MemoryObject;
use crate::space_protocol::{
    RemoteSpaceError, SpaceReply, SpaceRequest, receive_message, send_message,
};
use rustix::net::{Shutdown, shutdown};
use selfpage::Rights;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The address space of the process at the other end of a socket. Its operations have the meanings of
/// [`AddressSpace`](crate::AddressSpace)'s, and happen in that process.
pub struct RemoteSpace {
    socket: Mutex<OwnedFd>,
}

impl RemoteSpace {
    /// The space that the process at the other end of `socket` serves.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket: Mutex::new(socket),
        }
    }

    fn socket(&self) -> MutexGuard<'_, OwnedFd> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(
        &self,
        request: &SpaceRequest,
        object: Option<&MemoryObject>,
    ) -> Result<usize, RemoteSpaceError> {
        let expected = "an address";
        match exchange(&self.socket(), request, object)? {
            SpaceReply::Address(addr) => Ok(addr),
            _ => Err(RemoteSpaceError::Protocol { expected }),
        }
    }

    fn done(&self, request: &SpaceRequest) -> Result<(), RemoteSpaceError> {
        exchange_plain(&self.socket(), request)
    }

    /// Reserves addresses there.
    pub fn reserve(
        &self,
        addr: Option<usize>,
        size: usize,
        section: bool,
    ) -> Result<usize, RemoteSpaceError> {
        let request = SpaceRequest::Reserve {
            addr,
            size,
            section,
        };
        self.address(&request, None)
    }

    /// Commits reserved pages.
    pub fn commit(
        &self,
        addr: usize,
        size: usize,
        flags: CommitFlags,
    ) -> Result<(), RemoteSpaceError> {
        self.done(&SpaceRequest::Commit { addr, size, flags })
    }

    /// Changes the rights of committed or mapped pages.
    pub fn protect(
        &self,
        addr: usize,
        size: usize,
        rights: Rights,
    ) -> Result<(), RemoteSpaceError> {
        self.done(&SpaceRequest::Protect { addr, size, rights })
    }

    /// Gives up the contents of committed pages.
    pub fn decommit(&self, addr: usize, size: usize) -> Result<(), RemoteSpaceError> {
        self.done(&SpaceRequest::Decommit { addr, size })
    }

    /// Gives pages up.
    pub fn deallocate(&self, addr: usize, size: usize) -> Result<(), RemoteSpaceError> {
        self.done(&SpaceRequest::Deallocate { addr, size })
    }

    /// Maps an object of this process's in the other one.
    pub fn map(
        &self,
        addr: Option<usize>,
        size: usize,
        object: &MemoryObject,
        offset: u64,
        flags: MapFlags,
    ) -> Result<usize, RemoteSpaceError> {
        let request = SpaceRequest::Map {
            addr,
            size,
            offset,
            flags,
        };
        self.address(&request, Some(object))
    }

    /// The other process's memory as an object, to be mapped here.
    pub fn memory_object(
        &self,
        addr: usize,
        size: usize,
    ) -> Result<MemoryObject, RemoteSpaceError> {
        let socket = self.socket();
        exchange_plain(&socket, &SpaceRequest::Object { addr, size })?;
        Ok(MemoryObject::receive(&*socket)?)
    }

    /// Memory in use there.
    pub fn memory_status(&self) -> Result<MemoryStatus, RemoteSpaceError> {
        let expected = "a status";
        match exchange(&self.socket(), &SpaceRequest::Status, None)? {
            SpaceReply::Status(status) => Ok(status),
            _ => Err(RemoteSpaceError::Protocol { expected }),
        }
    }
}

/// Sends a request, and an object with it, and receives its reply.
fn exchange(
    socket: &OwnedFd,
    request: &SpaceRequest,
    object: Option<&MemoryObject>,
) -> Result<SpaceReply, RemoteSpaceError> {
    send_message(socket, request)?;
    if let Some(object) = object {
        // The other side waits for the object, and would take the next message for it.
        let end = |_: &SpaceError| _ = shutdown(socket, Shutdown::Both);
        object.send(socket).inspect_err(end)?;
    }
    match receive_message(socket)? {
        SpaceReply::Refused(reason) => Err(RemoteSpaceError::Refused(reason)),
        reply => Ok(reply),
    }
}

/// The same, of a request whose reply has no value.
fn exchange_plain(socket: &OwnedFd, request: &SpaceRequest) -> Result<(), RemoteSpaceError> {
    let expected = "a plain reply";
    match exchange(socket, request, None)? {
        SpaceReply::Done => Ok(()),
        _ => Err(RemoteSpaceError::Protocol { expected }),
    }
}
