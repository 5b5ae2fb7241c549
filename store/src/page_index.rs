//! The page page_index: one entry for each stored page, shared by every process of a tree.
//!
//! An entry is 32 bytes: a word of state, a word of place (or, for a page of one repeated
//! value, that value), and the page's checksum. The state word holds how many processes
//! hold the page and, while one of them changes that, who.
//!
//! | state | means | lock | count |
//! |---|---|---|---|
//! | free | nobody's | 0 | 0 |
//! | claimed | its holder is writing the page, or keeps the entry for the next | holder | 0 |
//! | stored | place says where | 0, or who drops or adopts it now | holders |
//! | filled | place is the value repeated | as stored | holders |
//!
//! Rule: the entry is the truth. The bitmap of taken entries is a hint, and each change of
//! two words is noted as an [`Intent`] first, so that `retire` can finish or undo it.

use crate::backoff::Backoff;
use crate::blok::BlokAllocator;
use crate::intent_log::{Intent, IntentGuard, IntentLog};
use crate::location::Location;
use crate::ref_bitmap::{RefBitmap, ones};
use crate::search_hint::SearchHint;
use crate::segment::SegmentTable;
use crate::{Checksum, HolderId, PageHandle};
use std::sync::atomic::{AtomicU64, Ordering};
use wired::{PAGE, Plain};

/// A stored page.
#[repr(C)]
pub(crate) struct Entry {
    word: AtomicU64,
    place: AtomicU64,
    sum: [AtomicU64; 2],
}

// SAFETY: atomics only.
unsafe impl Plain for Entry {}

const _: () = assert!(size_of::<Entry>() == 32);

/// The state word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryWord(u64);

const STATE: u64 = 0b11;
const CLAIMED: u64 = 1;
const STORED: u64 = 2;
const FILLED: u64 = 3;
const LOCK_SHIFT: u32 = 16;
const LOCK: u64 = 0xffff << LOCK_SHIFT;
const COUNT_SHIFT: u32 = 32;
const COUNT_ONE: u64 = 1 << COUNT_SHIFT;

impl EntryWord {
    fn claimed_by(holder: HolderId) -> Self {
        EntryWord(CLAIMED | lock_of(holder))
    }
    pub fn is_free(self) -> bool {
        self.0 == 0
    }
    pub fn is_filled(self) -> bool {
        self.0 & STATE == FILLED
    }
    /// Stored or filled: the page can be read.
    pub fn is_page(self) -> bool {
        self.0 & STATE >= STORED
    }
    fn is_locked(self) -> bool {
        self.0 & LOCK != 0
    }
    fn is_locked_by(self, holder: HolderId) -> bool {
        self.0 & LOCK == lock_of(holder)
    }
    pub fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT
    }
}

fn lock_of(holder: HolderId) -> u64 {
    (u64::from(holder) + 1) << LOCK_SHIFT
}

/// What a read needs to know of a page.
pub(crate) enum Lookup {
    /// One repeated value.
    Filled(u64),
    /// Somewhere.
    At(Location),
}

/// Entries claimed for writing, kept by a channel: part of one group of 64.
#[derive(Clone, Copy, Default)]
pub(crate) struct ClaimSet {
    group: usize,
    mask: u64,
}

impl ClaimSet {
    /// The next entry, unless all are used.
    pub fn take(&mut self) -> Option<u32> {
        let bit = ones(self.mask).next()?;
        self.mask &= !(1 << bit);
        Some(self.group as u32 * 64 + bit)
    }
}

/// The entries, with what belongs to them.
pub(crate) struct PageIndex {
    entries: &'static [Entry],
    taken: &'static [AtomicU64],
    hint: SearchHint,
    high: &'static AtomicU64,
    pub refs: RefBitmap,
    pub intents: IntentLog,
}

impl PageIndex {
    pub fn new(
        entries: &'static [Entry],
        taken: &'static [AtomicU64],
        (hint, high): (&'static AtomicU64, &'static AtomicU64),
        refs: RefBitmap,
        intents: IntentLog,
    ) -> Self {
        Self {
            entries,
            taken,
            hint: SearchHint(hint),
            high,
            refs,
            intents,
        }
    }

    /// Entry 0 is nobody's: handle 0 does not exist. Once, when the store is made.
    pub fn reserve_zero(&self) {
        self.taken[0].fetch_or(1, Ordering::AcqRel);
    }

    /// ClaimSet up to 64 entries for `holder`; `near` is the thread's place among the notes.
    pub fn claim(&self, holder: HolderId, near: usize) -> Option<ClaimSet> {
        let note = &self.intents.begin(holder, near);
        let seen = self.hint.start();
        let mut group = seen;
        while group < self.taken.len() {
            let free = !self.taken[group].load(Ordering::Acquire);
            if free != 0 {
                self.hint.raise(seen, group, |mut passed| {
                    passed.find(|&at| self.taken[at].load(Ordering::Acquire) != u64::MAX)
                });
                // Looked at first: it seldom moves, and all channels read it.
                if self.high.load(Ordering::Acquire) <= group as u64 {
                    self.high.fetch_max(group as u64 + 1, Ordering::AcqRel);
                }
                note.set(Intent::Claim(group as u32));
                let mask = self.claim_in(group, free, holder);
                if mask != 0 {
                    return Some(ClaimSet { group, mask });
                }
            }
            group += 1;
        }
        None
    }

    fn claim_in(&self, group: usize, free: u64, holder: HolderId) -> u64 {
        let claimed = EntryWord::claimed_by(holder).0;
        let mask = ones(free)
            .filter(|bit| {
                let word = &self.entries[group * 64 + *bit as usize].word;
                word.compare_exchange(0, claimed, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
            .fold(0, |mask, bit| mask | 1 << bit);
        if mask != 0 {
            self.refs.add(holder, group, mask);
            self.taken[group].fetch_or(mask, Ordering::AcqRel);
        }
        mask
    }

    /// Gives claimed entries back.
    pub fn unclaim(&self, holder: HolderId, near: usize, mut claims: ClaimSet) {
        while let Some(handle) = claims.take() {
            self.release_claimed(holder, near, handle);
        }
    }

    /// The claimed entry is free again. Under an intent, or in `retire`.
    fn free_claimed(&self, holder: HolderId, handle: u32) {
        let entry = &self.entries[handle as usize];
        entry.place.store(0, Ordering::Release);
        self.refs
            .remove(holder, handle as usize / 64, 1 << (handle % 64));
        self.make_free(handle);
    }

    fn make_free(&self, handle: u32) {
        self.entries[handle as usize]
            .word
            .store(0, Ordering::Release);
        self.untake(handle);
    }

    fn untake(&self, handle: u32) {
        let group = handle as usize / 64;
        self.taken[group].fetch_and(!(1 << (handle % 64)), Ordering::AcqRel);
        self.hint.lower(group);
    }

    /// A claimed entry's page goes here. Before the place itself is taken: the entry is the
    /// intent.
    pub fn set_location(&self, handle: u32, location: Location, sum: Checksum) {
        let entry = &self.entries[handle as usize];
        entry.set_sum(sum);
        entry.place.store(location.encode(), Ordering::Release);
    }

    /// A claimed entry's page is where it was aimed, and its writer holds it.
    pub fn publish(&self, handle: u32) {
        let entry = &self.entries[handle as usize];
        entry.word.store(STORED | COUNT_ONE, Ordering::Release);
    }

    /// A claimed entry's page is this value, repeated.
    pub fn publish_filled(&self, handle: u32, value: u64, sum: Checksum) {
        let entry = &self.entries[handle as usize];
        entry.place.store(value, Ordering::Release);
        entry.set_sum(sum);
        entry.word.store(FILLED | COUNT_ONE, Ordering::Release);
    }

    /// The checksum of a page.
    pub fn checksum(&self, handle: PageHandle) -> Checksum {
        let [low, high] = &self.entries[handle.get() as usize].sum;
        let high = u128::from(high.load(Ordering::Relaxed));
        Checksum(high << 64 | u128::from(low.load(Ordering::Relaxed)))
    }

    /// Whether this is what was written as `handle`, which is a page.
    pub fn verify(&self, handle: PageHandle, contents: &[u8; PAGE]) -> bool {
        let entry = self.entries.get(handle.get() as usize);
        entry.is_some_and(|entry| EntryWord(entry.word.load(Ordering::Acquire)).is_page())
            && Checksum::of(contents) == self.checksum(handle)
    }

    /// Where a page is, now.
    pub fn find(&self, handle: PageHandle) -> Option<Lookup> {
        let entry = self.entries.get(handle.get() as usize)?;
        let word = EntryWord(entry.word.load(Ordering::Acquire));
        if !word.is_page() {
            return None;
        }
        let place = entry.place.load(Ordering::Acquire);
        Some(if word.is_filled() {
            Lookup::Filled(place)
        } else {
            Lookup::At(Location::decode(place))
        })
    }

    /// Whether the page lies exactly here.
    pub fn is_at(&self, handle: u32, location: Location) -> bool {
        let Some(entry) = self.entries.get(handle as usize) else {
            return false;
        };
        entry.place.load(Ordering::Acquire) == location.encode()
            && !EntryWord(entry.word.load(Ordering::Acquire)).is_filled()
    }

    /// Moves a page, unless it has moved or gone. Places in RAM are not used again while
    /// the mover has their segment claimed, so that an old place cannot come back.
    pub fn relocate(&self, handle: u32, from: Location, to: Location) -> bool {
        let place = &self.entries[handle as usize].place;
        place
            .compare_exchange(
                from.encode(),
                to.encode(),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// `holder` drops its hold; the last one frees the page. False if it held nothing, or
    /// if `backoff` ended while another process had the entry.
    pub fn drop_hold(
        &self,
        holder: HolderId,
        handle: u32,
        (segments, bloks): (&SegmentTable, Option<&BlokAllocator>),
        note: &IntentGuard,
        mut give_up: impl FnMut() -> bool,
    ) -> Result<(), ReleaseError> {
        if !self.refs.has(holder, handle) {
            return Err(ReleaseError::NotHeld);
        }
        note.set(Intent::Drop(handle));
        let entry = &self.entries[handle as usize];
        let locked = entry
            .lock(holder, &mut give_up)
            .ok_or(ReleaseError::InOthersHands)?;
        if !self.refs.has(holder, handle) {
            // Another thread dropped it meanwhile: its caller's error, and no harm.
            entry.word.store(locked.0 & !LOCK, Ordering::Release);
            return Err(ReleaseError::NotHeld);
        }
        self.refs
            .remove(holder, handle as usize / 64, 1 << (handle % 64));
        self.finish_drop(handle, locked, segments, bloks);
        note.set(Intent::Idle);
        Ok(())
    }

    /// The entry is locked and its holder's bit cleared: count it down, free it at 0.
    fn finish_drop(
        &self,
        handle: u32,
        word: EntryWord,
        segments: &SegmentTable,
        bloks: Option<&BlokAllocator>,
    ) {
        let entry = &self.entries[handle as usize];
        if word.count() > 1 {
            entry
                .word
                .store((word.0 & !LOCK) - COUNT_ONE, Ordering::Release);
            return;
        }
        if !word.is_filled() {
            self.free_place(handle, segments, bloks);
        }
        entry.place.store(0, Ordering::Release);
        self.make_free(handle);
    }

    /// Frees what the place word says, wherever a mover puts it meanwhile.
    fn free_place(&self, handle: u32, segments: &SegmentTable, bloks: Option<&BlokAllocator>) {
        let entry = &self.entries[handle as usize];
        loop {
            let location = Location::decode(entry.place.load(Ordering::Acquire));
            match location {
                Location::Nowhere => return,
                Location::Ram { segment, len, .. } => {
                    if self.relocate(handle, location, Location::Nowhere) {
                        segments.mark_dead(segment, len);
                        return;
                    }
                }
                Location::Disk { blok } => {
                    if let Some(bloks) = bloks {
                        bloks.free(blok, handle);
                    }
                    return;
                }
            }
        }
    }

    /// `child` holds what `parent` holds.
    pub fn adopt(&self, parent: HolderId, child: HolderId, note: &IntentGuard) {
        for (group, mask) in self.refs.each(parent) {
            note.set(Intent::Adopt(group as u32));
            for bit in ones(mask) {
                let entry = &self.entries[group * 64 + bit as usize];
                // A claimed entry is not a page yet; the child makes its own.
                if !EntryWord(entry.word.load(Ordering::Acquire)).is_page() {
                    continue;
                }
                let Some(word) = entry.lock(child, &mut || false) else {
                    continue;
                };
                self.refs.add(child, group, 1 << bit);
                entry
                    .word
                    .store((word.0 & !LOCK) + COUNT_ONE, Ordering::Release);
            }
            note.set(Intent::Idle);
        }
    }

    /// Finishes or undoes one thing a dead holder was in the middle of, as far as the
    /// catalogue goes.
    pub fn recover(
        &self,
        dead: HolderId,
        intent: Intent,
        segments: &SegmentTable,
        bloks: Option<&BlokAllocator>,
    ) {
        match intent {
            Intent::Claim(group) => {
                for handle in group * 64..group * 64 + 64 {
                    let word =
                        EntryWord(self.entries[handle as usize].word.load(Ordering::Acquire));
                    if word == EntryWord::claimed_by(dead) && !self.refs.has(dead, handle) {
                        self.make_free(handle);
                    } else if word.is_free() {
                        self.repair_taken(handle);
                    }
                }
            }
            Intent::Drop(handle) => {
                let word = EntryWord(self.entries[handle as usize].word.load(Ordering::Acquire));
                if word.is_page() && word.is_locked_by(dead) {
                    self.refs
                        .remove(dead, handle as usize / 64, 1 << (handle % 64));
                    self.finish_drop(handle, word, segments, bloks);
                } else if word.is_free() {
                    self.repair_taken(handle);
                }
            }
            Intent::Adopt(group) => {
                for handle in group * 64..group * 64 + 64 {
                    let entry = &self.entries[handle as usize];
                    let word = EntryWord(entry.word.load(Ordering::Acquire));
                    if word.is_page() && word.is_locked_by(dead) {
                        self.refs.remove(dead, group as usize, 1 << (handle % 64));
                        entry.word.store(word.0 & !LOCK, Ordering::Release);
                    }
                }
            }
            Intent::Idle | Intent::BlokAllocator(..) | Intent::Demote(..) => {}
        }
    }

    /// A free entry that is marked taken, because whoever freed it died in between. Another
    /// may be claiming it now: then both mark and entry say so soon, and a cleared mark
    /// costs the next searcher one look.
    fn repair_taken(&self, handle: u32) {
        if handle == 0 {
            return;
        }
        self.untake(handle);
        let word = EntryWord(self.entries[handle as usize].word.load(Ordering::Acquire));
        if !word.is_free() {
            self.taken[handle as usize / 64].fetch_or(1 << (handle % 64), Ordering::AcqRel);
        }
    }

    /// Whether the dead holder was writing this page, and to where.
    pub fn claimed_location(&self, dead: HolderId, handle: u32) -> Option<Location> {
        let entry = &self.entries[handle as usize];
        let word = EntryWord(entry.word.load(Ordering::Acquire));
        (word == EntryWord::claimed_by(dead))
            .then(|| Location::decode(entry.place.load(Ordering::Acquire)))
    }

    /// Frees an entry that `holder` claimed; what it was aimed at is free already.
    pub fn release_claimed(&self, holder: HolderId, near: usize, handle: u32) {
        let note = self.intents.begin(holder, near);
        note.set(Intent::Claim(handle / 64));
        self.free_claimed(holder, handle);
    }

    /// Every page, as (handle, holders, where).
    pub fn each_page(&self) -> impl Iterator<Item = (u32, u64, Lookup)> + '_ {
        let high = self.high.load(Ordering::Acquire) as usize;
        self.taken[..high.min(self.taken.len())]
            .iter()
            .enumerate()
            .flat_map(|(group, taken)| {
                ones(taken.load(Ordering::Acquire)).map(move |bit| group as u32 * 64 + bit)
            })
            .filter_map(|handle| {
                let word = EntryWord(self.entries[handle as usize].word.load(Ordering::Acquire));
                let found = self.find(PageHandle::new(handle)?)?;
                Some((handle, word.count(), found))
            })
    }

    /// After a death: somebody may have moved the hint and not looked back.
    pub fn repair_hint(&self) {
        self.hint.lower(0);
    }

    /// Bytes of entries that were ever used.
    pub fn bytes(&self) -> u64 {
        self.high.load(Ordering::Acquire) * 64 * size_of::<Entry>() as u64
    }
}

/// Why a hold was not dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReleaseError {
    /// The holder did not hold it.
    NotHeld,
    /// Another process has the entry and does not let go: it may be dead.
    InOthersHands,
}

impl Entry {
    fn set_sum(&self, sum: Checksum) {
        self.sum[0].store(sum.0 as u64, Ordering::Relaxed);
        self.sum[1].store((sum.0 >> 64) as u64, Ordering::Relaxed);
    }

    /// Locks the entry as `holder`; `None` if it is no page, or `give_up` said so.
    fn lock(&self, holder: HolderId, give_up: &mut impl FnMut() -> bool) -> Option<EntryWord> {
        let mut backoff = Backoff::default();
        loop {
            let word = EntryWord(self.word.load(Ordering::Acquire));
            if !word.is_page() {
                return None;
            }
            if !word.is_locked() {
                let locked = word.0 | lock_of(holder);
                if self
                    .word
                    .compare_exchange_weak(word.0, locked, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    return Some(EntryWord(locked));
                }
                continue;
            }
            if backoff.is_exhausted() && give_up() {
                return None;
            }
            backoff.wait();
        }
    }
}

#[cfg(test)]
#[path = "crash_tests.rs"]
mod crash_tests;
