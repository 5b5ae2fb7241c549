//! The shared parts of a store: tables, arena, counters.

use crate::HolderId;
use crate::blok::BlokAllocator;
use crate::demotion::DEMOTE_OPS;
use crate::disk_backing::DiskBacking;
use crate::error::SetupError;
use crate::intent_log::IntentLog;
use crate::intent_log::NOTES_IN_LINE;
use crate::layout::{Header, INTENTS, SHARDS, STATS, Tables};
use crate::page_index::PageIndex;
use crate::ref_bitmap::RefBitmap;
use crate::segment::SegmentTable;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use wired::WiredMemory;

/// Most pages of a channel's pager in operations at once.
const MAX_DEPTH: usize = 128;

/// The counters of each holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreCounter {
    Written,
    Read,
    ReadDisk,
    Demoted,
    Compacted,
    Mismatches,
    IoErrors,
    Ios,
    /// Pages put into compressed RAM, and their bytes there.
    ToRam,
    ToRamBytes,
    /// Reads from the youngest and from the oldest segments.
    ReadYoung,
    ReadOld,
    /// Not a count: whether the holder ever had a channel.
    Active,
}

/// Values of [`StoreCounter::Active`]; 0 is never.
const IS_ACTIVE: u64 = 1;
const WAS_ACTIVE: u64 = 2;

/// The statistics shard of a channel, and its position among the intent words: cache lines that
/// other channels seldom write.
#[derive(Clone, Copy)]
struct StatsShard(usize);

/// A store as a channel uses it, for a holder and with a shard of the statistics.
#[derive(Clone)]
pub(crate) struct HolderStore {
    inner: Arc<StoreInner>,
    pub holder: HolderId,
    shard: StatsShard,
}

impl std::ops::Deref for HolderStore {
    type Target = StoreInner;
    fn deref(&self) -> &StoreInner {
        &self.inner
    }
}

impl HolderStore {
    /// For the store's present holder.
    pub fn new(inner: Arc<StoreInner>) -> Self {
        Self {
            holder: inner.holder.load(Ordering::Acquire),
            shard: inner.shard(),
            inner,
        }
    }

    pub fn count(&self, what: StoreCounter, by: u64) {
        self.stat(self.holder, self.shard, what)
            .fetch_add(by, Ordering::Relaxed);
    }

    /// Where the search for a free intent word starts.
    pub fn near(&self) -> usize {
        self.shard.0 * NOTES_IN_LINE
    }
}

/// The parts of a store, mapped in this process.
///
/// Their slices point into `tables` and `arena`, which live here beside them.
pub(crate) struct StoreInner {
    pub page_index: PageIndex,
    pub segments: SegmentTable,
    pub bloks: Option<BlokAllocator>,
    pub header: Header,
    stats: &'static [AtomicU64],
    pub backing: DiskBacking,
    pub holder: AtomicU16,
    pub tables: Tables,
    _arena: Option<WiredMemory>,
}

impl StoreInner {
    pub fn new(
        tables: Tables,
        arena: Option<WiredMemory>,
        swap: Option<OwnedFd>,
        holder: HolderId,
    ) -> Result<Self, SetupError> {
        let (g, o) = (tables.geometry, tables.offsets);
        let mark = |errno| SetupError::Memory {
            what: "mark",
            bytes: wired::PAGE as u64,
            errno,
        };
        let backing = DiskBacking::new(g.by_daemon, swap).map_err(mark)?;
        let arena_bytes = arena.as_ref().map_or(0, WiredMemory::len);
        if arena_bytes < g.segments * g.segment_size {
            return Err(SetupError::NotAStore(
                "the arena is smaller than its tables say",
            ));
        }
        let start = arena
            .as_ref()
            .map_or(std::ptr::null_mut(), WiredMemory::as_ptr);
        // SAFETY: only these parts use the views, and they live no longer than `tables` and `arena`
        // beside them; the arena's size was checked above.
        unsafe {
            let header = tables.header();
            let holdings = RefBitmap::new(
                tables.view(o.refs, g.holders * g.groups()),
                tables.view(o.summaries, g.holders * g.summary_words()),
                &g,
            );
            let page_index = PageIndex::new(
                tables.view(o.entries, g.handles),
                tables.view(o.taken, g.groups()),
                (header.hint_handles(), header.high()),
                holdings,
                IntentLog::new(tables.view(o.intents, g.holders * INTENTS)),
            );
            let segments = SegmentTable::new(
                tables.view(o.segments, g.segments),
                (header.births(), header.segments_high()),
                header.ram_limit(),
                start,
                g.segment_size,
            );
            let bloks = (g.bloks > 0).then(|| {
                BlokAllocator::new(
                    tables.view(o.blok_bits, g.blok_words()),
                    tables.view(o.blok_owners, g.bloks),
                    header.hint_bloks(),
                    header.bloks_closed(),
                )
            });
            Ok(Self {
                page_index,
                segments,
                bloks,
                header,
                stats: tables.view(o.stats, g.holders * SHARDS * STATS),
                backing,
                holder: AtomicU16::new(holder),
                tables,
                _arena: arena,
            })
        }
    }

    fn stat(&self, holder: HolderId, shard: StatsShard, what: StoreCounter) -> &AtomicU64 {
        let set = usize::from(holder) * SHARDS + shard.0;
        &self.stats[set * STATS + what as usize]
    }

    fn shard(&self) -> StatsShard {
        StatsShard(self.header.channels().fetch_add(1, Ordering::Relaxed) as usize % SHARDS)
    }

    /// The sum over all holders. A retired holder's counts stay.
    pub fn total(&self, what: StoreCounter) -> u64 {
        self.ever_active()
            .flat_map(|holder| {
                (0..SHARDS).map(move |shard| self.stat(holder, StatsShard(shard), what))
            })
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// Marks whether the holder has channels now.
    pub fn set_active(&self, holder: HolderId, active: bool) {
        let now = if active { IS_ACTIVE } else { WAS_ACTIVE };
        let high = self.header.holders_high();
        high.fetch_max(u64::from(holder) + 1, Ordering::AcqRel);
        self.stat(holder, StatsShard(0), StoreCounter::Active)
            .store(now, Ordering::Release);
    }

    /// The holders that have or had channels.
    pub fn active(&self) -> impl Iterator<Item = HolderId> + '_ {
        self.ever_active()
            .filter(|&holder| self.activity(holder) == IS_ACTIVE)
    }

    fn ever_active(&self) -> impl Iterator<Item = HolderId> + '_ {
        // No further: a look at an untouched page of the table takes memory.
        let high = self.header.holders_high().load(Ordering::Acquire);
        (0..high.min(self.tables.geometry.holders as u64) as u16)
            .filter(|&holder| self.activity(holder) != 0)
    }

    fn activity(&self, holder: HolderId) -> u64 {
        self.stat(holder, StatsShard(0), StoreCounter::Active)
            .load(Ordering::Acquire)
    }

    /// A test whether an object is alive, for walks over segments.
    pub fn is_live(&self) -> impl Fn(u32, crate::location::Location) -> bool + '_ {
        |handle, location| self.page_index.is_at(handle, location)
    }

    /// Returns true if there may be compressed RAM: whether there is any now, the limit says.
    pub fn has_ram(&self) -> bool {
        self.segments.count() > 0
    }

    /// Returns true if pages are demoted from compressed RAM to a disk.
    pub fn is_tiered(&self) -> bool {
        self.has_ram() && self.bloks.is_some()
    }

    /// Operations of each channel for demotion, beside its depth.
    pub fn demote_ops(&self) -> usize {
        if self.is_tiered() { DEMOTE_OPS } else { 0 }
    }

    /// Operations in flight at most of a channel of this depth.
    pub fn channel_ops(&self, depth: usize) -> usize {
        depth.clamp(1, MAX_DEPTH) + self.demote_ops()
    }
}
