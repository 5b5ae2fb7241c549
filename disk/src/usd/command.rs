//! Commands of the disk's owner to its thread, and the thread's events.
//!
//! Rule: the thread never waits for the owner. The owner waits for replies only.

use super::IoTarget;
use super::client::Client;
use super::stats::{ClientStats, DiskStats};
use super::waiting_threads::WaitingThreads;
use crate::atropos::{AdmissionError, ClientId, DiskContract};
use iochannel::{ChannelServer, Doorbell, ProtocolError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{read, write};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Identifies a channel of a disk, also after it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub(super) u64);

/// An event for the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsdEvent {
    /// Nothing of a channel is in flight, nor will be: it was closed, or its client has dropped its end.
    Closed(ChannelId),
    /// A channel is closed because of its invalid contents. [`UsdEvent::Closed`] follows.
    CutOff {
        /// The channel.
        channel: ChannelId,
        /// The violation.
        why: ProtocolError,
    },
}

pub(super) enum UsdCommand {
    Admit {
        /// The user that can delay the client's requests, if there is one.
        user: Option<u32>,
        contract: DiskContract,
        answer: Sender<Result<ClientId, AdmissionError>>,
    },
    AdmitBackground {
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
        server: ChannelServer,
    },
    Close {
        id: ChannelId,
    },
    Remove {
        client: ClientId,
        answer: Sender<Option<Client>>,
    },
    WaitingThreads {
        client: ClientId,
        answer: Sender<Option<Arc<WaitingThreads>>>,
    },
    /// Whether other threads wait for processors.
    SetCrowded {
        crowded: bool,
    },
    SetRealTime {
        priority: Option<i32>,
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

/// Sends commands to the thread.
#[derive(Debug)]
pub(super) struct CommandSender {
    commands: Sender<UsdCommand>,
    bell: Arc<OwnedFd>,
}

impl CommandSender {
    pub(super) fn new(commands: Sender<UsdCommand>, bell: OwnedFd) -> Self {
        Self {
            commands,
            bell: Arc::new(bell),
        }
    }

    pub(super) fn bell(&self) -> Arc<OwnedFd> {
        self.bell.clone()
    }

    pub(super) fn send(&self, command: UsdCommand) {
        // A thread that has ended has executed all commands before its stop command.
        if self.commands.send(command).is_ok() {
            let _ = write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

/// Sends events to the owner.
#[derive(Debug)]
pub(super) struct EventSender {
    pub events: Sender<UsdEvent>,
    pub notifier: Arc<EventNotifier>,
}

impl EventSender {
    pub(super) fn send(&self, event: UsdEvent) {
        if self.events.send(event).is_ok() {
            self.notifier.notify();
        }
    }
}

/// Signals the owner that events are pending.
#[derive(Debug)]
pub(super) struct EventNotifier(OwnedFd);

impl EventNotifier {
    pub(super) fn new(bell: OwnedFd) -> Self {
        Self(bell)
    }

    fn notify(&self) {
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
