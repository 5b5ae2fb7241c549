//! One IO channel of a client, as the disk's thread has it.

use super::ChannelId;
use iochannel::Server;

/// How a channel is listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ear {
    /// Looked at in every turn.
    Awake,
    /// A request in it rings the client's bell.
    Armed,
    /// Not at all: it is to be closed.
    Closed,
}

#[derive(Debug)]
pub(super) struct Channel {
    pub id: ChannelId,
    pub server: Server,
    pub ear: Ear,
    /// Parts of its requests that the device has.
    pub in_flight: usize,
}

impl Channel {
    pub(super) fn new(id: ChannelId, server: Server) -> Self {
        Self {
            id,
            server,
            ear: Ear::Awake,
            in_flight: 0,
        }
    }

    /// Goes to sleep, unless requests wait.
    pub(super) fn arm(&mut self) {
        if self.ear == Ear::Awake && self.server.arm() {
            self.ear = Ear::Armed;
        }
    }

    pub(super) fn wake(&mut self) {
        if self.ear == Ear::Armed {
            self.server.disarm();
            self.ear = Ear::Awake;
        }
    }

    /// Whether it can be let go of.
    pub(super) fn is_over(&self) -> bool {
        self.ear == Ear::Closed && self.in_flight == 0
    }
}
