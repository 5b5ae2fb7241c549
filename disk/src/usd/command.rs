//! What the disk's owner tells its thread, and the thread the owner.
//!
//! Rule: the thread never waits for the owner. The owner waits for answers only.

use super::IoTarget;
use super::client::Client;
use super::stats::{ClientStats, DiskStats};
use crate::atropos::{AdmissionError, ClientId, DiskContract};
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
pub enum UsdEvent {
    /// Nothing of a channel is in flight, nor will be.
    Closed(ChannelId),
    /// A channel is listened to no more, because of what was written into it.
    /// [`UsdEvent::Closed`] follows.
    CutOff {
        /// Which.
        channel: ChannelId,
        /// What was there.
        why: Corrupt,
    },
}

pub(super) enum Command {
    Admit {
        contract: DiskContract,
        answer: Sender<Result<ClientId, AdmissionError>>,
    },
    Change {
        client: ClientId,
        contract: DiskContract,
        answer: Sender<Result<(), AdmissionError>>,
    },
    SetTarget {
        client: ClientId,
        target: IoTarget,
        doorbell: Doorbell,
    },
    AddChannel {
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
    ClientStats {
        client: ClientId,
        answer: Sender<Option<ClientStats>>,
    },
    DiskStats {
        answer: Sender<DiskStats>,
    },
    Stop,
}

/// The owner's way to the thread.
#[derive(Debug)]
pub(super) struct CommandSender {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
}

impl CommandSender {
    pub(super) fn new(commands: Sender<Command>, bell: OwnedFd) -> Self {
        Self {
            commands,
            bell: Arc::new(bell),
        }
    }

    pub(super) fn bell(&self) -> Arc<OwnedFd> {
        self.bell.clone()
    }

    pub(super) fn send(&self, command: Command) {
        // A thread that has ended has done all it was notifier to before it was notifier to end.
        if self.commands.send(command).is_ok() {
            let _ = write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

/// How the owner learns that there is events.
#[derive(Debug)]
pub(super) struct EventNotifier(OwnedFd);

impl EventNotifier {
    pub(super) fn new(bell: OwnedFd) -> Self {
        Self(bell)
    }

    pub(super) fn notify(&self) {
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn drain(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventNotifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
