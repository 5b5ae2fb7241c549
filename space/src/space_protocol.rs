//! Messages between a process that serves its address space and the one that lays it out.

use crate::error::SpaceError;
use crate::flags::{CommitFlags, MapFlags};
use host::seqpacket;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};
use selfpage::Rights;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// Bytes of the longest message.
const MESSAGE: usize = 1024;

/// Bytes of a refusal's text at most.
pub(crate) const REASON: usize = 512;

/// An operation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SpaceRequest {
    Reserve {
        addr: Option<usize>,
        size: usize,
        section: bool,
    },
    Commit {
        addr: usize,
        size: usize,
        flags: CommitFlags,
    },
    Protect {
        addr: usize,
        size: usize,
        #[serde(with = "rights")]
        rights: Rights,
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
        flags: MapFlags,
    },
    /// The object follows the reply.
    Object {
        addr: usize,
        size: usize,
    },
    Status,
}

/// Its result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SpaceReply {
    Done,
    Address(usize),
    Status(crate::MemoryStatus),
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

/// Rights as a byte, a bit each.
pub(crate) mod rights {
    use selfpage::Rights;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    const BITS: [Rights; 4] = [Rights::READ, Rights::WRITE, Rights::EXECUTE, Rights::META];

    pub(crate) fn serialize<S: Serializer>(rights: &Rights, to: S) -> Result<S::Ok, S::Error> {
        let held = BITS
            .iter()
            .enumerate()
            .filter(|(_, right)| rights.contains(**right));
        held.fold(0u8, |bits, (bit, _)| bits | 1 << bit)
            .serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Rights, D::Error> {
        let bits = u8::deserialize(from)?;
        let held = BITS
            .iter()
            .enumerate()
            .filter(|(bit, _)| bits & 1 << bit != 0);
        Ok(held.fold(Rights::NONE, |all, (_, right)| all | *right))
    }
}

pub(crate) fn send_message<T: Serialize>(
    socket: &OwnedFd,
    message: &T,
) -> Result<(), RemoteSpaceError> {
    let mut bytes = [0; MESSAGE];
    let protocol = RemoteSpaceError::Protocol {
        expected: "a message of 1 KiB at most",
    };
    let used = postcard::to_slice(message, &mut bytes).map_err(|_| protocol)?;
    match seqpacket::send(socket, used, &[], SendFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(RemoteSpaceError::Ended),
        Err(errno) => Err(SpaceError::system("sending to the other process")(errno).into()),
    }
}

pub(crate) fn receive_message<T: for<'a> Deserialize<'a>>(
    socket: &OwnedFd,
) -> Result<T, RemoteSpaceError> {
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
