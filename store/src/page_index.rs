//! The page index: one entry for each stored page, shared by every process of a tree.
//!
//! An entry is 32 bytes: a state word, a location word (or, for a page of one repeated value, that
//! value), and the page's checksum. The state word counts the processes that hold the page and
//! names the one that changes the entry now.
//!
//! | state | means | lock | count |
//! |---|---|---|---|
//! | free | unused | 0 | 0 |
//! | claimed | its holder is writing the page, or keeps the entry for the next | holder | 0 |
//! | stored | the location word is valid | 0, or the last holder that frees it now | holders |
//! | filled | the location word is the repeated value | as stored | holders |
//!
//! Rule: the entry is the truth. The bitmap of taken entries is a hint, and an [`Intent`] records
//! each change of two words first, so that `retire` can finish or undo it.
//!
//! **Holds.** A program's own thread takes and drops them, and a SIGSTOP may stop it at any instruction: so neither locks an
//! entry that another process may wait for. A holder's bit is set before it is counted, and cleared after it is no more: a bit too many
//! at a crash keeps a page too long, where one too few would lose it.

mod entry;
mod recovery;

use crate::blok::BlokAllocator;
use crate::intent_log::{Intent, IntentGuard, IntentLog};
use crate::location::Location;
use crate::ref_bitmap::{RefBitmap, ones};
use crate::search_hint::SearchHint;
use crate::segment::SegmentTable;
use crate::{Checksum, HolderId, PageHandle};
pub(crate) use entry::{ClaimSet, EntryWord, HolderDropped, PageEntry};
use std::sync::atomic::{AtomicU64, Ordering};
use wired::PAGE;

/// Result of a lookup.
pub(crate) enum Lookup {
    /// One repeated value.
    Filled(u64),
    /// The page's location.
    At(Location),
}

/// The entries and their bitmaps.
pub(crate) struct PageIndex {
    entries: &'static [PageEntry],
    taken: &'static [AtomicU64],
    hint: SearchHint,
    high: &'static AtomicU64,
    pub refs: RefBitmap,
    pub intents: IntentLog,
}

impl PageIndex {
    pub fn new(
        entries: &'static [PageEntry],
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

    fn word(&self, handle: u32) -> EntryWord {
        self.entries[handle as usize].word()
    }

    /// Reserves entry 0: handle 0 does not exist. Once, when the store is made.
    pub fn reserve_zero(&self) {
        self.taken[0].fetch_or(1, Ordering::AcqRel);
    }

    /// Claims up to 64 entries for `holder`; `near` is the thread's position among the intent
    /// words.
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
                // A load first: the value seldom changes, and all channels read it.
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
        // Another thread that dropped such an entry is still to clear its bit.
        let free = free & !self.refs.held(holder, group);
        let mask = ones(free)
            .filter(|bit| self.entries[group * 64 + *bit as usize].claim(holder))
            .fold(0, |mask, bit| mask | 1 << bit);
        if mask != 0 {
            self.refs.add(holder, group, mask);
            self.taken[group].fetch_or(mask, Ordering::AcqRel);
        }
        mask
    }

    /// Returns unused claimed entries.
    pub fn unclaim(&self, holder: HolderId, near: usize, mut claims: ClaimSet) {
        while let Some(handle) = claims.take() {
            self.release_claimed(holder, near, handle);
        }
    }

    fn make_free(&self, handle: u32) {
        self.entries[handle as usize].free();
        self.untake(handle);
    }

    fn untake(&self, handle: u32) {
        let group = handle as usize / 64;
        self.taken[group].fetch_and(!(1 << (handle % 64)), Ordering::AcqRel);
        self.hint.lower(group);
    }

    /// Sets the location of a claimed entry, before the location itself is taken: the entry is the
    /// intent.
    pub fn set_location(&self, handle: u32, location: Location, sum: Checksum) {
        let entry = &self.entries[handle as usize];
        entry.set_sum(sum);
        entry.place.store(location.encode(), Ordering::Release);
    }

    /// Publishes a claimed entry whose page is at its location; the writer holds it.
    pub fn publish(&self, handle: u32) {
        self.entries[handle as usize].publish(false);
    }

    /// Publishes a claimed entry as a page that repeats this value.
    pub fn publish_filled(&self, handle: u32, value: u64, sum: Checksum) {
        let entry = &self.entries[handle as usize];
        entry.place.store(value, Ordering::Release);
        entry.set_sum(sum);
        entry.publish(true);
    }

    /// The checksum of a page.
    pub fn checksum(&self, handle: PageHandle) -> Checksum {
        self.entries[handle.get() as usize].sum()
    }

    /// Returns true if `contents` are what was written as `handle`, which is a page.
    pub fn verify_checksum(&self, handle: PageHandle, contents: &[u8; PAGE]) -> bool {
        let entry = self.entries.get(handle.get() as usize);
        entry.is_some_and(|entry| entry.word().is_page())
            && Checksum::of(contents) == self.checksum(handle)
    }

    /// The page's present location.
    pub fn find(&self, handle: PageHandle) -> Option<Lookup> {
        let entry = self.entries.get(handle.get() as usize)?;
        let word = entry.word();
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

    /// Returns true if the page lies exactly here.
    pub fn is_at(&self, handle: u32, location: Location) -> bool {
        let Some(entry) = self.entries.get(handle as usize) else {
            return false;
        };
        entry.place.load(Ordering::Acquire) == location.encode() && !entry.word().is_filled()
    }

    /// Moves a page, unless it has moved or gone; returns true if it did. Locations in RAM are not
    /// reused while the mover has their segment claimed, so that an old location cannot return.
    pub fn relocate(&self, handle: u32, from: Location, to: Location) -> bool {
        let place = &self.entries[handle as usize].place;
        let (from, to) = (from.encode(), to.encode());
        place
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Drops the hold of `holder`; the last one frees the page. Fails if it held nothing, or if `give_up` returns true while
    /// another process has the entry locked. A thread that drops a hold which another drops as well harms other holders.
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
        let dropped = entry.drop_holder(holder, &mut give_up);
        let dropped = dropped.ok_or(ReleaseError::InOthersHands)?;
        self.refs.remove(holder, handle);
        if let HolderDropped::Last(locked) = dropped {
            self.finish_drop(handle, locked, segments, bloks);
        }
        note.set(Intent::Idle);
        Ok(())
    }

    /// Counts down a locked entry whose holder's bit is cleared, and frees it at 0.
    fn finish_drop(
        &self,
        handle: u32,
        word: EntryWord,
        segments: &SegmentTable,
        bloks: Option<&BlokAllocator>,
    ) {
        let entry = &self.entries[handle as usize];
        if word.count() > 1 {
            return entry.unlock(word, -1);
        }
        if !word.is_filled() {
            self.free_place(handle, segments, bloks);
        }
        entry.place.store(0, Ordering::Release);
        self.make_free(handle);
    }

    /// Frees the page's location, even if a mover changes it meanwhile.
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

    /// Fork: takes a reference for `child` to each page that `parent` holds.
    pub fn adopt(&self, parent: HolderId, child: HolderId, note: &IntentGuard) {
        for (group, mask) in self.refs.each(parent) {
            note.set(Intent::Adopt(group as u32));
            for bit in ones(mask) {
                let entry = &self.entries[group * 64 + bit as usize];
                // A claimed entry is not a page yet; the child claims its own.
                if !entry.word().is_page() {
                    continue;
                }
                self.refs.add(child, group, 1 << bit);
                if entry.add_holder().is_none() {
                    self.refs.remove(child, group as u32 * 64 + bit);
                }
            }
            note.set(Intent::Idle);
        }
    }

    /// Frees an entry that `holder` claimed; its location is free already.
    pub fn release_claimed(&self, holder: HolderId, near: usize, handle: u32) {
        let note = self.intents.begin(holder, near);
        note.set(Intent::Claim(handle / 64));
        self.entries[handle as usize]
            .place
            .store(0, Ordering::Release);
        self.refs.remove(holder, handle);
        self.make_free(handle);
    }

    /// All pages, as (handle, holders, location).
    pub fn each_page(&self) -> impl Iterator<Item = (u32, u64, Lookup)> + '_ {
        let high = self.high.load(Ordering::Acquire) as usize;
        let groups = self.taken[..high.min(self.taken.len())].iter().enumerate();
        let handles = groups.flat_map(|(group, taken)| {
            ones(taken.load(Ordering::Acquire)).map(move |bit| group as u32 * 64 + bit)
        });
        handles.filter_map(|handle| {
            let holders = self.word(handle).count();
            Some((handle, holders, self.find(PageHandle::new(handle)?)?))
        })
    }

    /// Entries that are stored or claimed.
    pub fn taken(&self) -> u64 {
        let high = self.high.load(Ordering::Acquire) as usize;
        let groups = self.taken[..high.min(self.taken.len())].iter();
        let taken = groups.map(|group| u64::from(group.load(Ordering::Acquire).count_ones()));
        // Entry 0 is reserved.
        taken.sum::<u64>().saturating_sub(1)
    }

    /// Bytes of the entries that were ever used.
    pub fn bytes(&self) -> u64 {
        self.high.load(Ordering::Acquire) * 64 * size_of::<PageEntry>() as u64
    }
}

/// Why a hold was not dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReleaseError {
    /// The holder did not hold it.
    NotHeld,
    /// Another process has the entry locked and may be dead.
    InOthersHands,
}

#[cfg(test)]
mod crash;
