//! The fields of a page's word, and what they say together.

use store::PageHandle;

/// Where a page's contents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Zeros on demand, nothing stored.
    Empty,
    /// One thread is bringing it in.
    Filling,
    /// In the program's memory, in a frame.
    Resident,
    /// In a staging slot, still in its frame.
    Staged,
    /// Only in the store.
    Stored,
    /// Lost; each access fails.
    Poisoned,
    /// Not the domain's: something else was mapped over it.
    Foreign,
}

// Codes of the state field. `Filling` has two, so that an aborted fill can restore the earlier
// state: with a frame it was staged, else stored if there is a handle, else empty.
pub(super) const EMPTY: u64 = 0;
pub(super) const FILLING: u64 = 1;
pub(super) const REFILLING: u64 = 2;
pub(super) const RESIDENT: u64 = 3;
pub(super) const STAGED: u64 = 4;
pub(super) const STORED: u64 = 5;
pub(super) const POISONED: u64 = 6;
pub(super) const FOREIGN: u64 = 7;

/// A field of the word.
pub(super) struct Field {
    pub(super) shift: u32,
    pub(super) bits: u32,
}

impl Field {
    pub(super) const fn after(self, bits: u32) -> Self {
        Field {
            shift: self.shift + self.bits,
            bits,
        }
    }
    pub(super) const fn mask(&self) -> u64 {
        ((1 << self.bits) - 1) << self.shift
    }
    pub(super) const fn get(&self, word: u64) -> u64 {
        (word & self.mask()) >> self.shift
    }
    pub(super) const fn put(&self, word: u64, value: u64) -> u64 {
        word & !self.mask() | (value << self.shift) & self.mask()
    }
}

pub(super) const STATE: Field = Field { shift: 0, bits: 3 };
/// A thread sleeps until the page is settled.
pub(super) const WAITERS: Field = STATE.after(1);
/// The page was brought in before any access, and none is known since.
pub(super) const AHEAD: Field = WAITERS.after(1);
/// How often it came back from the standby list, up to 3.
pub(super) const HOT: Field = AHEAD.after(2);
/// Pin count.
pub(super) const NAILS: Field = HOT.after(3);
pub(super) const FRAME: Field = NAILS.after(26);
pub(super) const HANDLE: Field = FRAME.after(PageHandle::BITS);

const _: () = assert!(HANDLE.shift + HANDLE.bits == 64);
const _: () = assert!(1 << FRAME.bits == frames::Frame::MAX as u64);
// The low half is a futex word, and everything waited for is in it.
const _: () = assert!(NAILS.shift + NAILS.bits <= 32 && cfg!(target_endian = "little"));

/// What a page's word said at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PageState(pub(super) u64);

impl PageState {
    /// Result of [`PageState::frame`] for a page without one; no frame has this number.
    pub const NO_FRAME: u32 = u32::MAX;

    /// Nails that a page has at most.
    pub const MOST_NAILS: u32 = (1 << NAILS.bits) - 1;

    /// Where the contents are.
    pub fn state(self) -> State {
        match STATE.get(self.0) {
            FILLING | REFILLING => State::Filling,
            RESIDENT => State::Resident,
            STAGED => State::Staged,
            STORED => State::Stored,
            POISONED => State::Poisoned,
            FOREIGN => State::Foreign,
            _ => State::Empty,
        }
    }

    /// The page's frame: of a resident or staged page; of a page that is filled from staging,
    /// the frame it had there. Otherwise [`PageState::NO_FRAME`].
    pub fn frame(self) -> u32 {
        match STATE.get(self.0) {
            RESIDENT | STAGED | REFILLING => FRAME.get(self.0) as u32,
            _ => Self::NO_FRAME,
        }
    }

    /// Returns true if a slot of the standby list has the page in its frame, also while a fault fills it from there.
    pub fn has_staged_frame(self) -> bool {
        matches!(STATE.get(self.0), STAGED | REFILLING)
    }

    /// The stored copy; for a page that is not `Stored` maybe a stale one.
    pub fn handle(self) -> Option<PageHandle> {
        PageHandle::new(HANDLE.get(self.0) as u32)
    }

    /// The pin count: how many nails keep the page in place.
    pub fn nails(self) -> u32 {
        NAILS.get(self.0) as u32
    }

    /// How often the page recently came back from the standby list, up to 3.
    pub fn hot(self) -> u32 {
        HOT.get(self.0) as u32
    }

    /// Returns true if the page was brought in before any access, and had none since.
    pub fn ahead(self) -> bool {
        AHEAD.get(self.0) != 0
    }

    /// Returns true if a sweep may take the page's unit: the page is the domain's and not
    /// nailed.
    pub fn may_stage(self) -> bool {
        self.nails() == 0 && STATE.get(self.0) != FOREIGN
    }

    /// The state before the page's fill began; the same state if it is not being filled.
    pub fn before_fill(self) -> PageState {
        let settled = match STATE.get(self.0) {
            REFILLING => STAGED,
            FILLING if self.handle().is_some() => STORED,
            FILLING => EMPTY,
            _ => return self,
        };
        PageState(WAITERS.put(STATE.put(self.0, settled), 0))
    }

    /// The word for a fill of this page; None if the page cannot be filled.
    pub(super) fn filling(self) -> Option<u64> {
        match STATE.get(self.0) {
            EMPTY | STORED => Some(STATE.put(self.0, FILLING)),
            STAGED => Some(STATE.put(self.0, REFILLING)),
            _ => None,
        }
    }

    pub(super) fn is(self, state: u64, frame: u32) -> bool {
        STATE.get(self.0) == state && FRAME.get(self.0) as u32 == frame
    }

    /// The page without a frame.
    pub(super) fn without_frame(self) -> u64 {
        FRAME.put(self.0, 0)
    }
}

impl std::fmt::Debug for PageState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageState")
            .field("state", &self.state())
            .field("frame", &self.frame())
            .field("handle", &self.handle())
            .field("nails", &self.nails())
            .field("hot", &self.hot())
            .finish()
    }
}
