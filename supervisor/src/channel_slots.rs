//! The supervisor's account of the IO channels of a tree's processes, whichever party serves
//! them: the daemon (`daemon_link`) or a page client (`page_client_link`).
//!
//! Rule: a slot has channels until the serving party reports each of them closed, so none of a
//! dead process's I/O is in flight when its slot goes to another.

use crate::sockets::{refuse, send_reply};
use host::fd_reaper::PeerFd;
use link::handshake::{Reply, SlotIndex};
use rustix::fd::BorrowedFd;
use std::collections::{BTreeMap, BTreeSet};

/// A process that waits for a channel.
struct PendingChannel {
    slot: SlotIndex,
    depth: u16,
    reply: PeerFd,
}

/// The slot of each channel and of each pending request for one, and the channels that are closing.
pub(crate) struct ChannelSlots<C> {
    /// By cookie.
    requesters: BTreeMap<u64, PendingChannel>,
    channels: BTreeMap<C, SlotIndex>,
    closing: BTreeSet<C>,
    /// Slots whose process has ended.
    ended_slots: BTreeSet<SlotIndex>,
}

impl<C: Copy + Ord> ChannelSlots<C> {
    pub fn new() -> Self {
        Self {
            requesters: BTreeMap::new(),
            channels: BTreeMap::new(),
            closing: BTreeSet::new(),
            ended_slots: BTreeSet::new(),
        }
    }

    /// A process in `slot` requests a channel; the reply goes to `reply`.
    pub fn request(&mut self, cookie: u64, slot: SlotIndex, depth: u16, reply: PeerFd) {
        self.ended_slots.remove(&slot);
        let pending = PendingChannel { slot, depth, reply };
        self.requesters.insert(cookie, pending);
    }

    /// The cookie and the depth of each pending request.
    pub fn requests(&self) -> impl Iterator<Item = (u64, u16)> {
        let requesters = self.requesters.iter();
        requesters.map(|(cookie, pending)| (*cookie, pending.depth))
    }

    /// A channel is open, and its requester gets `fds`. Returns false if the requester has ended: the caller
    /// closes the channel.
    pub fn open(&mut self, cookie: u64, channel: C, fds: &[BorrowedFd<'_>]) -> bool {
        let Some(PendingChannel { slot, reply, .. }) = self.requesters.remove(&cookie) else {
            return false;
        };
        self.add(channel, slot) && send_reply(&reply, Reply::Channel, fds)
    }

    /// The serving party refuses a channel.
    pub fn refuse(&mut self, cookie: u64, why: &str) {
        if let Some(pending) = self.requesters.remove(&cookie) {
            refuse(&pending.reply, why);
        }
    }

    /// A channel for the process in `slot` is open. Returns true if that process is still there.
    fn add(&mut self, channel: C, slot: SlotIndex) -> bool {
        self.channels.insert(channel, slot);
        !self.ended_slots.contains(&slot)
    }

    /// The process in `slot` has ended. Returns its channels that are not closing yet.
    pub fn release(&mut self, slot: SlotIndex) -> Vec<C> {
        self.ended_slots.insert(slot);
        let own = self.channels.iter().filter(|(_, of)| **of == slot);
        own.map(|(channel, _)| *channel)
            .filter(|channel| !self.closing.contains(channel))
            .collect()
    }

    /// Returns true if the channel was not closing before.
    pub fn start_close(&mut self, channel: C) -> bool {
        self.closing.insert(channel)
    }

    /// The serving party has closed a channel: none of its I/O is in flight.
    pub fn on_closed(&mut self, channel: C) {
        self.channels.remove(&channel);
        self.closing.remove(&channel);
    }

    /// Another process of the serving party serves, and the earlier one has no I/O in flight: closing channels are closed.
    pub fn on_server_restarted(&mut self) {
        for channel in std::mem::take(&mut self.closing) {
            self.channels.remove(&channel);
        }
    }

    /// Returns true if each channel of `slot` is closed, and no request of it is pending.
    pub fn is_quiet(&self, slot: SlotIndex) -> bool {
        let is_requested = self.requesters.values().any(|it| it.slot == slot);
        !is_requested && !self.channels.values().any(|of| *of == slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn request(slots: &mut ChannelSlots<u64>, slot: SlotIndex) {
        let reply = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        slots.request(0, slot, 1, PeerFd::new(reply, 0));
    }

    #[test]
    fn a_slot_has_its_channels_until_each_is_closed() {
        let mut slots = ChannelSlots::new();
        assert!(slots.add(10u64, 1) && slots.add(11, 1) && slots.add(12, 2));
        assert_eq!(slots.release(1), [10, 11]);
        assert!(slots.start_close(10) && !slots.start_close(10));
        assert_eq!(slots.release(1), [11], "a channel closes once");
        slots.on_closed(10);
        assert!(!slots.is_quiet(1));
        slots.on_closed(11);
        assert!(slots.is_quiet(1) && !slots.is_quiet(2));
    }

    #[test]
    fn a_closing_channel_is_closed_when_another_process_of_the_serving_party_serves() {
        let mut slots = ChannelSlots::new();
        assert!(slots.add(10u64, 1) && slots.add(11, 2));
        assert!(slots.start_close(10));
        slots.on_server_restarted();
        assert!(slots.is_quiet(1) && !slots.is_quiet(2));
    }

    #[test]
    fn a_channel_that_opens_after_the_end_of_its_process_belongs_to_no_process() {
        let mut slots = ChannelSlots::new();
        slots.release(1);
        assert!(!slots.add(10u64, 1));
        request(&mut slots, 1);
        assert!(!slots.is_quiet(1), "the slot has another process");
        assert!(slots.add(11, 1));
    }
}
