//! Blok allocator of the swap file: first fit by bitmap.
//!
//! "It keeps track of swap space as a bitmap of bloks ... bloks are allocated first fit, a
//! hint pointer is maintained to the earliest structure which is known to have free bloks"
//! (Nemesis, section 6.6). A blok is a page. The structure is a word of 64 bloks here, and
//! a run never crosses one: 256 KiB is more than one I/O carries.
//!
//! Many processes allocate at once, and any may die in between, so the bitmap is a hint only. The
//! truth is the owner word of each blok: the handle whose page lies there, or 0. Assigning a blok
//! is a compare-and-swap from 0, freeing it one to 0, so that neither can happen twice.

use crate::intent_log::{Intent, IntentGuard};
use crate::search_hint::SearchHint;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Owner of the bloks of an extent that is being freed: no page has this handle.
const GROWTH: u32 = u32::MAX;

/// Words that a search visits beyond the first with a free blok, for a longer run.
const SEARCH_BATCH: usize = 64;

/// Contiguous bloks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlokRun {
    pub first: u32,
    pub count: u32,
}

impl BlokRun {
    pub fn one(first: u32) -> Self {
        Self { first, count: 1 }
    }
}

/// The allocator.
pub(crate) struct BlokAllocator {
    bits: &'static [AtomicU64],
    owners: &'static [AtomicU32],
    hint: SearchHint,
    /// How many bloks at the end are closed.
    closed: &'static AtomicU64,
}

impl BlokAllocator {
    pub fn new(
        bits: &'static [AtomicU64],
        owners: &'static [AtomicU32],
        hint: &'static AtomicU64,
        closed: &'static AtomicU64,
    ) -> Self {
        Self {
            bits,
            owners,
            hint: SearchHint(hint),
            closed,
        }
    }

    /// Marks the bits past the last blok as taken. Once, when the store is made.
    pub fn close_end(&self) {
        let over = self.bits.len() * 64 - self.owners.len();
        if over > 0
            && let Some(last) = self.bits.last()
        {
            last.fetch_or(!(u64::MAX >> over), Ordering::AcqRel);
        }
    }

    /// Marks bloks as taken without an owner: no search finds them. The ends are multiples of 64.
    pub fn close(&self, bloks: Range<u64>) {
        for word in self.words(bloks) {
            word.fetch_or(u64::MAX, Ordering::AcqRel);
        }
    }

    /// Reverses [`BlokAllocator::close`]; the end may be the last blok's.
    pub fn open(&self, bloks: Range<u64>) {
        let over = (bloks.end.next_multiple_of(64) - bloks.end) as u32;
        let first = bloks.start as usize / 64;
        let words = self.words(bloks.start..bloks.end.next_multiple_of(64));
        let last = words.len().saturating_sub(1);
        for (at, word) in words.iter().enumerate() {
            let opened = if at == last {
                u64::MAX >> over
            } else {
                u64::MAX
            };
            word.fetch_and(!opened, Ordering::AcqRel);
        }
        self.hint.lower(first);
    }

    /// Returns true if a blok of these is open, or has an owner.
    pub fn is_open(&self, bloks: Range<u64>) -> bool {
        let ends = bloks.start..bloks.end.next_multiple_of(64);
        let over = (ends.end - bloks.end) as u32;
        let words = self.words(ends);
        let last = words.len().saturating_sub(1);
        let has_open = words.iter().enumerate().any(|(at, word)| {
            let all = if at == last {
                u64::MAX >> over
            } else {
                u64::MAX
            };
            !word.load(Ordering::Acquire) & all != 0
        });
        has_open || bloks.into_iter().any(|blok| self.has_owner(blok))
    }

    /// Opens those of the bloks that have no owner: where no process reserves any meanwhile.
    pub fn open_unowned(&self, bloks: Range<u64>) {
        for blok in bloks {
            if !self.has_owner(blok) {
                self.unreserve(BlokRun::one(blok as u32));
            }
        }
    }

    fn has_owner(&self, blok: u64) -> bool {
        self.owner(blok as u32).is_some_and(|owner| owner != 0)
    }

    /// Closes the bloks if all are free. Returns true if they are closed; else all are as before. Until
    /// [`BlokAllocator::permit`] none can be assigned: another process may have reserved one whose mark was cleared as that of a
    /// dead process's ([`BlokAllocator::repair`]).
    pub fn close_if_free(&self, bloks: Range<u64>) -> bool {
        let words = self.words(bloks.start..bloks.end.next_multiple_of(64));
        let over = bloks.end.next_multiple_of(64) - bloks.end;
        let close = |(at, word): &(usize, &AtomicU64)| {
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            // See `close_end`.
            let free = match at + 1 == words.len() {
                true => !(u64::MAX >> over),
                false => 0,
            };
            word.compare_exchange(free, u64::MAX, success, failure)
                .is_ok()
        };
        let closed = words.iter().enumerate().take_while(close).count() as u64;
        if (closed as usize) < words.len() {
            if closed > 0 {
                self.open(bloks.start..bloks.start + closed * 64);
            }
            return false;
        }
        let all = self.forbid_if_unowned(bloks.clone());
        if !all {
            self.open_unowned(bloks);
        }
        all
    }

    /// Keeps bloks from being assigned until [`BlokAllocator::permit`], if none has an owner. Returns true if none has.
    pub fn forbid_if_unowned(&self, bloks: Range<u64>) -> bool {
        let all = bloks
            .clone()
            .all(|blok| self.try_assign(blok as u32, GROWTH));
        if !all {
            self.permit(bloks);
        }
        all
    }

    /// Lets bloks be assigned again that [`BlokAllocator::forbid_if_unowned`] kept from it.
    pub fn permit(&self, bloks: Range<u64>) {
        for owner in &self.owners[bloks.start as usize..bloks.end as usize] {
            let (old, new) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = owner.compare_exchange(GROWTH, 0, old, new);
        }
    }

    /// Free bloks below `end`.
    pub fn free_below(&self, end: u64) -> u64 {
        let free = |word: &AtomicU64| u64::from(word.load(Ordering::Acquire).count_zeros());
        self.words(0..end.next_multiple_of(64))
            .iter()
            .map(free)
            .sum()
    }

    fn words(&self, bloks: Range<u64>) -> &[AtomicU64] {
        &self.bits[bloks.start as usize / 64..bloks.end as usize / 64]
    }

    /// Reserves a run of at most `want` bloks: at `near` if that is free, else the first that is
    /// long enough, else the longest nearby. The caller takes each blok by
    /// [`BlokAllocator::try_assign`] or returns it by [`BlokAllocator::unreserve`]; until then
    /// `note` records the reservation.
    pub fn reserve(&self, want: u32, near: Option<u32>, note: &IntentGuard) -> Option<BlokRun> {
        let want = want.min(64);
        if let Some(run) = near.and_then(|near| self.reserve_at(near, want, note)) {
            return Some(run);
        }
        loop {
            let seen = self.hint.start();
            let first = self.first_free(seen..self.bits.len());
            self.raise_hint(seen, first);
            let first = first?;
            let end = (first + SEARCH_BATCH).min(self.bits.len());
            let mut best = (0, first, 0);
            for at in first..end {
                let (bit, len) = longest_run(self.free_in(at), want);
                if len > best.0 {
                    best = (len, at, bit);
                    if len == want {
                        break;
                    }
                }
            }
            let (len, at, bit) = best;
            if len > 0
                && let Some(run) = self.mark(at, bit, len, note)
            {
                return Some(run);
            }
        }
    }

    fn first_free(&self, mut words: Range<usize>) -> Option<usize> {
        words.find(|&at| self.free_in(at) != 0)
    }

    fn raise_hint(&self, seen: usize, found: Option<usize>) {
        let position = found.unwrap_or(self.bits.len());
        self.hint
            .raise(seen, position, |passed| self.first_free(passed));
    }

    /// After a crash: the dead process may have moved the hint without its second look.
    pub fn repair_hint(&self) {
        self.hint.lower(0);
    }

    fn free_in(&self, at: usize) -> u64 {
        !self.bits[at].load(Ordering::Acquire)
    }

    fn reserve_at(&self, near: u32, want: u32, note: &IntentGuard) -> Option<BlokRun> {
        let (at, bit) = (near as usize / 64, near % 64);
        if at >= self.bits.len() {
            return None;
        }
        let len = (self.free_in(at) >> bit).trailing_ones().min(want);
        if len == 0 {
            None
        } else {
            self.mark(at, bit, len, note)
        }
    }

    fn mark(&self, at: usize, bit: u32, len: u32, note: &IntentGuard) -> Option<BlokRun> {
        let first = at as u32 * 64 + bit;
        let mask = mask(bit, len);
        note.set(Intent::BlokAllocator(first, len));
        let now = self.bits[at].load(Ordering::Acquire);
        let free = now & mask == 0
            && self.bits[at]
                .compare_exchange(now, now | mask, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        free.then_some(BlokRun { first, count: len })
    }

    /// Assigns `blok` to the page `handle`. Returns false if the blok has another owner (a hint was
    /// wrong): it stays marked and must not be used.
    pub fn try_assign(&self, blok: u32, handle: u32) -> bool {
        self.owners[blok as usize]
            .compare_exchange(0, handle, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Frees reserved bloks that were not assigned.
    pub fn unreserve(&self, run: BlokRun) {
        if run.count > 0 {
            let at = run.first as usize / 64;
            self.bits[at].fetch_and(!mask(run.first % 64, run.count), Ordering::AcqRel);
            self.hint.lower(at);
        }
    }

    /// Frees `blok` if the page `handle` owns it.
    pub fn free(&self, blok: u32, handle: u32) {
        let Some(owner) = self.owners.get(blok as usize) else {
            return;
        };
        if owner
            .compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.unreserve(BlokRun::one(blok));
        }
    }

    /// The page that owns `blok`, or 0.
    fn owner(&self, blok: u32) -> Option<u32> {
        let owner = self.owners.get(blok as usize)?;
        Some(owner.load(Ordering::Acquire))
    }

    /// Returns true if `blok` exists.
    pub fn has(&self, blok: u32) -> bool {
        (blok as usize) < self.owners.len()
    }

    /// Returns true if the page `handle` owns `blok`.
    pub fn is_owned(&self, blok: u32, handle: u32) -> bool {
        self.owner(blok) == Some(handle)
    }

    /// Clears the marks that a dead process set without assigning. A live process may be about to
    /// assign such a blok: then the mark is wrong, and the next process that reserves it fails to
    /// assign it and marks it again.
    pub fn repair(&self, run: BlokRun) {
        for blok in run.first..run.first + run.count {
            if self.owner(blok) == Some(0) {
                self.unreserve(BlokRun::one(blok));
            }
        }
    }

    /// Notes that the bloks from `end` on are closed: they are not counted.
    pub fn set_end(&self, end: u64) {
        let closed = (self.owners.len() as u64).saturating_sub(end);
        self.closed.store(closed, Ordering::Release);
    }

    /// Assigned bloks, with those that are reserved now. By the bitmap alone: a supervisor counts a whole file in the
    /// loop that admits its processes, and the owner words, which are 32 times as long, need no memory where no page
    /// was ever written. (128 GiB of pages on disk: 38 to 380 ms by their owners, 0.9 ms so.)
    pub fn used(&self) -> u64 {
        let closed = self.closed.load(Ordering::Acquire) as usize;
        let words = self.owners.len().saturating_sub(closed).div_ceil(64);
        let marks = |word: &AtomicU64| u64::from(word.load(Ordering::Acquire).count_ones());
        let marked: u64 = self.bits[..words].iter().map(marks).sum();
        // See `close_end`.
        let past = (words * 64).saturating_sub(self.owners.len()) as u64;
        marked.saturating_sub(past)
    }

    /// Returns true if a blok is free.
    pub fn has_room(&self) -> bool {
        let seen = self.hint.start();
        let free = self.first_free(seen..self.bits.len());
        self.raise_hint(seen, free);
        free.is_some()
    }
}

fn mask(bit: u32, len: u32) -> u64 {
    (u64::MAX >> (64 - len)) << bit
}

/// The first run of ones that is `want` long, or the longest: (bit, length).
fn longest_run(mut word: u64, want: u32) -> (u32, u32) {
    let mut best = (0, 0);
    let mut base = 0;
    while word != 0 {
        let skip = word.trailing_zeros();
        base += skip;
        word >>= skip;
        let len = word.trailing_ones();
        if len > best.1 {
            best = (base, len.min(want));
            if len >= want {
                return best;
            }
        }
        if len == 64 {
            return best;
        }
        base += len;
        word >>= len;
    }
    best
}

#[cfg(test)]
mod tests;
