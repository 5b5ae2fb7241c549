//! One contract as the disk's thread has it: its channels, served in turn, and its window of
//! requests.
//!
//! Requests stay in their channels until the window has a place. So what a client can make
//! the disk remember is bounded, however many channels it has.

use super::channel::{Channel, WakeState};
use super::command::UsdEvent;
use super::stats::ClientCounters;
use super::transaction::Transaction;
use super::{ChannelId, IoTarget};
use crate::atropos::ClientId;
use crate::time::Time;
use iochannel::{Corrupt, Doorbell, Server};
use std::sync::mpsc::Sender;

/// Requests of a client that are known at once: twice what any disk has in flight, so that who
/// has most of a disk still has something to choose from.
pub(super) const WINDOW: usize = 128;

#[derive(Debug)]
pub(super) struct Client {
    pub id: ClientId,
    pub target: Option<IoTarget>,
    /// Its bell, and how often it had another.
    pub doorbell: Option<(Doorbell, u32)>,
    /// How often it rang since it last asked for anything.
    pub spurious_wakeups: u32,
    pub channels: Vec<Channel>,
    /// Whose turn it is.
    turn: usize,
    pub window: Box<[Transaction]>,
    free: Vec<u32>,
    pub counted: ClientCounters,
    /// It is removed: who waits for that.
    pub removal: Option<Sender<Option<Client>>>,
}

/// What a client's channels gave.
pub(super) enum Received {
    /// A request, now in this place of the window.
    Request(u32),
    /// A request that cannot be, already answered, in that channel.
    Refused(ChannelId),
    /// What no client of ours writes.
    Corrupt(ChannelId, Corrupt),
    /// Nothing.
    Nothing,
}

impl Client {
    pub(super) fn new(id: ClientId) -> Self {
        Self {
            id,
            target: None,
            doorbell: None,
            spurious_wakeups: 0,
            channels: Vec::new(),
            turn: 0,
            window: (0..WINDOW).map(|_| Transaction::none()).collect(),
            free: (0..WINDOW as u32).rev().collect(),
            counted: ClientCounters::new(),
            removal: None,
        }
    }

    pub(super) fn watch(&mut self, id: ChannelId, server: Server) {
        self.channels.push(Channel::new(id, server));
    }

    pub(super) fn channel(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.id == id)
    }

    /// Whether it can be given a request: it has a place for one, and a place to do it.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() && self.target.is_some() && self.removal.is_none()
    }

    /// The next request, of each channel that has one in turn.
    pub(super) fn take_request(&mut self, now: Time) -> Received {
        let Some((&at, target)) = self.free.last().zip(self.target.as_ref()) else {
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
                Ok(None) => continue,
                Err(why) => return Received::Corrupt(channel.id, why),
            };
            let transaction = &mut self.window[at as usize];
            transaction.set(channel.id, &request, now);
            if let Err(errno) = transaction.check(target) {
                transaction.orphan = true;
                channel.complete(request.slot, -errno.raw_os_error());
                return Received::Refused(channel.id);
            }
            self.free.pop();
            self.spurious_wakeups = 0;
            return Received::Request(at);
        }
        Received::Nothing
    }

    /// A place in the window is free again.
    pub(super) fn release_slot(&mut self, at: u32) {
        self.window[at as usize].orphan = true;
        self.free.push(at);
    }

    /// Closes a channel: what is not begun never will be.
    pub(super) fn close(&mut self, id: ChannelId) {
        if let Some(channel) = self.channel(id) {
            channel.wake_state = WakeState::Closed;
        }
        for transaction in &mut self.window {
            transaction.orphan |= transaction.channel == id && transaction.in_flight == 0;
        }
    }

    /// Lets go of channels that are closed and of which nothing is in flight.
    pub(super) fn release_closed(&mut self, tell: &mut impl FnMut(UsdEvent)) {
        self.channels.retain(|channel| {
            if channel.is_drained() {
                tell(UsdEvent::Closed(channel.id));
            }
            !channel.is_drained()
        });
    }

    /// Wakes its channels: it has rung.
    pub(super) fn wake(&mut self) {
        self.channels.iter_mut().for_each(Channel::wake);
    }

    /// Lets its channels sleep, as far as they have nothing to say. Whether it needs no
    /// looking after until it rings.
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
