//! The IO channels of a tree's processes, as the supervisor accounts for them, whichever party serves
//! them: the daemon (`daemon_link`) or a remote client (`remote_link`).
//!
//! Rule: a slot has channels until the serving party reports each of them closed, so none of a
//! dead process's I/O is in flight when its slot goes to another.

use link::handshake::SlotIndex;
use std::collections::{BTreeMap, BTreeSet};

/// The slot that has each channel, and what is closing.
pub(crate) struct ChannelSlots<C> {
    channels: BTreeMap<C, SlotIndex>,
    closing: BTreeSet<C>,
    /// Slots whose process has gone.
    gone: BTreeSet<SlotIndex>,
}

impl<C: Copy + Ord> ChannelSlots<C> {
    pub fn new() -> Self {
        Self {
            channels: BTreeMap::new(),
            closing: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    /// A process in `slot` requests a channel.
    pub fn request(&mut self, slot: SlotIndex) {
        self.gone.remove(&slot);
    }

    /// A channel for the process in `slot` is open. Returns true if that process is still there.
    pub fn add(&mut self, channel: C, slot: SlotIndex) -> bool {
        self.channels.insert(channel, slot);
        !self.gone.contains(&slot)
    }

    /// The process in `slot` has ended. Returns its channels that are not closing yet.
    pub fn release(&mut self, slot: SlotIndex) -> Vec<C> {
        self.gone.insert(slot);
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

    /// The serving party has another process, and no I/O of the earlier one is in flight: what was closing is closed.
    pub fn on_server_restarted(&mut self) {
        for channel in std::mem::take(&mut self.closing) {
            self.channels.remove(&channel);
        }
    }

    /// Returns true if a channel of `slot` is not closed.
    pub fn has(&self, slot: SlotIndex) -> bool {
        self.channels.values().any(|of| *of == slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_its_channels_until_each_is_closed() {
        let mut slots = ChannelSlots::new();
        slots.request(1);
        assert!(slots.add(10u64, 1) && slots.add(11, 1) && slots.add(12, 2));
        assert_eq!(slots.release(1), [10, 11]);
        assert!(slots.start_close(10) && !slots.start_close(10));
        assert_eq!(slots.release(1), [11], "a channel closes once");
        slots.on_closed(10);
        assert!(slots.has(1));
        slots.on_closed(11);
        assert!(!slots.has(1) && slots.has(2));
    }

    #[test]
    fn what_closes_is_closed_when_the_serving_party_has_another_process() {
        let mut slots = ChannelSlots::new();
        assert!(slots.add(10u64, 1) && slots.add(11, 2));
        assert!(slots.start_close(10));
        slots.on_server_restarted();
        assert!(!slots.has(1) && slots.has(2));
    }

    #[test]
    fn a_channel_that_opens_after_its_process_has_gone_belongs_to_no_process() {
        let mut slots = ChannelSlots::new();
        slots.release(1);
        assert!(!slots.add(10u64, 1));
        slots.request(1);
        assert!(slots.add(11, 1), "the slot has another process");
    }
}
