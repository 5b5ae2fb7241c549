//! Where each blok's contents are: at the inner transport, or in a slot of the paging file.
//!
//! The table is in memory that outlives the process, so that another process goes on with it. It has a word for each blok,
//! and a bit for each slot that is claimed.
//!
//! | step of a write to the file | after a kill there |
//! |---|---|
//! | `claim` sets the slot's bit | no blok names the slot: it is an *orphan* |
//! | the page is written | likewise |
//! | `on_file_written` sets the blok's word | the page is the blok's; the slot that it had before may be an orphan |
//! | the earlier slot's bit is cleared | the write is complete, and may be acknowledged |
//! | the inner transport forgets the blok, if it had it | it has a copy that no read finds: the next process has it forgotten |
//! | `on_forgotten` says so | the blok counts as one with room there, until it is written |
//!
//! Rules:
//! - A slot that a word names is never written: each write takes another one. So a blok has its last acknowledged contents
//!   until a later write's are whole.
//! - Two processes never write the file at once: an orphan is free when the next process begins ([`PageFile`]).
//! - The space has as many bloks as the larger side has room for. A file of that size has room for each of them, whatever
//!   the inner transport does. The bound of the inner transport is passed by nothing but writes that a full file refuses.
//!
//! [`PageFile`]: super::page_file::PageFile

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wired::{PAGE, WiredMemory};

const WORD: usize = size_of::<u32>();
/// The bit of a blok that has room at the inner transport, also where its contents are in the file and the inner transport
/// forgets none. The others are the number of its slot and one, or 0 where its
/// contents are not in the file.
const AT_INNER: u32 = 1 << 31;

/// A page's room in the paging file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

impl SlotId {
    /// The byte of the file that it begins at.
    pub fn offset(self) -> u64 {
        u64::from(self.0) * PAGE as u64
    }
}

/// Where a blok's contents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlokPlace {
    /// It was never written.
    Unwritten,
    /// At the inner transport.
    Inner,
    /// In the file.
    File(SlotId),
}

impl BlokPlace {
    fn of_word(word: u32) -> Self {
        match (word, word & !AT_INNER) {
            (0, _) => Self::Unwritten,
            (_, 0) => Self::Inner,
            (_, number) => Self::File(SlotId(number - 1)),
        }
    }
}

/// How many pages have room where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacesSize {
    /// Bloks with room at the inner transport, at most.
    pub inner: u32,
    /// Bloks in the file, at most.
    pub file: u32,
    /// Slots beside those, for writes in flight: a full file's pages can be written again.
    pub spare: u32,
}

impl PlacesSize {
    /// Bloks of the space.
    pub fn bloks(self) -> usize {
        self.inner.max(self.file) as usize
    }

    /// Slots of the file.
    pub fn slots(self) -> u32 {
        self.file + self.spare
    }

    /// Bytes of the table.
    pub fn table_bytes(self) -> usize {
        (self.bloks() + self.slots().div_ceil(u32::BITS) as usize) * WORD
    }
}

/// The places of a space's bloks.
pub struct Places {
    memory: Arc<WiredMemory>,
    start: usize,
    size: PlacesSize,
    /// Slots that are not claimed.
    free: u32,
    /// Bloks in the file.
    in_file: u32,
    /// Bloks with room at the inner transport, and those that writes in flight bring there.
    at_inner: u32,
    coming: u32,
    /// Where the search for a free slot begins.
    next: u32,
}

impl Places {
    /// The places in a table that begins at a place in memory: of zeros, or as an earlier process left it, of whose writes
    /// none is left.
    pub fn at((memory, start): (Arc<WiredMemory>, usize), size: PlacesSize) -> Self {
        let mut places = Self {
            memory,
            start,
            size,
            free: size.slots(),
            in_file: 0,
            at_inner: 0,
            coming: 0,
            next: 0,
        };
        places.claim_named();
        places
    }

    /// Has those slots claimed that a word names, and no others.
    fn claim_named(&mut self) {
        let start = self.start + self.size.bloks() * WORD;
        let words = self.size.slots().div_ceil(u32::BITS) as usize;
        let bits = self.memory.slice::<AtomicU32>(start, words);
        bits.iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        for blok in 0..self.size.bloks() {
            self.at_inner += u32::from(self.is_at_inner(blok));
            if let BlokPlace::File(slot) = self.place(blok) {
                let (word, bit) = self.bit(slot);
                word.fetch_or(bit, Ordering::Relaxed);
                self.free -= 1;
                self.in_file += 1;
            }
        }
    }

    fn words(&self) -> &[AtomicU32] {
        self.memory.slice(self.start, self.size.bloks())
    }

    fn bit(&self, slot: SlotId) -> (&AtomicU32, u32) {
        let at = self.start + (self.size.bloks() + (slot.0 / u32::BITS) as usize) * WORD;
        let words = self.memory.slice::<AtomicU32>(at, 1);
        (&words[0], 1 << (slot.0 % u32::BITS))
    }

    /// Where a blok's contents are.
    pub fn place(&self, blok: usize) -> BlokPlace {
        BlokPlace::of_word(self.words()[blok].load(Ordering::Acquire))
    }

    /// Returns true if a blok has room at the inner transport, also where a later write of it is in the file.
    fn is_at_inner(&self, blok: usize) -> bool {
        self.words()[blok].load(Ordering::Acquire) & AT_INNER != 0
    }

    /// How many of some bloks have no room at the inner transport yet.
    pub fn new_at_inner(&self, bloks: Range<usize>) -> u32 {
        bloks.filter(|blok| !self.is_at_inner(*blok)).count() as u32
    }

    /// Returns true if the inner transport's part of the space has room for so many more bloks.
    pub fn has_inner_room(&self, new: u32) -> bool {
        self.at_inner + self.coming + new <= self.size.inner
    }

    /// A write that brings so many bloks to the inner transport begins.
    pub fn on_inner_begun(&mut self, new: u32) {
        self.coming += new;
    }

    /// It has ended, whatever came of it.
    pub fn on_inner_ended(&mut self, new: u32) {
        self.coming -= new;
    }

    /// Claims a slot for a write of a blok; `None` where the file is full.
    pub fn claim(&mut self, blok: usize) -> Option<SlotId> {
        let is_there = matches!(self.place(blok), BlokPlace::File(_));
        // Those in flight may be more than there is room for, by some of the spare slots.
        if self.free == 0 || (!is_there && self.in_file >= self.size.file) {
            return None;
        }
        let slot = self.next_free()?;
        let (word, bit) = self.bit(slot);
        word.fetch_or(bit, Ordering::AcqRel);
        self.next = slot.0 + 1;
        self.free -= 1;
        Some(slot)
    }

    /// The next free slot, of which the words of bits that are all claimed are passed at once.
    fn next_free(&self) -> Option<SlotId> {
        let slots = self.size.slots();
        let mut at = self.next;
        for _ in 0..=slots {
            if at >= slots {
                at = 0;
            }
            let (word, bit) = self.bit(SlotId(at));
            let free = !word.load(Ordering::Acquire) & !(bit - 1);
            let found = at / u32::BITS * u32::BITS + free.trailing_zeros();
            if free != 0 && found < slots {
                return Some(SlotId(found));
            }
            at = (at / u32::BITS + 1) * u32::BITS;
        }
        None
    }

    /// Gives back a slot that no word names: of a write that failed.
    pub fn release(&mut self, slot: SlotId) {
        let (word, bit) = self.bit(slot);
        let before = word.fetch_and(!bit, Ordering::AcqRel);
        debug_assert!(before & bit != 0, "{slot:?} was not claimed");
        self.free += 1;
    }

    /// A write to the file completed: the blok's contents are in that slot. Returns the slot that it had before, which is
    /// claimed until it is released: reads of it may be in flight.
    pub fn on_file_written(&mut self, blok: usize, slot: SlotId) -> Option<SlotId> {
        let at_inner = self.words()[blok].load(Ordering::Acquire) & AT_INNER;
        self.set(blok, at_inner | (slot.0 + 1))
    }

    /// A write to the inner transport completed. Returns the slot that the blok had before, likewise.
    pub fn on_inner_written(&mut self, blok: usize) -> Option<SlotId> {
        self.set(blok, AT_INNER)
    }

    /// The inner transport has forgotten a blok whose contents are in the file.
    pub fn on_forgotten(&mut self, blok: usize) {
        let before = self.words()[blok].fetch_and(!AT_INNER, Ordering::AcqRel);
        debug_assert!(before & !AT_INNER != 0, "blok {blok} is not in the file");
        self.at_inner -= u32::from(before & AT_INNER != 0);
    }

    fn set(&mut self, blok: usize, word: u32) -> Option<SlotId> {
        let before = self.words()[blok].swap(word, Ordering::AcqRel);
        self.at_inner += u32::from(word & !before & AT_INNER != 0);
        self.in_file += u32::from(word & !AT_INNER != 0);
        match BlokPlace::of_word(before) {
            BlokPlace::File(slot) => {
                self.in_file -= 1;
                Some(slot)
            }
            BlokPlace::Unwritten | BlokPlace::Inner => None,
        }
    }

    /// How many pages have room where.
    pub fn size(&self) -> PlacesSize {
        self.size
    }

    /// Slots that are not claimed.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Bloks in the file.
    pub fn in_file(&self) -> u32 {
        self.in_file
    }
}
