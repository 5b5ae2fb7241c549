//! Changes the limit on compressed RAM while channels of many processes use it.
//!
//! A lower limit is reached in three steps: the oldest segments are demoted until the rest fit
//! below it, segments above it move into the free ones below, and the memory above is given back.
//! So the youngest pages stay, a demoted page is written once, and no other process takes part: a
//! segment that an idle channel has open is seized.
//!
//! Rule: memory that holds compressed pages never exceeds [`RamResizer::held`] segments, so a
//! caller that counts it raises what it counts before the limit, and lowers it after `held`.

use crate::channel::StoreChannel;
use crate::inner::StoreCounter;
use crate::ram_sizing::RamUse;
use wired::PAGE;

/// The limit's owner, with a channel of its own to demote by.
pub struct RamResizer {
    channel: Box<StoreChannel>,
    /// Segments above the limit that could not be emptied yet count.
    held: u32,
}

impl RamResizer {
    /// The depth of its channel.
    pub const DEPTH: usize = 1;

    pub(crate) fn new(channel: Box<StoreChannel>) -> Self {
        let mut it = Self { channel, held: 0 };
        it.lower(0);
        it
    }

    /// Most segments.
    pub fn segments(&self) -> u32 {
        self.channel.store.segments.count() as u32
    }

    /// Pages of memory that a segment takes.
    pub fn segment_pages(&self) -> u32 {
        (self.channel.store.segments.size() / PAGE) as u32
    }

    /// Segments that may be in use.
    pub fn limit(&self) -> u32 {
        self.channel.store.segments.limit()
    }

    /// Segments in use.
    pub fn in_use(&self) -> u32 {
        self.channel.store.segments.in_use()
    }

    /// Segments that may have memory.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Raises the limit to so many segments, whose memory the caller has counted.
    pub fn raise(&mut self, segments: u32) {
        let segments = segments.max(self.limit());
        self.channel.store.segments.set_limit(segments);
        self.held = self.held.max(self.limit());
    }

    /// Lowers the limit to so many segments, and empties those above as far as possible: one that
    /// another channel is appending to, demoting or compacting at this moment is left to the next
    /// call, and one that the disk has no room for stays. Returns [`RamResizer::held`].
    pub fn lower(&mut self, segments: u32) -> u32 {
        let segments = segments.min(self.limit());
        self.channel.store.segments.set_limit(segments);
        self.channel.fit_below_limit();
        self.held = self.channel.store.segments.trim();
        self.held
    }

    /// What compressed RAM did since the store was made. Divides the segments by age anew, and notes
    /// whether there is room for pages from disk.
    pub fn sample(&mut self) -> RamUse {
        let store = &self.channel.store;
        store.segments.divide_by_age();
        store.segments.note_room();
        RamUse {
            read_young: store.total(StoreCounter::ReadYoung),
            read_old: store.total(StoreCounter::ReadOld),
            written: store.total(StoreCounter::Written),
            read_disk: store.total(StoreCounter::ReadDisk),
            stored: store.total(StoreCounter::ToRam),
            stored_bytes: store.total(StoreCounter::ToRamBytes),
        }
    }
}
