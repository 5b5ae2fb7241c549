//! Requests of a process for the shared memory of its tree, in bytes and addresses of that process. The pager process
//! sends them by its own connection to the supervisor.

// Refusals carry their text in place.
#![allow(clippy::result_large_err)]

use crate::connection::request;
use crate::handshake::{ChildMessage, Message, RawDomainId, Reply};
use crate::join_error::JoinError;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// A request. What of a range is not paged as shared memory is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedRequest {
    /// Memory to share with children: it comes with the answer.
    Create {
        /// Bytes.
        len: u64,
    },
    /// That memory, which comes along, is mapped, and is to be paged.
    Share {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The process is about to fork: the child inherits what it shares now, whatever becomes of it.
    Fork {
        /// The child's domain.
        child: RawDomainId,
    },
    /// The process is the child of a fork, and has what it inherits; its userfaultfd comes along.
    Inherit,
    /// The contents end, for all processes (MADV_REMOVE).
    Discard {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The process has more of an object mapped than it had (`mremap`): at `to` is what follows `offset` bytes
    /// behind the contents of `from`.
    Extend {
        /// A byte of a mapping that is known.
        from: u64,
        /// Bytes from there on.
        offset: u64,
        /// The first byte of the new part.
        to: u64,
        /// Bytes of it.
        len: u64,
    },
    /// Nothing is mapped there, which the kernel does not report: a fork's child lacks what its parent advised not to be
    /// inherited.
    Unmapped {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// Other pages of an object are mapped at `to` (`remap_file_pages`).
    Remap {
        /// A byte of a mapping of that object.
        like: u64,
        /// The page of the object that is mapped first.
        page: u64,
        /// The first byte of the new mapping.
        to: u64,
        /// Bytes of it.
        len: u64,
    },
    /// The pages stay resident once they are there (`mlock`).
    Lock {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// They may be evicted again.
    Unlock {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
}

impl SharedRequest {
    /// Sends the request by a process's connection, and returns when it is done, with the memory that was requested.
    pub fn send(
        self,
        connection: BorrowedFd<'_>,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Option<OwnedFd>, JoinError> {
        let mut answer = request(connection, ChildMessage::Shared(self), fd)?;
        let memory = answer.fds[0].take();
        match Reply::decode(answer.as_slice()) {
            Some(Reply::Shared) => Ok(None),
            // The process has no descriptor left for it.
            Some(Reply::Memory) if memory.is_none() => Err(JoinError::Unreachable(Errno::MFILE)),
            Some(Reply::Memory) => Ok(memory),
            other => Err(JoinError::of(other)),
        }
    }
}
