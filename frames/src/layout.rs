//! The ledger's shared memory: header, a slot for each domain, RamTab, frame sets.
//!
//! Rule: the memory is words, each accessed atomically, and each either a truth that one
//! compare-and-swap changes or a count that can be recounted from the RamTab.

use crate::domain::{DomainId, DomainWord};
use crate::frame_set::FrameSet;
use crate::ledger::check;
use crate::limit_word::LimitWord;
use crate::ramtab::{Frame, Owner, RamTab};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use wired::{PAGE, Plain, WiredMemory};

/// "selfledg", and the version of this layout.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"slfldg03");

/// The words of the whole ledger.
#[repr(C, align(128))]
pub(crate) struct Header {
    pub magic: AtomicU64,
    /// Bytes of the whole, so that the descriptor alone suffices to attach it.
    pub length: AtomicU64,
    pub total: AtomicU32,
    pub slots: AtomicU32,
    /// Slots from 1 up to below this have been used; searches stop here.
    pub reach: AtomicU32,
    /// Domains admitted.
    pub live: AtomicU32,
    /// Sum of g.
    pub guaranteed: AtomicU32,
    /// Sum of max(n, g), which optimistic frames may not raise past the limit.
    pub committed: AtomicU32,
    /// Sum of `DomainSlot::wanted` at the last demand.
    pub wants: AtomicU32,
    /// Futex word: changes when frames become free. The lowest bit is set while there are sleepers.
    pub freed: AtomicU32,
    /// Futex word: not 0 during a recount; see [`crate::recount`].
    pub pause: AtomicU32,
    /// Not 0 while a process recounts.
    pub recounting: AtomicU32,
    /// Not 0 when counts may be wrong, because a process died while changing them.
    pub suspect: AtomicU32,
    /// The limit and the number of owned frames, in one word.
    pub limit: LimitWord,
    /// Most that the sum of g may be.
    pub max_guaranteed: AtomicU32,
    /// Frames to evict down to; [`u32::MAX`] when there is no such demand.
    pub reclaim_target: AtomicU32,
    /// Not 0 under pressure: set while the limit constrains allocation, cleared by raising the
    /// limit or by acknowledging.
    pub pressure: AtomicU32,
    /// The most frames owned at any moment.
    pub peak_owned: AtomicU32,
    /// Nailed frames and locked pages of all domains. Raised before and lowered after the change,
    /// so too high by what processes were about to change when they were killed.
    pub nailed: AtomicU32,
}
// SAFETY: atomics alone; zero is a value of each.
unsafe impl Plain for Header {}

/// The words of one domain.
#[repr(C, align(128))]
pub(crate) struct DomainSlot {
    /// Phase, generation and creator: see [`crate::domain::DomainPhase`].
    pub state: AtomicU32,
    pub g: AtomicU32,
    pub x: AtomicU32,
    /// Frames the domain owns. Raised before a frame is taken and lowered after one is released,
    /// so never below the RamTab's number. [`CLOSED`] when it may not change.
    pub n: AtomicU32,
    /// Frames demanded from the domain by intrusive revocation and not yet released.
    pub demanded: AtomicU32,
    /// Frames the domain waits for.
    pub wanted: AtomicU32,
    /// Frames that the domain is to give up if it can: others of the tree are in use, these are
    /// not. Not a revocation: nothing waits for it, and no deadline applies.
    pub trim: AtomicU32,
    /// When it was asked so first, or answered last.
    pub trim_at: AtomicU32,
    /// Pages locked for programs whose frames the RamTab does not show as nailed: those of shared memory, resident or not.
    pub locked: AtomicU32,
    /// When a thread of the domain last faulted, in milliseconds that wrap.
    pub used_at: AtomicU32,
    /// Futex word that wakes the domain's pager.
    pub bell: AtomicU32,
    /// When the domain demanded frames last, in milliseconds that wrap: one that waits does so again and again.
    pub wanted_at: AtomicU32,
    /// Changes of counts by this domain: begun (high half) and in progress (low half).
    pub activity: AtomicU64,
    pub taken_over: AtomicU64,
    pub lost: AtomicU64,
    pub demanded_ever: AtomicU64,
    pub released: AtomicU64,
    pub refused: AtomicU64,
}
// SAFETY: atomics alone; zero is a value of each.
unsafe impl Plain for DomainSlot {}

/// Flag in `DomainSlot::n` of a domain that is being retired.
pub(crate) const CLOSED: u32 = 1 << 31;

impl DomainSlot {
    pub(crate) fn word(&self) -> DomainWord {
        DomainWord::unpack(self.state.load(SeqCst))
    }

    /// Changes the state of an admitted domain. Returns false if it is not in the slot any more.
    pub(crate) fn change(&self, id: DomainId, to: impl Fn(DomainWord) -> DomainWord) -> bool {
        let change = |now: u32| {
            let word = DomainWord::unpack(now);
            let same = word.generation == id.generation && word.is_admitted();
            same.then(|| to(word).pack())
        };
        self.state.fetch_update(SeqCst, SeqCst, change).is_ok()
    }

    /// Wakes the domain's pager.
    pub(crate) fn ring(&self) {
        self.bell.fetch_add(1, SeqCst);
        wired::futex::wake_all(&self.bell);
    }
}

/// Offsets of the parts, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    total: u32,
    slots: u32,
    ramtab: usize,
    sets: usize,
    pub length: usize,
}

impl Layout {
    /// The layout for `total` frames and `slots` slots, slot 0 included.
    pub(crate) fn new(total: u32, slots: u32) -> Self {
        let ramtab = size_of::<Header>() + slots as usize * size_of::<DomainSlot>();
        let sets = (ramtab + total as usize * 4).next_multiple_of(PAGE);
        let set = FrameSet::size(total) * 8;
        let length = (sets + slots as usize * set).next_multiple_of(PAGE);
        Self {
            total,
            slots,
            ramtab,
            sets,
            length,
        }
    }

    /// The layout of a ledger of `length` bytes with this `first` page, or none if the page's
    /// words, which are not trusted, describe no such ledger.
    pub(crate) fn read(first: &WiredMemory, length: u64) -> Option<Self> {
        let header = &first.slice::<Header>(0, 1)[0];
        let (total, slots) = (header.total.load(SeqCst), header.slots.load(SeqCst));
        let sane =
            header.magic.load(SeqCst) == MAGIC && check(total, slots.wrapping_sub(1)).is_ok();
        let layout = sane.then(|| Self::new(total, slots))?;
        (layout.length as u64 == length).then_some(layout)
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }
}

/// The ledger's memory by its parts.
pub(crate) struct LedgerMemory {
    region: WiredMemory,
    layout: Layout,
}

impl LedgerMemory {
    pub(crate) fn new(region: WiredMemory, layout: Layout) -> Self {
        Self { region, layout }
    }

    pub(crate) fn total(&self) -> u32 {
        self.layout.total
    }

    /// Number of slots, slot 0 (no domain) included.
    pub(crate) fn slot_count(&self) -> u32 {
        self.layout.slots
    }

    pub(crate) fn header(&self) -> &Header {
        &self.region.slice::<Header>(0, 1)[0]
    }

    pub(crate) fn slots(&self) -> &[DomainSlot] {
        self.region
            .slice(size_of::<Header>(), self.layout.slots as usize)
    }

    pub(crate) fn slot(&self, owner: Owner) -> &DomainSlot {
        &self.slots()[owner as usize]
    }

    pub(crate) fn ramtab(&self) -> RamTab<'_> {
        RamTab(
            self.region
                .slice(self.layout.ramtab, self.layout.total as usize),
        )
    }

    /// A domain's unused frames; slot 0's are the free ones.
    pub(crate) fn set(&self, owner: Owner) -> FrameSet<'_> {
        let words = FrameSet::size(self.layout.total);
        let offset = self.layout.sets + owner as usize * words * 8;
        FrameSet::new(self.region.slice(offset, words), self.layout.total)
    }
}

const _: () = assert!(size_of::<Header>().is_multiple_of(align_of::<DomainSlot>()));
const _: () = assert!(size_of::<Header>() <= PAGE);
const _: () = assert!(Frame::MAX < CLOSED);
