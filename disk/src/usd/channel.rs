//! One IO channel of a client, as the disk's thread has it.

use super::ChannelId;
use iochannel::Server;

/// How a channel is listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeState {
    /// Looked at in every turn.
    Polling,
    /// A request in it rings the client's bell.
    Armed,
    /// Not at all: it is to be closed.
    Closed,
}

#[derive(Debug)]
pub(super) struct Channel {
    pub id: ChannelId,
    pub server: Server,
    pub wake_state: WakeState,
    /// UsdParts of its requests that the device has.
    pub in_flight: usize,
    /// Answers that its client was not rung for.
    pub unsignalled: usize,
}

/// A client is rung for as many answers as come to this part of what the device has of it: one
/// with much under way is not woken for each, and one that waits for a page is at once.
const COALESCE_DIVISOR: usize = 4;

impl Channel {
    pub(super) fn new(id: ChannelId, server: Server) -> Self {
        Self {
            id,
            server,
            wake_state: WakeState::Polling,
            in_flight: 0,
            unsignalled: 0,
        }
    }

    /// Answers a request.
    pub(super) fn complete(&mut self, slot: u16, result: i32) {
        self.server.finish(slot, result);
        self.unsignalled += 1;
    }

    /// Rings the client, if it sleeps and there are answers enough. Whether none are left to be
    /// said: the others are when more of it ends, which the device has.
    pub(super) fn notify_completions(&mut self) -> bool {
        if self.unsignalled * COALESCE_DIVISOR < self.in_flight {
            return false;
        }
        self.server.announce();
        self.unsignalled = 0;
        true
    }

    /// Goes to sleep, unless requests wait.
    pub(super) fn arm(&mut self) {
        if self.wake_state == WakeState::Polling && self.server.arm() {
            self.wake_state = WakeState::Armed;
        }
    }

    pub(super) fn wake(&mut self) {
        if self.wake_state == WakeState::Armed {
            self.server.disarm();
            self.wake_state = WakeState::Polling;
        }
    }

    /// Whether it can be let go of.
    pub(super) fn is_drained(&self) -> bool {
        self.wake_state == WakeState::Closed && self.in_flight == 0
    }
}
