//! Layout of the tables in shared memory.
//!
//! One memfd holds all tables, sparse: unused parts take no memory. Sizes follow from the
//! configuration and are written into its header, so that another process finds the same layout.

use crate::error::SetupError;
use crate::segment::RamLimit;
use crate::{DiskConfig, HolderId, StoreConfig};
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use wired::{PAGE, Plain, WiredMemory};

/// Identifies the memory of a store with this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"slfpgst3");

/// Handles in one page of a holder's bitmap.
pub(crate) const HANDLES_PER_BITMAP_PAGE: usize = PAGE * 8;
/// Intent words of a holder: its maximum of concurrent operations.
pub(crate) const INTENTS: usize = PAGE / 8;
/// Words of a statistics shard: two cache lines.
pub(crate) const STATS: usize = 16;
/// Statistics shards of a holder: its channels take turns, so that few share one.
pub(crate) const SHARDS: usize = 8;
/// Maximum slots of a store: a hold is counted in 16 bits.
pub(crate) const MAX_HOLDERS: u16 = 4096;

/// Additional entries beyond what the tiers hold: same-filled pages take no space in either. 16 GiB
/// of them.
const FILLED_PAGES: u64 = 4 << 20;
/// Best compression ratio that the index has entries for; measured heaps compress 2 to 6 times.
const RATIO: u64 = 32;

/// The sizes that determine the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub holders: usize,
    pub handles: usize,
    pub segments: usize,
    pub segment_size: usize,
    pub bloks: usize,
    /// True if the bloks are on a disk of the daemon's, behind IO channels.
    pub by_daemon: bool,
}

impl Geometry {
    pub fn of(config: &StoreConfig, holders: u16) -> Self {
        let ram = config.ram.unwrap_or(0);
        let disk = config.disk.as_ref().map_or(0, DiskConfig::space);
        // At least 64 segments, so that one of them is a small part; over 64 KiB only where there
        // are more than a thousand, since each channel of each process of a tree fills one of its
        // own. At most 256 KiB, because a location has 15 bits for an offset in units of 8.
        let most = (ram / 2048).next_power_of_two().clamp(64 << 10, 256 << 10);
        let segment_size = (ram / 64).next_power_of_two().clamp(16 << 10, most) as usize;
        let handles = (ram / PAGE as u64 * RATIO + disk / PAGE as u64 + FILLED_PAGES)
            .next_multiple_of(HANDLES_PER_BITMAP_PAGE as u64)
            .min(1 << crate::PageHandle::BITS);
        Self {
            holders: usize::from(holders),
            handles: handles as usize,
            segments: ram as usize / segment_size,
            segment_size,
            bloks: disk as usize / PAGE,
            by_daemon: config.disk.is_some() && !config.has_file(),
        }
    }

    /// 64-handle groups.
    pub fn groups(&self) -> usize {
        self.handles / 64
    }

    /// Words of a holder's summary: a bit for each page of its bitmap.
    pub fn summary_words(&self) -> usize {
        (self.handles / HANDLES_PER_BITMAP_PAGE).div_ceil(64)
    }

    /// Words of the blok bitmap.
    pub fn blok_words(&self) -> usize {
        self.bloks.div_ceil(64)
    }
}

/// Byte offsets of the tables, each page aligned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offsets {
    pub stats: usize,
    pub intents: usize,
    pub taken: usize,
    pub entries: usize,
    pub summaries: usize,
    pub refs: usize,
    pub segments: usize,
    pub blok_bits: usize,
    pub blok_owners: usize,
    pub end: usize,
}

impl Offsets {
    pub fn of(g: &Geometry) -> Self {
        let mut at = HEADER;
        let mut next = |bytes: usize| {
            let here = at;
            at = (at + bytes).next_multiple_of(PAGE);
            here
        };
        Self {
            stats: next(g.holders * SHARDS * STATS * 8),
            intents: next(g.holders * INTENTS * 8),
            taken: next(g.groups() * 8),
            entries: next(g.handles * size_of::<crate::page_index::PageEntry>()),
            summaries: next(g.holders * g.summary_words() * 8),
            refs: next(g.holders * g.handles / 8),
            segments: next(g.segments * size_of::<crate::segment::Segment>()),
            blok_bits: next(g.blok_words() * 8),
            blok_owners: next(g.bloks * 4),
            end: at,
        }
    }
}

/// Bytes of the header: words, then the configuration line.
const HEADER: usize = 4 * PAGE;
const TEXT: usize = PAGE;
/// Indices of the header's words.
mod word {
    pub const MAGIC: usize = 0;
    pub const HOLDERS: usize = 1;
    pub const HANDLES: usize = 2;
    pub const SEGMENTS: usize = 3;
    pub const SEGMENT_SIZE: usize = 4;
    pub const BLOKS: usize = 5;
    pub const TEXT_LEN: usize = 6;
    pub const NOTES: usize = 7;
    pub const BY_SYSTEM: usize = 8;
    /// From here on each on a cache line of its own: they are written often.
    pub const HINT_HANDLES: usize = 64;
    pub const HINT_BLOKS: usize = 72;
    pub const BIRTHS: usize = 80;
    pub const HIGH: usize = 88;
    pub const INJECT: usize = 96;
    pub const CHANNELS: usize = 104;
    pub const SEGMENTS_HIGH: usize = 112;
    /// Together on one line: they are written seldom and read often.
    pub const RAM_LIMIT: usize = 120;
    pub const RAM_YOUNG: usize = 121;
    pub const RAM_OLD: usize = 122;
    pub const HOLDERS_HIGH: usize = 123;
    pub const RAM_ROOM: usize = 124;
    pub const BLOKS_CLOSED: usize = 125;
}

/// The header's words.
#[derive(Clone, Copy)]
pub(crate) struct Header(&'static [AtomicU64]);

impl Header {
    pub fn hint_handles(&self) -> &'static AtomicU64 {
        &self.0[word::HINT_HANDLES]
    }
    pub fn hint_bloks(&self) -> &'static AtomicU64 {
        &self.0[word::HINT_BLOKS]
    }
    /// Bloks at the end of the swap file that are closed.
    pub fn bloks_closed(&self) -> &'static AtomicU64 {
        &self.0[word::BLOKS_CLOSED]
    }
    /// Segments opened so far: their age.
    pub fn births(&self) -> &'static AtomicU64 {
        &self.0[word::BIRTHS]
    }
    /// Groups of the index ever used.
    pub fn high(&self) -> &'static AtomicU64 {
        &self.0[word::HIGH]
    }
    /// Channels made so far.
    pub fn channels(&self) -> &'static AtomicU64 {
        &self.0[word::CHANNELS]
    }
    /// Segments ever opened: one past the last.
    pub fn segments_high(&self) -> &'static AtomicU64 {
        &self.0[word::SEGMENTS_HIGH]
    }
    /// Segments that may be in use, and the ages that a hit is counted by.
    pub fn ram_limit(&self) -> RamLimit {
        RamLimit {
            segments: &self.0[word::RAM_LIMIT],
            young: &self.0[word::RAM_YOUNG],
            old: &self.0[word::RAM_OLD],
            room: &self.0[word::RAM_ROOM],
        }
    }
    /// Holders that ever had a channel: one past the last.
    pub fn holders_high(&self) -> &'static AtomicU64 {
        &self.0[word::HOLDERS_HIGH]
    }
    pub fn inject(&self) -> &'static [AtomicU64] {
        &self.0[word::INJECT..word::INJECT + crate::io::fault_injection::WORDS]
    }
    /// Warnings about the disk, for `describe`.
    pub fn notes(&self) -> &'static AtomicU64 {
        &self.0[word::NOTES]
    }
}

/// The mapped shared memory. The slices it returns borrow from it without a lifetime: they live
/// beside it, in one structure (see `StoreInner`).
pub(crate) struct Tables {
    region: WiredMemory,
    pub geometry: Geometry,
    pub offsets: Offsets,
}

impl Tables {
    /// Writes the header of fresh memory.
    pub fn create(region: WiredMemory, geometry: Geometry, line: &str) -> Self {
        let words = region.slice::<AtomicU64>(0, PAGE / 8);
        for (at, value) in [
            (word::HOLDERS, geometry.holders),
            (word::HANDLES, geometry.handles),
            (word::SEGMENTS, geometry.segments),
            (word::RAM_LIMIT, geometry.segments),
            (word::RAM_YOUNG, usize::MAX),
            (word::SEGMENT_SIZE, geometry.segment_size),
            (word::BLOKS, geometry.bloks),
            (word::BY_SYSTEM, geometry.by_daemon.into()),
            (word::TEXT_LEN, line.len().min(HEADER - TEXT)),
        ] {
            words[at].store(value as u64, Ordering::Relaxed);
        }
        let text = region.slice::<std::sync::atomic::AtomicU8>(TEXT, HEADER - TEXT);
        for (to, from) in text.iter().zip(line.bytes()) {
            to.store(from, Ordering::Relaxed);
        }
        words[word::MAGIC].store(MAGIC, Ordering::Release);
        Self {
            region,
            geometry,
            offsets: Offsets::of(&geometry),
        }
    }

    /// Maps the tables of another process.
    pub fn attach(fd: impl AsFd) -> Result<Self, SetupError> {
        let short = || SetupError::NotAStore("the tables' memory is too small");
        let size = rustix::fs::fstat(&fd).map_err(|_| short())?.st_size as usize;
        if size < HEADER {
            return Err(short());
        }
        let head = map(&fd, PAGE)?;
        let words = head.slice::<AtomicU64>(0, PAGE / 8);
        if words[word::MAGIC].load(Ordering::Acquire) != MAGIC {
            return Err(SetupError::NotAStore(
                "the header is not one of this version",
            ));
        }
        let read = |at: usize| words[at].load(Ordering::Relaxed) as usize;
        let geometry = Geometry {
            holders: read(word::HOLDERS),
            handles: read(word::HANDLES),
            segments: read(word::SEGMENTS),
            segment_size: read(word::SEGMENT_SIZE),
            bloks: read(word::BLOKS),
            by_daemon: read(word::BY_SYSTEM) != 0,
        };
        let offsets = Offsets::of(&geometry);
        if offsets.end != size {
            return Err(SetupError::NotAStore(
                "the header does not fit the memory's size",
            ));
        }
        Ok(Self {
            region: map(&fd, offsets.end)?,
            geometry,
            offsets,
        })
    }

    /// The configuration line the store was made from.
    pub fn line(&self) -> String {
        let words = self.region.slice::<AtomicU64>(0, PAGE / 8);
        let len = words[word::TEXT_LEN].load(Ordering::Relaxed) as usize;
        let text = self
            .region
            .slice::<std::sync::atomic::AtomicU8>(TEXT, len.min(HEADER - TEXT));
        let bytes: Vec<u8> = text
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed))
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The header's words.
    ///
    /// # Safety
    /// Used only while `self` lives.
    pub unsafe fn header(&self) -> Header {
        // SAFETY: the caller's promise.
        Header(unsafe { self.view(0, PAGE / 8) })
    }

    /// `count` values that start at `offset`.
    ///
    /// # Safety
    /// Used only while `self` lives.
    pub unsafe fn view<T: Plain>(&self, offset: usize, count: usize) -> &'static [T] {
        let slice = self.region.slice::<T>(offset, count);
        // SAFETY: the memory stays mapped while `self` lives, which the caller promises.
        unsafe { std::slice::from_raw_parts(slice.as_ptr(), count) }
    }
}

fn map(fd: impl AsFd, bytes: usize) -> Result<WiredMemory, SetupError> {
    WiredMemory::attach(fd, bytes).map_err(|errno| SetupError::Memory {
        what: "tables",
        bytes: bytes as u64,
        errno,
    })
}

/// Checks that a slot number belongs to this store.
pub(crate) fn check_holder(holder: HolderId, geometry: &Geometry) -> Result<(), SetupError> {
    if usize::from(holder) < geometry.holders {
        return Ok(());
    }
    Err(SetupError::HolderId {
        holder,
        last: geometry.holders.saturating_sub(1) as u16,
    })
}
