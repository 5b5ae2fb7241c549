//! Everything of a store that channels share: the tables, the arena, the counters.

use crate::Holder;
use crate::backing::Backing;
use crate::blok::Bloks;
use crate::catalogue::Catalogue;
use crate::error::SetupError;
use crate::holdings::Holdings;
use crate::intent::Intents;
use crate::intent::NOTES_IN_LINE;
use crate::layout::{Header, INTENTS, LANES, STATS, Tables};
use crate::segment::Segments;
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use wired::WiredMemory;

/// What is counted, for each holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Count {
    Written,
    Read,
    ReadDisk,
    Demoted,
    Compacted,
    Mismatches,
    IoErrors,
    Ios,
    /// Pages put into compressed RAM, and the bytes that they took there.
    ToRam,
    ToRamBytes,
    /// Not a count: whether the holder ever had a channel.
    Active,
}

/// Values of [`Count::Active`]; 0 is never.
const IS_ACTIVE: u64 = 1;
const WAS_ACTIVE: u64 = 2;

/// Which of its holder's sets of statistics a channel counts in, and where it notes what it
/// does: cache lines that other channels seldom write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane(usize);

impl Lane {
    /// Where to look for a free note first.
    pub fn near(self) -> usize {
        self.0 * NOTES_IN_LINE
    }
}

/// The parts of a store, mapped in this process.
///
/// The slices in the parts point into `tables` and `arena`, which live here beside them.
pub(crate) struct Parts {
    pub catalogue: Catalogue,
    pub segments: Segments,
    pub bloks: Option<Bloks>,
    pub header: Header,
    stats: &'static [AtomicU64],
    pub backing: Backing,
    pub holder: AtomicU16,
    pub tables: Tables,
    _arena: Option<WiredMemory>,
}

impl Parts {
    pub fn new(
        tables: Tables,
        arena: Option<WiredMemory>,
        swap: Option<OwnedFd>,
        holder: Holder,
    ) -> Result<Self, SetupError> {
        let (g, o) = (tables.geometry, tables.offsets);
        let mark = |errno| SetupError::Memory {
            what: "mark",
            bytes: wired::PAGE as u64,
            errno,
        };
        let backing = Backing::new(g.by_system, swap).map_err(mark)?;
        let arena_bytes = arena.as_ref().map_or(0, WiredMemory::len);
        if arena_bytes < g.segments * g.segment_size {
            return Err(SetupError::NotAStore(
                "the arena is smaller than its tables say",
            ));
        }
        let start = arena
            .as_ref()
            .map_or(std::ptr::null_mut(), WiredMemory::as_ptr);
        // SAFETY: the views are used by the parts only, which live no longer than `tables`
        // and `arena` beside them; the arena's size was just checked.
        unsafe {
            let header = tables.header();
            let holdings = Holdings::new(
                tables.view(o.holdings, g.holders * g.groups()),
                tables.view(o.summaries, g.holders * g.summary_words()),
                &g,
            );
            let catalogue = Catalogue::new(
                tables.view(o.entries, g.handles),
                tables.view(o.taken, g.groups()),
                (header.hint_handles(), header.high()),
                holdings,
                Intents::new(tables.view(o.intents, g.holders * INTENTS)),
            );
            let segments = Segments::new(
                tables.view(o.segments, g.segments),
                (header.births(), header.segments_high()),
                start,
                g.segment_size,
            );
            let bloks = (g.bloks > 0).then(|| {
                Bloks::new(
                    tables.view(o.blok_bits, g.blok_words()),
                    tables.view(o.blok_owners, g.bloks),
                    header.hint_bloks(),
                )
            });
            Ok(Self {
                catalogue,
                segments,
                bloks,
                header,
                stats: tables.view(o.stats, g.holders * LANES * STATS),
                backing,
                holder: AtomicU16::new(holder),
                tables,
                _arena: arena,
            })
        }
    }

    fn stat(&self, holder: Holder, lane: Lane, what: Count) -> &AtomicU64 {
        let set = usize::from(holder) * LANES + lane.0;
        &self.stats[set * STATS + what as usize]
    }

    /// A lane for a new channel.
    pub fn lane(&self) -> Lane {
        Lane(self.header.channels().fetch_add(1, Ordering::Relaxed) as usize % LANES)
    }

    /// Counts what `holder` did.
    pub fn count(&self, holder: Holder, lane: Lane, what: Count, by: u64) {
        self.stat(holder, lane, what)
            .fetch_add(by, Ordering::Relaxed);
    }

    /// The sum over all holders. A retired holder's counts stay.
    pub fn total(&self, what: Count) -> u64 {
        self.ever_active()
            .flat_map(|holder| (0..LANES).map(move |lane| self.stat(holder, Lane(lane), what)))
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// Whether the holder has or had channels.
    pub fn set_active(&self, holder: Holder, active: bool) {
        let now = if active { IS_ACTIVE } else { WAS_ACTIVE };
        self.stat(holder, Lane(0), Count::Active)
            .store(now, Ordering::Release);
    }

    /// The holders that have or had channels.
    pub fn active(&self) -> impl Iterator<Item = Holder> + '_ {
        self.ever_active()
            .filter(|&holder| self.activity(holder) == IS_ACTIVE)
    }

    fn ever_active(&self) -> impl Iterator<Item = Holder> + '_ {
        (0..self.tables.geometry.holders as u16).filter(|&holder| self.activity(holder) != 0)
    }

    fn activity(&self, holder: Holder) -> u64 {
        self.stat(holder, Lane(0), Count::Active)
            .load(Ordering::Acquire)
    }

    /// Bytes alive of an object: for walks.
    pub fn is_live(&self) -> impl Fn(u32, crate::place::Spot) -> bool + '_ {
        |handle, spot| self.catalogue.is_at(handle, spot)
    }

    /// Whether there is compressed RAM.
    pub fn has_ram(&self) -> bool {
        self.segments.count() > 0
    }
}
