//! Messages between a process that has paged memory objects and the process that pages them.
//!
//! A request is one message, with a descriptor where the table says so, and each has one reply.

use crate::error::SpaceError;
use host::fd_reaper::{PeerFd, peer_uid};
use host::seqpacket;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Bytes of a refusal's text at most.
const REASON: usize = 384;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PagerRequest {
    /// The process's userfaultfd, which comes along: the first message.
    Join,
    /// A fresh memfd of zeros, which comes along, becomes an object. The process holds it.
    Create,
    /// The process holds the object of the memfd that comes along.
    Hold,
    /// It holds the object no longer, or one time less.
    Release {
        /// The object's number.
        object: u32,
    },
    /// It has mapped pages of an object that it holds.
    Map {
        /// The object's number.
        object: u32,
        /// The first of the pages.
        page: u64,
        /// Where, in bytes.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// Pages that it has mapped are not evicted.
    Lock {
        /// Where, in bytes.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// They may be evicted again.
    Unlock {
        /// Where, in bytes.
        addr: u64,
        /// Bytes.
        len: u64,
    },
}

/// Its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PagerReply {
    /// To `Join` with a pidfd of the pager's process, where the kernel gives one.
    Done,
    /// The number of the object.
    Object(u32),
    Refused(String),
}

impl PagerReply {
    pub(crate) fn refused(why: &SpaceError) -> Self {
        let why = match why {
            // The process that receives it adds that it is the pager's.
            SpaceError::Pager(why) => why.clone(),
            why => why.to_string(),
        };
        let cut = (0..=REASON.min(why.len()))
            .rev()
            .find(|at| why.is_char_boundary(*at));
        Self::Refused(why[..cut.unwrap_or(0)].to_owned())
    }

    /// The reply to a request that has no result.
    pub(crate) fn done(self) -> Result<(), SpaceError> {
        match self {
            Self::Done => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    /// The error of a reply to another request.
    pub(crate) fn unexpected(&self) -> SpaceError {
        SpaceError::Pager(format!("its reply is of another request: {self:?}"))
    }
}

/// Sends a message.
pub(crate) fn send<T: Serialize>(
    socket: &OwnedFd,
    message: &T,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), SpaceError> {
    let mut bytes = [0; seqpacket::MESSAGE];
    let used = postcard::to_slice(message, &mut bytes)
        .map_err(|_| SpaceError::Pager("the message is too long".into()))?;
    let descriptors = descriptor.as_slice();
    seqpacket::send(socket, used, descriptors, SendFlags::empty())
        .map_err(SpaceError::system("sending to the pager of memory objects"))
}

/// Receives a message, and a descriptor that came along: its sender may have made it. None at the end of the connection.
pub(crate) fn receive<T: for<'a> Deserialize<'a>>(
    socket: &OwnedFd,
) -> Result<Option<(T, Option<PeerFd>)>, SpaceError> {
    let mut received = seqpacket::receive(socket, RecvFlags::empty())
        .map_err(SpaceError::system("receiving of the pager's connection"))?;
    let uid = peer_uid(socket);
    let fds = received.fds.iter_mut().filter_map(Option::take);
    let mut fds: Vec<_> = fds.map(|fd| PeerFd::new(fd, uid)).collect();
    if received.len == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(received.as_slice())
        .map_err(|_| SpaceError::Pager("the message is of another protocol".into()))?;
    let first = (!fds.is_empty()).then(|| fds.swap_remove(0));
    Ok(Some((message, first)))
}
