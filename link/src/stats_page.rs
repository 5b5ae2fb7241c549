//! The board: figures and flags of every process of the tree, in shared memory.
//!
//! Each process counts in a block of its own. The memory is the system domain's too,
//! so the counts of a process killed at any instruction are not lost, and reading them
//! disturbs no process. The header carries what is for the whole tree: the flag *careful*, and
//! the limits of its fault rate with the count that they hold against.
//!
//! Rule: each word is written by the process it describes; nothing here is a lock.

use crate::handshake::SlotIndex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use wired::WiredMemory;

/// Bytes of the header: the rest of its page is left alone.
const HEADER: usize = wired::PAGE;

/// Where the limits are in the header: their generation, which is a futex, and their words,
/// away from the flag and from each other.
const GENERATION: usize = 128;
const LIMITS: usize = 256;

/// Bytes in a process's block: 16 words of state, then the figures.
const BLOCK: usize = 1024;

/// Words before the figures in a block.
const STATE: usize = 16;

/// Figures a block has room for.
const ROOM: usize = (BLOCK - STATE * 8) / 8;

macro_rules! figures {
    ($($(#[doc = $doc:literal])* $name:ident = $key:literal $fold:ident $(@ $at:literal)?,)*) => {
        /// One thing a process counts. `Sum` figures of a tree are the sums over its
        /// processes, dead ones included; `Now` figures are levels, and end with the process.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Metric { $($(#[doc = $doc])* $name $(= $at)?,)* }

        impl Metric {
            /// Every figure, in the order they are shown.
            pub const ALL: &[Metric] = &[$(Metric::$name,)*];

            /// Its name in data.
            pub fn key(self) -> &'static str {
                match self { $(Metric::$name => $key,)* }
            }

            /// How it adds up.
            pub fn fold(self) -> Aggregation {
                match self { $(Metric::$name => Aggregation::$fold,)* }
            }

            /// What it says, in a few words.
            pub fn describe(self) -> &'static str {
                match self { $(Metric::$name => concat!($($doc),*).trim_ascii(),)* }
            }
        }
    };
}

/// How a figure adds up over time and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// A count: those of processes that have ended still count.
    Sum,
    /// A level: it ends with its process.
    Now,
    /// A highest level: the highest of any process.
    Max,
}

figures! {
    /// Page faults taken on stretches, of every kind.
    Faults = "faults" Sum,
    /// Faults answered with a page of zeros.
    ZeroFilled = "zero_filled" Sum,
    /// Faults answered from the standby list.
    FromStandby = "from_standby" Sum,
    /// Faults answered from compressed RAM.
    FromRam = "from_ram" Sum,
    /// Faults answered from disk.
    FromDisk = "from_disk" Sum,
    /// Faults answered from what had been read ahead of them.
    FromAhead = "from_ahead" Sum,
    /// Pages brought in with the page of a fault, because its stream wants them next.
    Prefetched = "prefetched" Sum,
    /// Pages read from the store before anyone asked.
    ReadAhead = "read_ahead" Sum,
    /// Of those, pages that were dropped unused.
    ReadAheadUnused = "read_ahead_unused" Sum,
    /// Faults answered with a huge frame: 512 pages at once.
    Huge = "huge" Sum,
    /// Faults that found the page there already.
    Spurious = "spurious" Sum,
    /// Faults that had to wait for a frame.
    Starved = "starved" Sum,
    /// Pages taken out of the program's reach.
    Staged = "staged" Sum,
    /// Of these, dropped: the stored copy was the same.
    DroppedClean = "dropped_clean" Sum,
    /// Of these, dropped: nothing but zeros.
    DroppedZero = "dropped_zero" Sum,
    /// Of these, written to the store.
    Written = "written" Sum,
    /// Pages kept because direct I/O had them pinned.
    Pinned = "pinned" Sum,
    /// Pages the store refused; they stay in memory.
    WriteFailures = "write_failures" Sum,
    /// Pages that could not be read back; the program was told.
    Lost = "lost" Sum,
    /// Protection faults dispatched.
    ProtectionFaults = "protection_faults" Sum,
    /// Faults on addresses of no stretch.
    UnallocatedFaults = "unallocated_faults" Sum,
    /// Frames given back when asked.
    Relinquished = "relinquished" Sum,
    /// Faults that slept because their thread, or all, were past their limit.
    ThrottledFaults = "throttled_faults" Sum,
    /// Microseconds that they slept.
    ThrottledUs = "throttled_us" Sum,
    /// Pages left out of windows and huge frames, because the limit had no room for them.
    Cut = "cut" Sum,
    /// The most faults of one thread in one period, where that is limited.
    MostTaskFaults = "most_task_faults" Max,
    /// The most faults of all threads in one period, where that is limited.
    MostTreeFaults = "most_tree_faults" Max,
    /// How often the swapper was called: more faults in a period than the system's limit.
    SwapperCalls = "swapper_calls" Sum,
    /// Bytes of stretches.
    StretchBytes = "stretch_bytes" Now,
    /// Pages of stretches resident.
    ResidentPages = "resident_pages" Now,
    /// The most pages of stretches one process had resident.
    PeakResidentPages = "peak_resident_pages" Max,
    // What the system domain counts, beside what the process's domain does.
    /// Processes that came in by a fork.
    Forks = "forks" Sum @ 64,
}

const _: () = assert!(LIMITS + rate::shared_limits::WORDS * 8 <= HEADER);
const _: () = assert!((Metric::Forks as usize) < ROOM);

/// The board, mapped.
pub struct StatsPage {
    region: WiredMemory,
    slots: SlotIndex,
}

impl StatsPage {
    /// A board of `slots` blocks, and the descriptor others map it by.
    pub fn create(slots: SlotIndex) -> io::Result<(Self, OwnedFd)> {
        let (region, fd) = WiredMemory::shared(bytes(slots), "selfpage-board")?;
        Ok((Self { region, slots }, fd))
    }

    /// The board behind a descriptor.
    pub fn attach(fd: impl AsFd, slots: SlotIndex) -> io::Result<Self> {
        Ok(Self {
            region: WiredMemory::attach(fd, bytes(slots))?,
            slots,
        })
    }

    /// Whether processes of the tree may do direct I/O: not 0 means that every pager
    /// must check that a page is not pinned before it discards it, from now on. Set
    /// before the system call that could bring direct I/O about is let through; a futex.
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

    /// The block of one process.
    ///
    /// # Panics
    /// For a slot the board does not have: slots come from the system domain.
    pub fn block(&self, slot: SlotIndex) -> ProcessStats<'_> {
        assert!(
            slot < self.slots,
            "slot {slot} of a board of {}",
            self.slots
        );
        let start = HEADER + usize::from(slot) * BLOCK;
        ProcessStats {
            words: self.region.slice(start, BLOCK / 8),
            futexes: self.region.slice(start, 2),
        }
    }
}

fn bytes(slots: SlotIndex) -> usize {
    HEADER + usize::from(slots) * BLOCK
}

/// One process's words on the board. It holds no state of its own: make it when needed.
#[derive(Clone, Copy)]
pub struct ProcessStats<'a> {
    words: &'a [AtomicU64],
    futexes: &'a [AtomicU32],
}

impl<'a> ProcessStats<'a> {
    /// What this process's pager has seen of [`StatsPage::careful`]: it stores the value
    /// there once no eviction that began without the check is under way.
    pub fn careful_seen(&self) -> &'a AtomicU32 {
        &self.futexes[0]
    }

    /// Not 0 once the child of a fork has what it inherits: its memory is registered, and
    /// what it does not inherit is gone. A futex, for its parent.
    pub fn inherited(&self) -> &'a AtomicU32 {
        &self.futexes[1]
    }

    /// Counts `n` more.
    pub fn add(&self, figure: Metric, n: u64) {
        self.word(figure).fetch_add(n, Ordering::Relaxed);
    }

    /// Says a level.
    pub fn set(&self, figure: Metric, value: u64) {
        self.word(figure).store(value, Ordering::Relaxed);
    }

    /// Raises a highest level.
    pub fn raise(&self, figure: Metric, value: u64) {
        self.word(figure).fetch_max(value, Ordering::Relaxed);
    }

    /// The figure now.
    pub fn get(&self, figure: Metric) -> u64 {
        self.word(figure).load(Ordering::Relaxed)
    }

    /// Its word, for code that keeps the reference.
    pub fn word(&self, figure: Metric) -> &'a AtomicU64 {
        &self.words[STATE + figure as usize]
    }

    /// The words a domain counts in, in the order of its counters.
    pub fn counters(&self) -> &'a [AtomicU64] {
        &self.words[STATE..STATE + Metric::Forks as usize]
    }

    /// Empties the block for its next process.
    pub fn clear(&self) {
        self.words
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_counts_another_reads() {
        let (ours, fd) = StatsPage::create(4).unwrap();
        let theirs = StatsPage::attach(&fd, 4).unwrap();
        theirs.block(3).add(Metric::Faults, 5);
        theirs.block(3).raise(Metric::PeakResidentPages, 7);
        theirs.block(3).raise(Metric::PeakResidentPages, 6);
        theirs.block(3).careful_seen().store(1, Ordering::Release);
        assert_eq!(ours.block(3).get(Metric::Faults), 5);
        assert_eq!(ours.block(3).get(Metric::PeakResidentPages), 7);
        assert_eq!(ours.block(3).careful_seen().load(Ordering::Acquire), 1);
        assert_eq!(ours.block(2).get(Metric::Faults), 0);
        ours.block(3).clear();
        assert_eq!(theirs.block(3).get(Metric::Faults), 0);
    }

    #[test]
    fn a_domain_and_the_board_call_the_same_word_the_same() {
        let domains: Vec<_> = selfpage::Counter::ALL
            .iter()
            .map(|counter| counter.name())
            .collect();
        let boards: Vec<_> = Metric::ALL
            .iter()
            .map(|f| f.key())
            .take(domains.len())
            .collect();
        assert_eq!(boards, domains);
    }

    #[test]
    fn every_figure_has_a_name_of_its_own_and_a_description() {
        let mut keys: Vec<_> = Metric::ALL.iter().map(|f| f.key()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), Metric::ALL.len());
        assert!(Metric::ALL.iter().all(|f| f.describe().ends_with('.')));
    }
}
