//! The stats page: counters and flags of every process of the tree, in shared memory.
//!
//! Each process counts in a block of its own. The supervisor maps the memory, too,
//! so the counts of a process that is killed at any instruction are not lost, and reading them
//! disturbs no process. The header has the data of the whole tree: the flag *careful*,
//! the limits of its fault rate with the count that they bound, and a table of programs.
//!
//! Rule: each block has one writer, its process, but for the supervisor's requests to its pager
//! ([`ProcessStats::discards`]); nothing here is a lock.

use crate::handshake::SlotIndex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use wired::{Counter, DiscardRequest, Stage, WiredMemory};

/// Bytes of the header: one page, which nothing else uses.
const HEADER: usize = wired::PAGE;

/// Where the limits are in the header: their generation, which is a futex, and their words,
/// away from the flag and from each other.
const GENERATION: usize = 128;
const LIMITS: usize = 256;

/// Where the table of programs is: a word for each slot.
const PROGRAMS: usize = HEADER;

/// Bytes in a process's block: 16 words of state, then the counters and the histograms. No two
/// processes share a page.
const BLOCK: usize = wired::PAGE;

/// Words before the counters in a block.
const STATE: usize = 16;

/// Counters and histogram words that a block has room for.
const ROOM: usize = (BLOCK - STATE * 8) / 8;

const _: () = assert!(LIMITS + rate::shared_limits::WORDS * 8 <= HEADER);
const _: () = assert!(Stage::DOMAIN_WORDS <= ROOM);

/// The stats page, mapped.
pub struct StatsPage {
    region: WiredMemory,
    slots: SlotIndex,
}

impl StatsPage {
    /// A stats page of `slots` blocks, and the descriptor others map it by.
    pub fn create(slots: SlotIndex) -> io::Result<(Self, OwnedFd)> {
        let (region, fd) = WiredMemory::shared(bytes(slots), "selfpage-stats")?;
        Ok((Self { region, slots }, fd))
    }

    /// The stats page behind a descriptor.
    pub fn attach(fd: impl AsFd, slots: SlotIndex) -> io::Result<Self> {
        Ok(Self {
            region: WiredMemory::attach(fd, bytes(slots))?,
            slots,
        })
    }

    /// Not 0 once processes of the tree may do direct I/O: from then on every pager
    /// checks that a page is not pinned before it discards it. The supervisor sets it
    /// before it lets the first system call through that could set up direct I/O. A futex.
    pub fn careful(&self) -> &AtomicU32 {
        &self.region.slice::<AtomicU32>(0, 1)[0]
    }

    /// The limits of the tree's fault rate.
    pub fn limits(&self) -> rate::SharedLimits<'_> {
        let generation = &self.region.slice(GENERATION, 1)[0];
        rate::SharedLimits::new(
            generation,
            self.region.slice(LIMITS, rate::shared_limits::WORDS),
        )
    }

    /// The program of each slot by its process number, as the supervisor sees it: not 0 while a process, the
    /// program or its pager, has that program's memory. The supervisor alone writes them; each is a futex.
    pub fn programs(&self) -> &[AtomicU32] {
        self.region.slice(PROGRAMS, self.slots.into())
    }

    /// The block of one process.
    ///
    /// # Panics
    /// For a slot that the stats page does not have: slots come from the supervisor.
    pub fn block(&self, slot: SlotIndex) -> ProcessStats<'_> {
        assert!(
            slot < self.slots,
            "slot {slot} of a stats page of {}",
            self.slots
        );
        let start = PROGRAMS + programs_bytes(self.slots) + usize::from(slot) * BLOCK;
        ProcessStats {
            words: self.region.slice(start, BLOCK / 8),
            futexes: self.region.slice(start, 2),
        }
    }
}

fn bytes(slots: SlotIndex) -> usize {
    PROGRAMS + programs_bytes(slots) + usize::from(slots) * BLOCK
}

/// Bytes of the table of programs: whole pages.
fn programs_bytes(slots: SlotIndex) -> usize {
    (usize::from(slots) * size_of::<u32>()).next_multiple_of(wired::PAGE)
}

/// One process's words on the stats page: a view without state of its own.
#[derive(Clone, Copy)]
pub struct ProcessStats<'a> {
    words: &'a [AtomicU64],
    futexes: &'a [AtomicU32],
}

impl<'a> ProcessStats<'a> {
    /// The value of [`StatsPage::careful`] that this process's pager acts by: the pager stores it
    /// once no eviction that began without the check is in progress.
    pub fn careful_seen(&self) -> &'a AtomicU32 {
        &self.futexes[0]
    }

    /// Not 0 once the child of a fork has its inherited memory (all of it registered, and the rest
    /// discarded), or has no pager and ends. A futex, for the parent, which defines the values.
    pub fn inherited(&self) -> &'a AtomicU32 {
        &self.futexes[1]
    }

    /// The requests to discard what the program discards by system calls of its own.
    pub fn discards(&self) -> DiscardRequest<'a> {
        let [_, words @ ..] = self.words.first_chunk::<5>().expect("a block is longer");
        DiscardRequest::new(words)
    }

    /// Counts `n` more.
    pub fn add(&self, counter: Counter, n: u64) {
        self.word(counter).fetch_add(n, Ordering::Relaxed);
    }

    /// Raises a peak to at least `value`.
    pub fn raise(&self, counter: Counter, value: u64) {
        self.word(counter).fetch_max(value, Ordering::Relaxed);
    }

    /// The counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.word(counter).load(Ordering::Relaxed)
    }

    /// The counter's word, for code that keeps the reference.
    pub fn word(&self, counter: Counter) -> &'a AtomicU64 {
        &self.words[STATE + counter as usize]
    }

    /// The latest time at which a throttled fault of the process was to retry, by [`wired::clock`].
    pub fn throttled_until(&self) -> u64 {
        self.counters()[Stage::THROTTLED_UNTIL].load(Ordering::Relaxed)
    }

    /// The words a domain counts in: its counters in their order, its histograms, and when its
    /// throttled faults retry.
    pub fn counters(&self) -> &'a [AtomicU64] {
        &self.words[STATE..STATE + Stage::DOMAIN_WORDS]
    }

    /// The counts of a stage's buckets.
    pub fn stage(&self, stage: Stage) -> impl Iterator<Item = u64> + use<'a> {
        let words = &self.counters()[stage.words()];
        words.iter().map(|word| word.load(Ordering::Relaxed))
    }

    /// Empties the block for its next process, but for [`ProcessStats::inherited`]: the parent of a refused child may not
    /// have read it, and the next one's parent empties it.
    pub fn clear(&self) {
        self.careful_seen().store(0, Ordering::Relaxed);
        self.words[1..]
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_the_counts_of_another() {
        let (ours, fd) = StatsPage::create(4).unwrap();
        let theirs = StatsPage::attach(&fd, 4).unwrap();
        theirs.block(3).add(Counter::Faults, 5);
        theirs.block(3).raise(Counter::PeakResidentPages, 7);
        theirs.block(3).raise(Counter::PeakResidentPages, 6);
        theirs.block(3).careful_seen().store(1, Ordering::Release);
        assert_eq!(ours.block(3).get(Counter::Faults), 5);
        assert_eq!(ours.block(3).get(Counter::PeakResidentPages), 7);
        assert_eq!(ours.block(3).careful_seen().load(Ordering::Acquire), 1);
        assert_eq!(ours.block(2).get(Counter::Faults), 0);
        ours.programs()[3].store(17, Ordering::Release);
        assert_eq!(theirs.programs()[3].load(Ordering::Acquire), 17);
        ours.block(3).clear();
        assert_eq!(theirs.block(3).get(Counter::Faults), 0);
    }
}
