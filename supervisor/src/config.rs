//! The configuration of a supervisor, the errors of its start, and the events of its tree.

use crate::page_client_link::PageClientConnection;
use frames::{AdmissionError, LedgerError};
use link::MIN_FRAMES;
use link::handshake::{ChildMessage, Message, RunFlags, SlotIndex};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::Pid;
use store::{SetupError, StoreConfig};
use tenant::{Session, TenantError};
use wired::Bytes;

/// The configuration of a tree's supervisor.
pub struct SupervisorConfig {
    /// Frames of the whole tree.
    pub frames: u32,
    /// The store for evicted pages; without one only pages of zeros can be evicted.
    pub store: Option<StoreConfig>,
    /// The options that every process receives.
    pub options: RunFlags,
    /// /dev/userfaultfd, where it could be opened.
    pub userfaultfd: Option<OwnedFd>,
    /// True if compressed RAM is part of the frames, and sized while the tree runs. Otherwise it is beside
    /// the frames, with the size that the store names.
    pub ram_of_frames: bool,
    /// True if processes of other users than the supervisor's get the store, too.
    pub share_store: bool,
    /// The tree's contract with the daemon; `frames` are then the most that it allows, and the
    /// store's disk is the daemon's.
    pub tenant: Option<Session>,
    /// The page client that has the tree's pages, where the store is remote or of objects.
    pub page_client: Option<PageClientConnection>,
}

/// Why a supervisor could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A system call failed that the supervisor needs.
    #[error("cannot {what}: {errno}")]
    Call {
        /// The purpose of the call.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// Fewer frames than one process needs.
    #[error(
        "{frames} frames ({}) are fewer than the {MIN_FRAMES} ({}) one process needs: an instruction can touch \
         four pages at once, and the pager nails those that the kernel and the C library need at any time; ask \
         for more",
        Bytes::of_pages(*frames), Bytes::of_pages(MIN_FRAMES)
    )]
    TooFew {
        /// Frames requested.
        frames: u32,
    },
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The store.
    #[error(transparent)]
    Store(#[from] SetupError),
    /// The domain of compressed RAM.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The system's daemon.
    #[error(transparent)]
    Session(#[from] TenantError),
}

impl StartError {
    /// The error of a failed call, by its purpose.
    pub fn call(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Call { what, errno }
    }

    /// The kernel's error, if a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Call { errno, .. } | Self::Store(SetupError::Memory { errno, .. }) => {
                Some(*errno)
            }
            Self::Ledger(LedgerError::Map(error)) => Errno::from_io_error(error),
            _ => None,
        }
    }
}

/// An event of the tree.
#[derive(Debug, PartialEq, Eq)]
pub enum TreeEvent {
    /// A process joined.
    Joined {
        /// Its slot.
        slot: SlotIndex,
        /// Its process id.
        pid: Pid,
    },
    /// A process ended, or began another image; its resources are reclaimed.
    Left {
        /// Its slot.
        slot: SlotIndex,
        /// Its process id.
        pid: Pid,
        /// Frames it still held.
        frames: u32,
    },
    /// A process sent a line for the user, or was refused.
    Notice {
        /// Its process id.
        pid: Pid,
        /// The line.
        text: String,
    },
    /// The supervisor has reconnected to the daemon.
    DaemonReconnected,
    /// The tree's pages are out of reach, with the reason: the page client has ended, or the daemon does not
    /// take the contract back.
    PagesLost(String),
}

impl TreeEvent {
    /// The event of a process's message, if it is one for the caller.
    pub(crate) fn of_message(pid: Pid, bytes: &[u8]) -> Option<Self> {
        match ChildMessage::decode(bytes)? {
            ChildMessage::Notice(line) => Some(Self::Notice {
                pid,
                text: String::from_utf8_lossy(line).into_owned(),
            }),
            ChildMessage::Careful
            | ChildMessage::Lifeline
            | ChildMessage::Channel(_)
            | ChildMessage::Shared(_) => None,
        }
    }
}
