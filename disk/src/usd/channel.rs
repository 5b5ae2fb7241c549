//! One IO channel of a client, as the disk's thread holds it.

use super::ChannelId;
use crate::time::Nanos;
use iochannel::ChannelServer;

/// How the thread learns of a channel's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeState {
    /// The thread polls the channel in every turn.
    Polling,
    /// A request rings the client's doorbell.
    Armed,
    /// Not at all: the channel is closing.
    Closed,
}

#[derive(Debug)]
pub(super) struct Channel {
    pub id: ChannelId,
    pub server: ChannelServer,
    pub wake_state: WakeState,
    /// Parts of its requests in flight on the device.
    pub in_flight: usize,
    /// Completions that the client was not signalled yet.
    pub unsignalled: usize,
}

/// Completions are coalesced: the client is signalled once they reach this fraction of its parts in
/// flight. A client with much in flight is not woken for each, and one that waits for a page is
/// woken at once.
const COALESCE_DIVISOR: usize = 4;

/// The longest that a completion waits for others: those may be of a device that is slow, or of a server that is silent.
pub(super) const LONGEST_UNSIGNALLED: Nanos = Nanos::micros(100);

impl Channel {
    pub(super) fn new(id: ChannelId, server: ChannelServer) -> Self {
        Self {
            id,
            server,
            wake_state: WakeState::Polling,
            in_flight: 0,
            unsignalled: 0,
        }
    }

    /// Completes a request. Returns true if this is the first that is left to signal: the channel
    /// is then to be passed to [`Channel::notify_completions`] until that returns true.
    pub(super) fn complete(&mut self, slot: u16, result: i32) -> bool {
        self.server.complete(slot, result);
        self.unsignalled += 1;
        self.unsignalled == 1
    }

    /// Signals the client if it sleeps and enough completions are due, or one is `late`. Returns true if none are left to
    /// signal.
    pub(super) fn notify_completions(&mut self, late: bool) -> bool {
        let are_few = self.unsignalled * COALESCE_DIVISOR < self.in_flight;
        if are_few && !late {
            return false;
        }
        self.server.notify_completions();
        self.unsignalled = 0;
        true
    }

    /// Arms the doorbell, unless requests wait.
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

    /// Returns true if the channel can be released.
    pub(super) fn is_drained(&self) -> bool {
        self.wake_state == WakeState::Closed && self.in_flight == 0
    }
}
