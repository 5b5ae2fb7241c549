//! Decides how much of a contract's frames holds compressed pages.
//!
//! A frame holds one page that is resident, or as many pages as it compresses to (the *ratio*).
//! One frame more of compressed RAM keeps `ratio - 1` more pages off the disk, those that would be
//! demoted next, and compresses one page more, the one that would be evicted next. What the first
//! earn shows in the hits in the oldest segments, what the second costs in the hits in the
//! youngest: pages that were evicted a moment ago. So the ages of the segments serve as a ghost
//! list would, on either side. The limit moves by a step towards the better side, and stays where
//! the two are about equal.
//!
//! Where neither end has hits the gradient is flat, as for a loop that is larger than both tiers:
//! then the limit sweeps, which costs nothing, until hits show a direction. Where pages do not
//! compress the limit is 0, and is tried again after pauses that double.
//!
//! Rule: pure. The caller samples the store's counters; time is counted in pages that moved.

use wired::PAGE;

/// What a page on disk costs beyond one in compressed RAM, in units of the latter: a random read
/// takes some 60 us and 8 (`selfpage bench paging --targets`, rows of `run`).
const DISK_COST: u64 = 7;
/// Hits at both ends that decide a step.
const HITS: u64 = 64;
/// Pages moved that decide whether pages compress, and a step where there are no hits.
const MOVES: u64 = 512;
/// Least ratio worth compressing for, in tenths.
const LEAST_RATIO: u64 = 12;
/// Least part of the pages written that compresses: one in so many.
const LEAST_PART: u64 = 8;
/// Steps from 0 to the most.
const STEPS: u32 = 32;
/// Least segments that compressed RAM works with: one open, one free, some to tell ages apart.
const LEAST: u32 = 4;
/// Longest pause before another try, in units of [`MOVES`].
const LONGEST_PAUSE: u64 = 256;

/// Totals since the store was made.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct RamUse {
    /// Pages read from the youngest segments.
    pub read_young: u64,
    /// Pages read from the oldest.
    pub read_old: u64,
    /// Pages written.
    pub written: u64,
    /// Pages read from disk.
    pub read_disk: u64,
    /// Pages among those written that went to compressed RAM.
    pub stored: u64,
    /// Bytes that they took.
    pub stored_bytes: u64,
}

impl RamUse {
    fn since(self, before: Self) -> Self {
        Self {
            read_young: self.read_young.saturating_sub(before.read_young),
            read_old: self.read_old.saturating_sub(before.read_old),
            written: self.written.saturating_sub(before.written),
            read_disk: self.read_disk.saturating_sub(before.read_disk),
            stored: self.stored.saturating_sub(before.stored),
            stored_bytes: self.stored_bytes.saturating_sub(before.stored_bytes),
        }
    }

    /// Pages that went to compressed RAM or came from it.
    pub fn traffic(&self) -> u64 {
        self.stored + self.read_young + self.read_old
    }

    /// Pages of memory in one of compressed RAM, in tenths.
    fn ratio(&self) -> u64 {
        self.stored * PAGE as u64 * 10 / self.stored_bytes.max(1)
    }
}

/// The sizing policy.
#[derive(Debug)]
pub struct RamSizing {
    most: u32,
    target: u32,
    /// The totals at the last step, and when pages were last seen to compress.
    stepped: RamUse,
    checked: RamUse,
    ratio: u64,
    /// The direction of a sweep.
    is_rising: bool,
    /// In units of [`MOVES`].
    pause: u64,
}

impl RamSizing {
    /// For at most `most` segments: half of that at first.
    pub fn new(most: u32) -> Self {
        let most = if most < LEAST { 0 } else { most };
        Self {
            most,
            target: (most / 2).max(LEAST.min(most)),
            stepped: RamUse::default(),
            checked: RamUse::default(),
            ratio: 0,
            is_rising: true,
            pause: 1,
        }
    }

    /// The least segments that compressed RAM works with.
    pub const LEAST: u32 = LEAST;

    /// Segments that are to hold compressed pages now.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Decides anew. `limit` is what compressed RAM has now, which may be less than it was to have.
    pub fn update(&mut self, total: RamUse, limit: u32) -> u32 {
        let seen = total.since(self.checked);
        if self.target == 0 {
            if self.most > 0 && seen.written + seen.read_disk >= self.pause * MOVES {
                self.restart(total, self.least());
            }
            return self.target;
        }
        // Nothing is stored before there is room for it.
        if limit < LEAST {
            (self.stepped, self.checked) = (total, total);
            return self.target;
        }
        if seen.written >= MOVES {
            self.checked = total;
            self.ratio = seen.ratio();
            if self.ratio < LEAST_RATIO || seen.stored < seen.written / LEAST_PART {
                self.target = 0;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                return 0;
            }
            self.pause = 1;
        }
        let seen = total.since(self.stepped);
        let (young, old) = (seen.read_young, seen.read_old);
        if young + old >= HITS && self.ratio > 0 {
            // Where no page comes from disk there is none to keep off it.
            let earns = self.ratio.saturating_sub(10) * DISK_COST * old.min(seen.read_disk);
            let costs = 10 * young;
            self.stepped = total;
            // A quarter apart: a step must not be undone by the next.
            if earns * 4 > costs * 5 {
                self.step(true);
            } else if earns * 5 < costs * 4 {
                self.step(false);
            }
        } else if seen.read_disk >= MOVES {
            self.stepped = total;
            self.step(self.is_rising);
            if self.target == self.most || self.target == self.least() {
                self.is_rising = self.target == self.least();
            }
        }
        self.target
    }

    fn restart(&mut self, total: RamUse, target: u32) {
        (self.stepped, self.checked) = (total, total);
        // Known again after the first pages.
        self.ratio = 0;
        self.target = target;
    }

    fn least(&self) -> u32 {
        (self.most / STEPS).max(LEAST)
    }

    fn step(&mut self, up: bool) {
        let step = (self.most / STEPS).max(1);
        self.target = match up {
            true => (self.target + step).min(self.most),
            false => self.target.saturating_sub(step).max(self.least()),
        };
    }
}

#[cfg(test)]
mod tests;
