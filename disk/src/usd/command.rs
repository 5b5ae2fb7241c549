//! What the disk's owner tells its thread, and the thread the owner.
//!
//! Rule: the thread never waits for the owner. The owner waits for answers only.

use super::Backing;
use super::client::Client;
use super::figures::{Figures, Whole};
use crate::atropos::{ClientId, Contract, Refusal};
use iochannel::{Corrupt, Doorbell, Server};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{read, write};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Names a channel of a disk, also after it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub(super) u64);

/// What the owner has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing of a channel is in flight, nor will be.
    Closed(ChannelId),
    /// A channel is listened to no more, because of what was written into it.
    /// [`News::Closed`] follows.
    CutOff {
        /// Which.
        channel: ChannelId,
        /// What was there.
        why: Corrupt,
    },
}

pub(super) enum Command {
    Admit {
        contract: Contract,
        answer: Sender<Result<ClientId, Refusal>>,
    },
    Change {
        client: ClientId,
        contract: Contract,
        answer: Sender<Result<(), Refusal>>,
    },
    Back {
        client: ClientId,
        backing: Backing,
        doorbell: Doorbell,
    },
    Listen {
        client: ClientId,
        id: ChannelId,
        server: Server,
    },
    Close {
        id: ChannelId,
    },
    Remove {
        client: ClientId,
        answer: Sender<Option<Client>>,
    },
    Figures {
        client: ClientId,
        answer: Sender<Option<Figures>>,
    },
    Whole {
        answer: Sender<Whole>,
    },
    Stop,
}

/// The owner's way to the thread.
#[derive(Debug)]
pub(super) struct Orders {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
}

impl Orders {
    pub(super) fn new(commands: Sender<Command>, bell: OwnedFd) -> Self {
        Self {
            commands,
            bell: Arc::new(bell),
        }
    }

    pub(super) fn bell(&self) -> Arc<OwnedFd> {
        self.bell.clone()
    }

    pub(super) fn give(&self, command: Command) {
        // A thread that has ended has done all it was told to before it was told to end.
        if self.commands.send(command).is_ok() {
            let _ = write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

/// How the owner learns that there is news.
#[derive(Debug)]
pub(super) struct Told(OwnedFd);

impl Told {
    pub(super) fn new(bell: OwnedFd) -> Self {
        Self(bell)
    }

    pub(super) fn tell(&self) {
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn heard(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Told {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
