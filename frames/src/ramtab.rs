//! The RamTab: the owner and the state of each frame.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.3: map and unmap check here that
//! the caller owns the frame and that it is neither mapped nor nailed. On Linux a frame has no
//! physical number: it is a numbered unit of quota, held by each page that is resident, on the
//! standby list, or nailed.
//!
//! Rule: this table is the only truth. Every count, set and stack beside it is a hint that can be
//! remade from it, so a process may be killed between any two instructions.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A frame's number: 0 up to the ledger's total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u32);

impl Frame {
    /// Most frames a ledger can have: frame numbers fit in 26 bits of a page's state word
    /// (256 GiB of resident memory).
    pub const MAX: u32 = 1 << 26;
}

/// A frame's state.
///
/// | state | owner | resident | may be taken by others |
/// |---|---|---|---|
/// | `Free` | none | no | by any domain within its contract |
/// | `Unused` | a domain | no | transparently, if the owner has more than g |
/// | `Mapped` | a domain | yes, or about to be | no: intrusive revocation |
/// | `Standby` | a domain | yes, on the standby list | no: intrusive revocation |
/// | `Nailed` | a domain | yes | no |
/// | `Reserved` | a domain being forked | no | no: the child's resident pages need it |
/// | `Revoking` | the taker | no | no: it is changing hands |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Not owned.
    Free = 0,
    /// Owned, without a resident page: on top of the owner's frame stack.
    Unused = 1,
    /// Owned, with a page mapped, or taken to map one.
    Mapped = 2,
    /// Owned, with a page staged for eviction.
    Standby = 3,
    /// Owned, with a page that must stay resident.
    Nailed = 4,
    /// Owned by a child that is about to be cloned, for its parent's resident pages.
    Reserved = 5,
    /// Being taken from a domain that had it unused.
    Revoking = 6,
}

/// A domain's slot number as the RamTab stores it; 0 is no domain.
pub(crate) type Owner = u32;

/// One entry's value: owner and state in a word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameEntry(u32);

impl FrameEntry {
    pub(crate) const FREE: FrameEntry = FrameEntry(0);
    const STATE_BITS: u32 = 8;

    pub(crate) const fn new(owner: Owner, state: State) -> Self {
        FrameEntry(owner << Self::STATE_BITS | state as u32)
    }

    pub(crate) const fn owner(self) -> Owner {
        self.0 >> Self::STATE_BITS
    }

    pub(crate) const fn state(self) -> State {
        match self.0 & ((1 << Self::STATE_BITS) - 1) {
            1 => State::Unused,
            2 => State::Mapped,
            3 => State::Standby,
            4 => State::Nailed,
            5 => State::Reserved,
            6 => State::Revoking,
            // Only 0 is ever written; a value corrupted by another process means no owner.
            _ => State::Free,
        }
    }
}

/// The table, one word for each frame.
#[derive(Clone, Copy)]
pub(crate) struct RamTab<'a>(pub(crate) &'a [AtomicU32]);

impl<'a> RamTab<'a> {
    pub(crate) fn get(self, frame: Frame) -> Option<FrameEntry> {
        self.0
            .get(frame.0 as usize)
            .map(|word| FrameEntry(word.load(SeqCst)))
    }

    /// Changes the entry from exactly `from` to `to`. Returns true if it did.
    pub(crate) fn change(self, frame: Frame, from: FrameEntry, to: FrameEntry) -> bool {
        self.0
            .get(frame.0 as usize)
            .is_some_and(|word| word.compare_exchange(from.0, to.0, SeqCst, SeqCst).is_ok())
    }

    /// All entries, each read once.
    pub(crate) fn entries(self) -> impl Iterator<Item = (Frame, FrameEntry)> + 'a {
        let numbered = (0u32..).zip(self.0);
        numbered.map(|(number, word)| (Frame(number), FrameEntry(word.load(SeqCst))))
    }
}
