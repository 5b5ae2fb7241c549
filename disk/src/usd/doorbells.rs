//! The clients' doorbells: watched by the ring, and muted for a while where they ring for nothing.

use super::client::{Client, client_at};
use super::ring::{Ring, RingEvent, next_doorbell_id};
use crate::time::{Nanos, Time};
use iochannel::Doorbell;
use rustix::fd::{AsFd, AsRawFd};

/// Rings of a doorbell without a request in between, at most. A correct client causes few: a ring
/// whose request the thread had found already.
const MAX_SPURIOUS_WAKEUPS: u32 = 16;

/// Back-off for a client after too many spurious wake-ups, so that ringing in a loop cannot starve
/// other clients; a real request waits for so long at most.
const SPURIOUS_WAKEUP_BACKOFF: Nanos = Nanos::millis(1);

/// Which doorbells are muted, and the numbers of those that were ever watched.
#[derive(Default)]
pub(super) struct Doorbells {
    /// Muted doorbells after too many spurious rings, and when to watch them again.
    muted: Vec<(Time, RingEvent)>,
    /// The number of the last doorbell watched.
    last: u32,
}

/// The outcome of a ring.
#[derive(PartialEq, Eq)]
pub(super) enum Rang {
    /// The client may have submitted requests.
    Believed,
    /// As above, and the doorbell is muted: it rang too often for nothing.
    Muted,
    /// The doorbell was replaced.
    Stale,
}

impl Doorbells {
    /// Watches a new doorbell of the client at this index.
    pub(super) fn watch(&mut self, ring: &mut Ring, at: u32, client: &mut Client, bell: Doorbell) {
        self.last = next_doorbell_id(self.last);
        client.doorbell = Some((bell, self.last));
        watch(ring, at, client, self.last);
    }

    /// Ends the watch of a client's doorbell, if it has one.
    pub(super) fn unwatch(ring: &mut Ring, at: u32, client: &mut Client) {
        if let Some((_, number)) = client.doorbell.take() {
            ring.unwatch(RingEvent::Bell { client: at, number });
        }
    }

    /// Handles a ring: watches the doorbell again, now or after a back-off.
    pub(super) fn on_ring(
        &mut self,
        ring: &mut Ring,
        now: Time,
        (at, client): (u32, &mut Client),
        number: u32,
    ) -> Rang {
        let Some((doorbell, _)) = client.doorbell.as_ref().filter(|(_, own)| *own == number) else {
            return Rang::Stale;
        };
        doorbell.drain();
        client.spurious_wakeups += 1;
        if client.spurious_wakeups < MAX_SPURIOUS_WAKEUPS {
            watch(ring, at, client, number);
            return Rang::Believed;
        }
        let bell = RingEvent::Bell { client: at, number };
        self.muted.push((now + SPURIOUS_WAKEUP_BACKOFF, bell));
        Rang::Muted
    }

    /// Watches muted doorbells again whose time has come.
    pub(super) fn rearm(&mut self, ring: &mut Ring, now: Time, clients: &mut [Option<Client>]) {
        self.muted.retain(|&(due, bell)| {
            if due > now {
                return true;
            }
            if let RingEvent::Bell { client: at, number } = bell
                && let Some(client) = client_at(clients, at)
            {
                watch(ring, at, client, number);
            }
            false
        });
    }

    /// When the next muted doorbell is watched again.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.muted.iter().map(|&(due, _)| due).min()
    }
}

/// Watches a client's doorbell, if it still has this number.
fn watch(ring: &mut Ring, at: u32, client: &Client, number: u32) {
    if let Some((doorbell, own)) = &client.doorbell
        && *own == number
    {
        let bell = RingEvent::Bell { client: at, number };
        let watched = ring.watch(doorbell.as_fd().as_raw_fd(), bell);
        debug_assert!(watched.is_ok(), "{watched:?}");
    }
}
