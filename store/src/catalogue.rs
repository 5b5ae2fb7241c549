//! The page catalogue: one entry for each stored page, shared by every process of a tree.
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

use crate::blok::Bloks;
use crate::hint::Hint;
use crate::holdings::{Holdings, ones};
use crate::intent::{Intent, Intents, Note};
use crate::lockword::Patience;
use crate::place::Spot;
use crate::segment::Segments;
use crate::{Checksum, Handle, Holder};
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
pub(crate) struct Word(u64);

const STATE: u64 = 0b11;
const CLAIMED: u64 = 1;
const STORED: u64 = 2;
const FILLED: u64 = 3;
const LOCK_SHIFT: u32 = 16;
const LOCK: u64 = 0xffff << LOCK_SHIFT;
const COUNT_SHIFT: u32 = 32;
const COUNT_ONE: u64 = 1 << COUNT_SHIFT;

impl Word {
    fn claimed_by(holder: Holder) -> Self {
        Word(CLAIMED | lock_of(holder))
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
    fn is_locked_by(self, holder: Holder) -> bool {
        self.0 & LOCK == lock_of(holder)
    }
    pub fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT
    }
}

fn lock_of(holder: Holder) -> u64 {
    (u64::from(holder) + 1) << LOCK_SHIFT
}

/// What a read needs to know of a page.
pub(crate) enum Found {
    /// One repeated value.
    Filled(u64),
    /// Somewhere.
    At(Spot),
}

/// Entries claimed for writing, kept by a channel: part of one group of 64.
#[derive(Clone, Copy, Default)]
pub(crate) struct Claims {
    group: usize,
    mask: u64,
}

impl Claims {
    /// The next entry, unless all are used.
    pub fn take(&mut self) -> Option<u32> {
        let bit = ones(self.mask).next()?;
        self.mask &= !(1 << bit);
        Some(self.group as u32 * 64 + bit)
    }
}

/// The entries, with what belongs to them.
pub(crate) struct Catalogue {
    entries: &'static [Entry],
    taken: &'static [AtomicU64],
    hint: Hint,
    high: &'static AtomicU64,
    pub holdings: Holdings,
    pub intents: Intents,
}

impl Catalogue {
    pub fn new(
        entries: &'static [Entry],
        taken: &'static [AtomicU64],
        (hint, high): (&'static AtomicU64, &'static AtomicU64),
        holdings: Holdings,
        intents: Intents,
    ) -> Self {
        Self {
            entries,
            taken,
            hint: Hint(hint),
            high,
            holdings,
            intents,
        }
    }

    /// Entry 0 is nobody's: handle 0 does not exist. Once, when the store is made.
    pub fn reserve_zero(&self) {
        self.taken[0].fetch_or(1, Ordering::AcqRel);
    }

    /// Claims up to 64 entries for `holder`; `near` is the thread's place among the notes.
    pub fn claim(&self, holder: Holder, near: usize) -> Option<Claims> {
        let note = &self.intents.begin(holder, near);
        let seen = self.hint.look();
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
                    return Some(Claims { group, mask });
                }
            }
            group += 1;
        }
        None
    }

    fn claim_in(&self, group: usize, free: u64, holder: Holder) -> u64 {
        let claimed = Word::claimed_by(holder).0;
        let mask = ones(free)
            .filter(|bit| {
                let word = &self.entries[group * 64 + *bit as usize].word;
                word.compare_exchange(0, claimed, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
            .fold(0, |mask, bit| mask | 1 << bit);
        if mask != 0 {
            self.holdings.add(holder, group, mask);
            self.taken[group].fetch_or(mask, Ordering::AcqRel);
        }
        mask
    }

    /// Gives claimed entries back.
    pub fn unclaim(&self, holder: Holder, near: usize, mut claims: Claims) {
        while let Some(handle) = claims.take() {
            self.release_claimed(holder, near, handle);
        }
    }

    /// The claimed entry is free again. Under an intent, or in `retire`.
    fn free_claimed(&self, holder: Holder, handle: u32) {
        let entry = &self.entries[handle as usize];
        entry.place.store(0, Ordering::Release);
        self.holdings
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
    pub fn aim(&self, handle: u32, spot: Spot, sum: Checksum) {
        let entry = &self.entries[handle as usize];
        entry.set_sum(sum);
        entry.place.store(spot.encode(), Ordering::Release);
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
    pub fn checksum(&self, handle: Handle) -> Checksum {
        let [low, high] = &self.entries[handle.get() as usize].sum;
        let high = u128::from(high.load(Ordering::Relaxed));
        Checksum(high << 64 | u128::from(low.load(Ordering::Relaxed)))
    }

    /// Whether this is what was written as `handle`, which is a page.
    pub fn verify(&self, handle: Handle, contents: &[u8; PAGE]) -> bool {
        let entry = self.entries.get(handle.get() as usize);
        entry.is_some_and(|entry| Word(entry.word.load(Ordering::Acquire)).is_page())
            && Checksum::of(contents) == self.checksum(handle)
    }

    /// Where a page is, now.
    pub fn find(&self, handle: Handle) -> Option<Found> {
        let entry = self.entries.get(handle.get() as usize)?;
        let word = Word(entry.word.load(Ordering::Acquire));
        if !word.is_page() {
            return None;
        }
        let place = entry.place.load(Ordering::Acquire);
        Some(if word.is_filled() {
            Found::Filled(place)
        } else {
            Found::At(Spot::decode(place))
        })
    }

    /// Whether the page lies exactly here.
    pub fn is_at(&self, handle: u32, spot: Spot) -> bool {
        let Some(entry) = self.entries.get(handle as usize) else {
            return false;
        };
        entry.place.load(Ordering::Acquire) == spot.encode()
            && !Word(entry.word.load(Ordering::Acquire)).is_filled()
    }

    /// Moves a page, unless it has moved or gone. Places in RAM are not used again while
    /// the mover has their segment claimed, so that an old place cannot come back.
    pub fn relocate(&self, handle: u32, from: Spot, to: Spot) -> bool {
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
    /// if `patience` ended while another process had the entry.
    pub fn drop_hold(
        &self,
        holder: Holder,
        handle: u32,
        (segments, bloks): (&Segments, Option<&Bloks>),
        note: &Note,
        mut give_up: impl FnMut() -> bool,
    ) -> Result<(), NotDropped> {
        if !self.holdings.has(holder, handle) {
            return Err(NotDropped::NotHeld);
        }
        note.set(Intent::Drop(handle));
        let entry = &self.entries[handle as usize];
        let locked = entry
            .lock(holder, &mut give_up)
            .ok_or(NotDropped::InOthersHands)?;
        if !self.holdings.has(holder, handle) {
            // Another thread dropped it meanwhile: its caller's error, and no harm.
            entry.word.store(locked.0 & !LOCK, Ordering::Release);
            return Err(NotDropped::NotHeld);
        }
        self.holdings
            .remove(holder, handle as usize / 64, 1 << (handle % 64));
        self.finish_drop(handle, locked, segments, bloks);
        note.set(Intent::Idle);
        Ok(())
    }

    /// The entry is locked and its holder's bit cleared: count it down, free it at 0.
    fn finish_drop(&self, handle: u32, word: Word, segments: &Segments, bloks: Option<&Bloks>) {
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
    fn free_place(&self, handle: u32, segments: &Segments, bloks: Option<&Bloks>) {
        let entry = &self.entries[handle as usize];
        loop {
            let spot = Spot::decode(entry.place.load(Ordering::Acquire));
            match spot {
                Spot::Nowhere => return,
                Spot::Ram { segment, len, .. } => {
                    if self.relocate(handle, spot, Spot::Nowhere) {
                        segments.lost(segment, len);
                        return;
                    }
                }
                Spot::Disk { blok } => {
                    if let Some(bloks) = bloks {
                        bloks.free(blok, handle);
                    }
                    return;
                }
            }
        }
    }

    /// `child` holds what `parent` holds.
    pub fn adopt(&self, parent: Holder, child: Holder, note: &Note) {
        for (group, mask) in self.holdings.each(parent) {
            note.set(Intent::Adopt(group as u32));
            for bit in ones(mask) {
                let entry = &self.entries[group * 64 + bit as usize];
                // A claimed entry is not a page yet; the child makes its own.
                if !Word(entry.word.load(Ordering::Acquire)).is_page() {
                    continue;
                }
                let Some(word) = entry.lock(child, &mut || false) else {
                    continue;
                };
                self.holdings.add(child, group, 1 << bit);
                entry
                    .word
                    .store((word.0 & !LOCK) + COUNT_ONE, Ordering::Release);
            }
            note.set(Intent::Idle);
        }
    }

    /// Finishes or undoes one thing a dead holder was in the middle of, as far as the
    /// catalogue goes.
    pub fn settle(&self, dead: Holder, intent: Intent, segments: &Segments, bloks: Option<&Bloks>) {
        match intent {
            Intent::Claim(group) => {
                for handle in group * 64..group * 64 + 64 {
                    let word = Word(self.entries[handle as usize].word.load(Ordering::Acquire));
                    if word == Word::claimed_by(dead) && !self.holdings.has(dead, handle) {
                        self.make_free(handle);
                    } else if word.is_free() {
                        self.heal_taken(handle);
                    }
                }
            }
            Intent::Drop(handle) => {
                let word = Word(self.entries[handle as usize].word.load(Ordering::Acquire));
                if word.is_page() && word.is_locked_by(dead) {
                    self.holdings
                        .remove(dead, handle as usize / 64, 1 << (handle % 64));
                    self.finish_drop(handle, word, segments, bloks);
                } else if word.is_free() {
                    self.heal_taken(handle);
                }
            }
            Intent::Adopt(group) => {
                for handle in group * 64..group * 64 + 64 {
                    let entry = &self.entries[handle as usize];
                    let word = Word(entry.word.load(Ordering::Acquire));
                    if word.is_page() && word.is_locked_by(dead) {
                        self.holdings
                            .remove(dead, group as usize, 1 << (handle % 64));
                        entry.word.store(word.0 & !LOCK, Ordering::Release);
                    }
                }
            }
            Intent::Idle | Intent::Bloks(..) | Intent::Demote(..) => {}
        }
    }

    /// A free entry that is marked taken, because whoever freed it died in between. Another
    /// may be claiming it now: then both mark and entry say so soon, and a cleared mark
    /// costs the next searcher one look.
    fn heal_taken(&self, handle: u32) {
        if handle == 0 {
            return;
        }
        self.untake(handle);
        let word = Word(self.entries[handle as usize].word.load(Ordering::Acquire));
        if !word.is_free() {
            self.taken[handle as usize / 64].fetch_or(1 << (handle % 64), Ordering::AcqRel);
        }
    }

    /// Whether the dead holder was writing this page, and to where.
    pub fn claimed_spot(&self, dead: Holder, handle: u32) -> Option<Spot> {
        let entry = &self.entries[handle as usize];
        let word = Word(entry.word.load(Ordering::Acquire));
        (word == Word::claimed_by(dead)).then(|| Spot::decode(entry.place.load(Ordering::Acquire)))
    }

    /// Frees an entry that `holder` claimed; what it was aimed at is free already.
    pub fn release_claimed(&self, holder: Holder, near: usize, handle: u32) {
        let note = self.intents.begin(holder, near);
        note.set(Intent::Claim(handle / 64));
        self.free_claimed(holder, handle);
    }

    /// Every page, as (handle, holders, where).
    pub fn each_page(&self) -> impl Iterator<Item = (u32, u64, Found)> + '_ {
        let high = self.high.load(Ordering::Acquire) as usize;
        self.taken[..high.min(self.taken.len())]
            .iter()
            .enumerate()
            .flat_map(|(group, taken)| {
                ones(taken.load(Ordering::Acquire)).map(move |bit| group as u32 * 64 + bit)
            })
            .filter_map(|handle| {
                let word = Word(self.entries[handle as usize].word.load(Ordering::Acquire));
                let found = self.find(Handle::new(handle)?)?;
                Some((handle, word.count(), found))
            })
    }

    /// After a death: somebody may have moved the hint and not looked back.
    pub fn heal_hint(&self) {
        self.hint.lower(0);
    }

    /// Bytes of entries that were ever used.
    pub fn bytes(&self) -> u64 {
        self.high.load(Ordering::Acquire) * 64 * size_of::<Entry>() as u64
    }
}

/// Why a hold was not dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotDropped {
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
    fn lock(&self, holder: Holder, give_up: &mut impl FnMut() -> bool) -> Option<Word> {
        let mut patience = Patience::default();
        loop {
            let word = Word(self.word.load(Ordering::Acquire));
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
                    return Some(Word(locked));
                }
                continue;
            }
            if patience.is_over() && give_up() {
                return None;
            }
            patience.wait();
        }
    }
}

#[cfg(test)]
#[path = "deaths.rs"]
mod deaths;
