//! The address space of another process that agreed (2.1): a process is an address space and a memory object.
//!
//! A process agrees by serving its space at one end of a Unix socket ([`AddressSpace::serve`]); the holder of the other end is a
//! [`RemoteSpace`], with the operations of an address space. A loader or a debugger lays another process's memory out in this way. The
//! socket is the capability: its holder can change and take away whatever the space has.
//!
//! One request at a time: a message of postcard, and where an object is passed a second message with its descriptor
//! ([`MemoryObject::send`]).

use crate::address_space::{AddressSpace, MemoryStatus};
use crate::error::SpaceError;
use crate::flags::{CommitFlags, MapFlags};
use crate::object::MemoryObject;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use selfpage::Rights;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// Bytes of the longest message: a refusal's text is cut.
const MESSAGE: usize = 1024;

/// Bytes of a refusal's text at most.
const REASON: usize = 512;

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Reserve {
        addr: Option<usize>,
        size: usize,
        section: bool,
    },
    Commit {
        addr: usize,
        size: usize,
        rights: u8,
        zero: bool,
        auto: bool,
        no_erase: bool,
        shareable: bool,
    },
    Protect {
        addr: usize,
        size: usize,
        rights: u8,
    },
    Decommit {
        addr: usize,
        size: usize,
    },
    Deallocate {
        addr: usize,
        size: usize,
    },
    /// The object follows.
    Map {
        addr: Option<usize>,
        size: usize,
        offset: u64,
        rights: u8,
        copy_on_write: bool,
    },
    /// The object follows the reply.
    Object {
        addr: usize,
        size: usize,
    },
    Status,
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Done,
    Address(usize),
    Status([u64; 5]),
    Refused(String),
}

/// Why an operation on another process's space failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteSpaceError {
    /// The other process's space refused it.
    #[error("the other process's address space refused: {0}")]
    Refused(String),
    /// The other process ended, or serves its space no longer.
    #[error("the other process serves its address space no longer")]
    Ended,
    /// A message of another kind.
    #[error("invalid message: expected {expected}")]
    Protocol {
        /// What was expected.
        expected: &'static str,
    },
    /// The socket or a descriptor failed.
    #[error(transparent)]
    Here(#[from] SpaceError),
}

/// The rights' names on the wire, by bit.
const RIGHTS: [Rights; 4] = [Rights::READ, Rights::WRITE, Rights::EXECUTE, Rights::META];

fn to_bits(rights: Rights) -> u8 {
    let held = RIGHTS
        .iter()
        .enumerate()
        .filter(|(_, right)| rights.contains(**right));
    held.fold(0, |bits, (bit, _)| bits | 1 << bit)
}

fn from_bits(bits: u8) -> Rights {
    let held = RIGHTS
        .iter()
        .enumerate()
        .filter(|(bit, _)| bits & 1 << bit != 0);
    held.fold(Rights::NONE, |all, (_, right)| all | *right)
}

fn send_message<T: Serialize>(socket: &OwnedFd, message: &T) -> Result<(), RemoteSpaceError> {
    let mut bytes = [0; MESSAGE];
    let protocol = RemoteSpaceError::Protocol {
        expected: "a message of 1 KiB at most",
    };
    let used = postcard::to_slice(message, &mut bytes).map_err(|_| protocol)?;
    match send(socket, used, SendFlags::NOSIGNAL) {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(RemoteSpaceError::Ended),
        Err(errno) => Err(SpaceError::system("sending to the other process")(errno).into()),
    }
}

fn receive_message<T: for<'a> Deserialize<'a>>(socket: &OwnedFd) -> Result<T, RemoteSpaceError> {
    let mut bytes = [0; MESSAGE];
    loop {
        return match recv(socket, &mut bytes, RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => Err(RemoteSpaceError::Ended),
            Ok((used, _)) => {
                postcard::from_bytes(&bytes[..used]).map_err(|_| RemoteSpaceError::Protocol {
                    expected: "a message of this protocol",
                })
            }
            Err(Errno::INTR) => continue,
            Err(errno) => Err(SpaceError::system("receiving from the other process")(errno).into()),
        };
    }
}

impl AddressSpace {
    /// Serves the space to the process at the other end of a Unix socket of whole messages (`SOCK_SEQPACKET`) until that closes it.
    ///
    /// # Errors
    /// [`RemoteSpaceError::Protocol`] for a message of another kind; the socket's error.
    pub fn serve(&self, socket: &OwnedFd) -> Result<(), RemoteSpaceError> {
        loop {
            let request = match receive_message(socket) {
                Ok(request) => request,
                Err(RemoteSpaceError::Ended) => return Ok(()),
                Err(error) => return Err(error),
            };
            let object = match request {
                Request::Map { .. } => Some(MemoryObject::receive(socket)),
                _ => None,
            };
            let (reply, object) = match self.perform(request, object) {
                Ok(done) => done,
                Err(error) => {
                    let mut reason = error.to_string();
                    reason.truncate(
                        (0..=REASON)
                            .rev()
                            .find(|at| reason.is_char_boundary(*at))
                            .unwrap_or(0),
                    );
                    (Reply::Refused(reason), None)
                }
            };
            send_message(socket, &reply)?;
            if let Some(object) = object {
                object.send(socket)?;
            }
        }
    }

    fn perform(
        &self,
        request: Request,
        object: Option<Result<MemoryObject, SpaceError>>,
    ) -> Result<(Reply, Option<MemoryObject>), SpaceError> {
        let reply = match request {
            Request::Reserve {
                addr,
                size,
                section,
            } => Reply::Address(self.reserve(addr, size, section)?),
            Request::Commit {
                addr,
                size,
                rights,
                zero,
                auto,
                no_erase,
                shareable,
            } => {
                let flags = CommitFlags {
                    rights: from_bits(rights),
                    zero,
                    auto,
                    dealloc_no_erase: no_erase,
                    shareable,
                };
                self.commit(addr, size, flags).map(|()| Reply::Done)?
            }
            Request::Protect { addr, size, rights } => self
                .protect(addr, size, from_bits(rights))
                .map(|()| Reply::Done)?,
            Request::Decommit { addr, size } => self.decommit(addr, size).map(|()| Reply::Done)?,
            Request::Deallocate { addr, size } => {
                self.deallocate(addr, size).map(|()| Reply::Done)?
            }
            Request::Map {
                addr,
                size,
                offset,
                rights,
                copy_on_write,
            } => {
                let missing = SpaceError::Foreign("the message has no memory object");
                let object = object.ok_or(missing)??;
                let flags = MapFlags {
                    rights: from_bits(rights),
                    copy_on_write,
                };
                Reply::Address(self.map(addr, size, &object, offset, flags)?)
            }
            Request::Object { addr, size } => {
                return Ok((Reply::Done, Some(self.memory_object(addr, size)?)));
            }
            Request::Status => {
                let MemoryStatus {
                    total_physical,
                    available_physical,
                    reserved,
                    committed,
                    mapped,
                } = self.memory_status();
                Reply::Status([
                    total_physical,
                    available_physical,
                    reserved,
                    committed,
                    mapped,
                ])
            }
        };
        Ok((reply, None))
    }
}

/// The address space of the process at the other end of a socket. Its operations have the meanings of [`AddressSpace`]'s, and happen in that
/// process.
pub struct RemoteSpace {
    socket: OwnedFd,
}

impl RemoteSpace {
    /// The space that the process at the other end of `socket` serves.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    fn request(
        &self,
        request: &Request,
        object: Option<&MemoryObject>,
    ) -> Result<Reply, RemoteSpaceError> {
        send_message(&self.socket, request)?;
        if let Some(object) = object {
            object.send(&self.socket)?;
        }
        match receive_message(&self.socket)? {
            Reply::Refused(reason) => Err(RemoteSpaceError::Refused(reason)),
            reply => Ok(reply),
        }
    }

    fn address(
        &self,
        request: &Request,
        object: Option<&MemoryObject>,
    ) -> Result<usize, RemoteSpaceError> {
        match self.request(request, object)? {
            Reply::Address(addr) => Ok(addr),
            _ => Err(RemoteSpaceError::Protocol {
                expected: "an address",
            }),
        }
    }

    fn done(&self, request: &Request) -> Result<(), RemoteSpaceError> {
        match self.request(request, None)? {
            Reply::Done => Ok(()),
            _ => Err(RemoteSpaceError::Protocol {
                expected: "a plain reply",
            }),
        }
    }

    /// As [`AddressSpace::reserve`].
    pub fn reserve(
        &self,
        addr: Option<usize>,
        size: usize,
        section: bool,
    ) -> Result<usize, RemoteSpaceError> {
        self.address(
            &Request::Reserve {
                addr,
                size,
                section,
            },
            None,
        )
    }

    /// As [`AddressSpace::commit`].
    pub fn commit(
        &self,
        addr: usize,
        size: usize,
        flags: CommitFlags,
    ) -> Result<(), RemoteSpaceError> {
        let CommitFlags {
            rights,
            zero,
            auto,
            dealloc_no_erase,
            shareable,
        } = flags;
        let (rights, no_erase) = (to_bits(rights), dealloc_no_erase);
        self.done(&Request::Commit {
            addr,
            size,
            rights,
            zero,
            auto,
            no_erase,
            shareable,
        })
    }

    /// As [`AddressSpace::protect`].
    pub fn protect(
        &self,
        addr: usize,
        size: usize,
        rights: Rights,
    ) -> Result<(), RemoteSpaceError> {
        let rights = to_bits(rights);
        self.done(&Request::Protect { addr, size, rights })
    }

    /// As [`AddressSpace::decommit`].
    pub fn decommit(&self, addr: usize, size: usize) -> Result<(), RemoteSpaceError> {
        self.done(&Request::Decommit { addr, size })
    }

    /// As [`AddressSpace::deallocate`].
    pub fn deallocate(&self, addr: usize, size: usize) -> Result<(), RemoteSpaceError> {
        self.done(&Request::Deallocate { addr, size })
    }

    /// As [`AddressSpace::map`]: maps an object of this process's in the other one.
    pub fn map(
        &self,
        addr: Option<usize>,
        size: usize,
        object: &MemoryObject,
        offset: u64,
        flags: MapFlags,
    ) -> Result<usize, RemoteSpaceError> {
        let (rights, copy_on_write) = (to_bits(flags.rights), flags.copy_on_write);
        self.address(
            &Request::Map {
                addr,
                size,
                offset,
                rights,
                copy_on_write,
            },
            Some(object),
        )
    }

    /// As [`AddressSpace::memory_object`]: the other process's memory as an object, to be mapped here.
    pub fn memory_object(
        &self,
        addr: usize,
        size: usize,
    ) -> Result<MemoryObject, RemoteSpaceError> {
        self.done(&Request::Object { addr, size })?;
        Ok(MemoryObject::receive(&self.socket)?)
    }

    /// As [`AddressSpace::memory_status`].
    pub fn memory_status(&self) -> Result<MemoryStatus, RemoteSpaceError> {
        match self.request(&Request::Status, None)? {
            Reply::Status(
                [
                    total_physical,
                    available_physical,
                    reserved,
                    committed,
                    mapped,
                ],
            ) => Ok(MemoryStatus {
                total_physical,
                available_physical,
                reserved,
                committed,
                mapped,
            }),
            _ => Err(RemoteSpaceError::Protocol {
                expected: "a status",
            }),
        }
    }
}
