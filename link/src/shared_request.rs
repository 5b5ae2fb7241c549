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

/// A request. It leaves those parts of a range that are not paged as shared memory as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedRequest {
    /// Creates memory to share with children; its descriptor comes with the reply.
    Create {
        /// Bytes.
        len: u64,
    },
    /// The memory, whose descriptor comes along, is mapped, and is to be paged.
    Share {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The process is about to fork: the child inherits its present shared mappings, even if the parent unmaps them meanwhile.
    Fork {
        /// The child's domain.
        child: RawDomainId,
    },
    /// The process is the child of a fork and has its inherited mappings; its userfaultfd comes along.
    Inherit,
    /// The contents are discarded, for all processes (MADV_REMOVE).
    Discard {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The process maps more of an object than before (`mremap`): the contents at `to` are those `offset` bytes behind
    /// the contents at `from`.
    Extend {
        /// An address in a mapping that is already shared.
        from: u64,
        /// Bytes from there on.
        offset: u64,
        /// The first byte of the new part.
        to: u64,
        /// Bytes of it.
        len: u64,
    },
    /// Nothing is mapped in the range, which the kernel does not report: a fork's child lacks ranges that its parent
    /// excluded (MADV_DONTFORK).
    Unmapped {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// Other pages of an object are mapped at `to` (`remap_file_pages`).
    Remap {
        /// An address in a mapping of that object.
        like: u64,
        /// The page of the object that is mapped first.
        page: u64,
        /// The first byte of the new mapping.
        to: u64,
        /// Bytes of it.
        len: u64,
    },
    /// The pages stay resident once they are brought in (`mlock`).
    Lock {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The pages may be evicted again.
    Unlock {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
}

impl SharedRequest {
    /// Sends the request by a process's connection, and returns when it is done, with the memory of a [`Self::Create`].
    pub fn send(
        self,
        connection: BorrowedFd<'_>,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Option<OwnedFd>, JoinError> {
        let mut reply = request(connection, ChildMessage::Shared(self), fd)?;
        let memory = reply.fds[0].take();
        match Reply::decode(reply.as_slice()) {
            Some(Reply::Shared) => Ok(None),
            // The process has no free descriptor for the memory.
            Some(Reply::Memory) if memory.is_none() => Err(JoinError::Unreachable(Errno::MFILE)),
            Some(Reply::Memory) => Ok(memory),
            other => Err(JoinError::of(other)),
        }
    }
}
