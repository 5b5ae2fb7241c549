//! One contract as the disk's thread holds it: its channels, served in turn, and its window of
//! requests.
//!
//! Requests stay in their channels until the window has a free slot. So the state that a client can
//! make the disk hold is bounded, however many channels it has.

use super::channel::{Channel, WakeState};
use super::stats::ClientCounters;
use super::transaction::Transaction;
use super::waiting_threads::WaitingThreads;
use super::{ChannelId, IoTarget};
use crate::atropos::ClientId;
use crate::time::Time;
use iochannel::{ChannelServer, Doorbell, ProtocolError};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Requests of a client in the window: twice what any disk has in flight, so that the client with
/// most of a disk still leaves the scheduler a choice.
pub(super) const WINDOW: usize = 128;
/// Requests beside the window that wait for the other end of a transport. Beyond that they fill the window.
pub(super) const MOST_WAITING: usize = 384;

#[derive(Debug)]
pub(super) struct Client {
    pub id: ClientId,
    pub target: Option<IoTarget>,
    /// Its doorbell, and the number of replacements.
    pub doorbell: Option<(Doorbell, u32)>,
    /// Doorbell rings since its last request.
    pub spurious_wakeups: u32,
    pub channels: Vec<Channel>,
    /// The channel that is served next.
    turn: usize,
    pub window: Box<[Transaction]>,
    free: Vec<u32>,
    /// Requests that wait for the other end of a transport.
    awaiting: usize,
    pub counted: ClientCounters,
    pub waiting: Arc<WaitingThreads>,
    /// Set during removal: receives the client when it is drained.
    pub removal: Option<Sender<Option<Client>>>,
}

/// What a client's channels yielded.
pub(super) enum Received {
    /// A request, now in this slot of the window.
    Request(u32),
    /// An invalid request, already completed with an error; its channel, if that is the first
    /// completion left to signal.
    Refused(Option<ChannelId>),
    /// Bytes that violate the channel's protocol.
    Corrupt(ChannelId, ProtocolError),
    /// The end of a channel: its client uses it no longer.
    End(ChannelId),
    /// No request.
    Nothing,
}

/// The client at an index, if it still exists.
pub(super) fn client_at(clients: &mut [Option<Client>], at: u32) -> Option<&mut Client> {
    clients.get_mut(at as usize)?.as_mut()
}

impl Client {
    /// A client with room for so many requests that wait for the other end of a transport.
    pub(super) fn new(id: ClientId, most_waiting: usize) -> Self {
        let places = WINDOW + most_waiting;
        Self {
            id,
            target: None,
            doorbell: None,
            spurious_wakeups: 0,
            channels: Vec::new(),
            turn: 0,
            window: (0..places).map(|_| Transaction::none()).collect(),
            free: (0..places as u32).rev().collect(),
            awaiting: 0,
            counted: ClientCounters::new(),
            waiting: Arc::default(),
            removal: None,
        }
    }

    pub(super) fn watch(&mut self, id: ChannelId, server: ChannelServer) {
        self.channels.push(Channel::new(id, server));
    }

    pub(super) fn channel(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.id == id)
    }

    /// Returns true if it can take a request: a slot is free, and it has a target.
    pub(super) fn has_room(&self) -> bool {
        self.free_place().is_some() && self.target.is_some() && self.removal.is_none()
    }

    /// The place of the next request.
    fn free_place(&self) -> Option<u32> {
        let used = self.window.len() - self.free.len();
        let at = self.free.last().copied();
        at.filter(|_| used - self.awaiting < WINDOW)
    }

    /// A request waits for the other end of a transport. Returns false if it did before.
    pub(super) fn set_waiting(&mut self, at: u32) -> bool {
        let is_first = !std::mem::replace(&mut self.window[at as usize].is_waiting, true);
        self.awaiting += usize::from(is_first);
        is_first
    }

    /// Takes the next request, from its channels in turn.
    pub(super) fn take_request(&mut self, now: Time) -> Received {
        let Some((at, target)) = self.free_place().zip(self.target.as_ref()) else {
            return Received::Nothing;
        };
        for _ in 0..self.channels.len() {
            self.turn = (self.turn + 1) % self.channels.len();
            let channel = &mut self.channels[self.turn];
            if channel.wake_state != WakeState::Polling {
                continue;
            }
            let request = match channel.server.take() {
                Ok(Some(request)) => request,
                Ok(None) if channel.server.has_ended() => return Received::End(channel.id),
                Ok(None) => continue,
                Err(why) => return Received::Corrupt(channel.id, why),
            };
            let transaction = &mut self.window[at as usize];
            transaction.set(channel.id, &request, now);
            if let Err(errno) = transaction.check(target) {
                transaction.orphan = true;
                let is_due = channel.complete(request.slot, -errno.raw_os_error());
                return Received::Refused(is_due.then_some(channel.id));
            }
            self.waiting.note(now, channel.server.threads());
            self.free.pop();
            self.spurious_wakeups = 0;
            return Received::Request(at);
        }
        Received::Nothing
    }

    /// Frees a slot of the window.
    pub(super) fn release_slot(&mut self, at: u32) {
        let released = &mut self.window[at as usize];
        released.orphan = true;
        self.awaiting -= usize::from(std::mem::take(&mut released.is_waiting));
        self.free.push(at);
    }

    /// Closes a channel: requests that are not started never will be.
    pub(super) fn close(&mut self, id: ChannelId) {
        if let Some(channel) = self.channel(id) {
            channel.wake_state = WakeState::Closed;
        }
        for transaction in &mut self.window {
            transaction.orphan |= transaction.channel == id && transaction.in_flight == 0;
        }
    }

    /// Polls its channels again after a ring.
    pub(super) fn wake(&mut self) {
        self.channels.iter_mut().for_each(Channel::wake);
    }

    /// Arms its channels that have no requests. Returns true if the client needs no polling until
    /// it rings.
    pub(super) fn sleep(&mut self) -> bool {
        if !self.has_room() {
            return false;
        }
        self.channels.iter_mut().for_each(Channel::arm);
        !self
            .channels
            .iter()
            .any(|channel| channel.wake_state == WakeState::Polling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atropos::{Atropos, DiskContract, Utilization};
    use crate::time::Nanos;
    use iochannel::{ChannelClient, ChannelGeometry, IoVec, create};
    use wired::PAGE;

    #[test]
    fn refused_requests_of_a_channel_are_due_for_a_signal_once() {
        let contract = DiskContract::new(Nanos::millis(1), Nanos::millis(10));
        let mut atropos = Atropos::new(Utilization::WHOLE, Nanos::ZERO, ());
        let mut client = Client::new(atropos.admit(Time(0), contract).unwrap(), 0);
        let (server, ends) = create(ChannelGeometry::for_depth(8)).unwrap();
        let doorbell = Doorbell::new().unwrap().share().unwrap();
        let mut asking = ChannelClient::attach(ends.memory, doorbell, ends.bell).unwrap();
        client.watch(ChannelId(7), server);
        client.target = Some(IoTarget::Space { number: 0, size: 0 });
        // A valid request of the channel is in flight all the time: a signal for one completion
        // among many parts is not due yet.
        client.channels[0].in_flight = 8;
        let mut page = [0u8; 2 * PAGE];
        let start = page
            .as_mut_ptr()
            .wrapping_add(page.as_ptr().align_offset(PAGE));
        let pieces = [IoVec::page(start)];
        let mut due = Vec::new();
        for op in 0..8 {
            // SAFETY: the page outlives the operations, all of which end here.
            unsafe { asking.begin(op, false, &pieces, 0) };
            asking.flush();
            let Received::Refused(channel) = client.take_request(Time(0)) else {
                panic!("the target has no pages");
            };
            due.extend(channel);
            client.channels[0].notify_completions(false);
        }
        // The first, and the one after a signal.
        assert_eq!(due, [ChannelId(7); 4]);
    }
}
