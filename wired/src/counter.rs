//! Statistics of paging, each a counter: the only list of them, from which the pager, `--stats` and the data are made.
//!
//! Each counter is a word of memory that outlives the process that counts (`selfpage::Counters`
//! over the stats page of `link`), so the figures of a killed process are not lost.
//!
//! Units: a key ends with `_us` (microseconds), `_bytes` or `_pages` if the figure is one of these;
//! any other figure counts events. The words keep their order for as long as one build runs: the
//! processes of a tree share the words and the build.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident = $key:literal $aggregation:ident $(@ $at:literal)?,)+) => {
        /// A figure of paging.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])+ $name $(= $at)?,)+ }

        impl Counter {
            /// Every counter, in the order in which they are shown.
            pub const ALL: &'static [Counter] = &[$(Counter::$name,)+];

            /// The counter's name in text and data.
            pub fn key(self) -> &'static str {
                match self { $(Counter::$name => $key,)+ }
            }

            /// How the counter adds up over the processes of a tree.
            pub fn aggregation(self) -> Aggregation {
                match self { $(Counter::$name => Aggregation::$aggregation,)+ }
            }

            /// What the counter counts, in a few words.
            pub fn description(self) -> &'static str {
                match self { $(Counter::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

/// How a figure adds up over time and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// A count: it includes processes that have ended.
    Sum,
    /// A level: it ends with its process.
    Now,
    /// A peak: the highest of any process.
    Max,
}

counters! {
    /// Page faults taken on stretches, of every kind.
    Faults = "faults" Sum,
    /// Faults answered with a page of zeros.
    ZeroFilled = "zero_filled" Sum,
    /// Faults answered from the standby list: staged pages that came back.
    StandbyHits = "standby_hits" Sum,
    /// Faults answered from compressed RAM.
    CompressedHits = "compressed_hits" Sum,
    /// Faults answered by a read from disk.
    DiskReads = "disk_reads" Sum,
    /// Microseconds that faults waited for the disk, readahead included.
    DiskWaitUs = "disk_wait_us" Sum,
    /// Faults answered from what readahead had read.
    ReadaheadHits = "readahead_hits" Sum,
    /// Pages brought in with the page of a fault, because its stream predicts them next.
    Prefetched = "prefetched_pages" Sum,
    /// Pages that readahead read from the store.
    ReadaheadPages = "readahead_pages" Sum,
    /// Of these, pages that were dropped unused.
    ReadaheadUnused = "readahead_unused_pages" Sum,
    /// Pages left out of windows and huge frames, because the limit had no room for them.
    ReadaheadTrimmed = "readahead_trimmed_pages" Sum,
    /// Faults answered with a huge frame: 512 pages at once.
    HugeFaults = "huge_faults" Sum,
    /// Faults whose page was resident already.
    Spurious = "spurious_faults" Sum,
    /// Microseconds that faults took, each from the pager's having it until its page is there, waits included.
    FaultTimeUs = "fault_time_us" Sum,
    /// Faults that found no free frame and waited for one.
    FrameWaits = "frame_waits" Sum,
    /// Microseconds that faults waited for a frame.
    FrameWaitUs = "frame_wait_us" Sum,
    /// Pages taken out of the program's reach onto the standby list.
    Staged = "staged_pages" Sum,
    /// Of these, pages dropped because their stored copy was the same.
    DroppedClean = "dropped_clean_pages" Sum,
    /// Of these, pages dropped because they held only zeros.
    DroppedZero = "dropped_zero_pages" Sum,
    /// Of these, pages written to the store.
    Written = "written_pages" Sum,
    /// Evictions skipped because direct I/O had the page pinned.
    DmaPinnedSkips = "dma_pinned_skips" Sum,
    /// Pages that the store refused when they were written; they stay in memory.
    WriteFailures = "write_failures" Sum,
    /// Accesses that failed, since their page could not be read back or placed.
    UnreadablePages = "unreadable_pages" Sum,
    /// Protection faults dispatched.
    ProtectionFaults = "protection_faults" Sum,
    /// Faults on addresses of no stretch, or not allocated.
    UnallocatedFaults = "unallocated_faults" Sum,
    /// Frames released when the contract asked for them.
    FramesReleased = "released_pages" Sum,
    /// Faults that slept because their thread, or all threads, were past their limit.
    ThrottledFaults = "throttled_faults" Sum,
    /// Microseconds that faults slept because of a limit.
    ThrottledUs = "throttled_us" Sum,
    /// The most faults of one thread in one period, where that is limited.
    PeakTaskFaults = "peak_task_faults" Max,
    /// The most faults of all threads in one period, where that is limited.
    PeakTreeFaults = "peak_tree_faults" Max,
    /// How often the swapper was called: more faults in a period than the system's limit.
    SwapperCalls = "swapper_calls" Sum,
    /// Bytes of stretches now.
    StretchBytes = "stretch_bytes" Now,
    /// Frames held now: mapped, standby and nailed.
    ResidentPages = "resident_pages" Now,
    /// The most frames that one process held.
    PeakResidentPages = "peak_resident_pages" Max,
    /// Processes that came in by a fork. The supervisor counts these and the next; all others a domain counts.
    Forks = "forks" Sum @ 64,
    /// Pages of shared memory that was mapped and could not be paged.
    UnpagedSharedPages = "unpaged_shared_pages" Sum @ 65,
}

impl Counter {
    /// Words that a domain counts in: one for each counter before [`Counter::Forks`], with room for
    /// more.
    pub const DOMAIN_WORDS: usize = Counter::Forks as usize;

    /// Words for all counters.
    pub const WORDS: usize = Counter::UnpagedSharedPages as usize + 1;

    /// The counters of a domain.
    pub fn of_domain() -> impl Iterator<Item = Counter> {
        let all = Counter::ALL.iter().copied();
        all.filter(|counter| (*counter as usize) < Counter::DOMAIN_WORDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_a_key_of_its_own_and_a_description() {
        let mut keys: Vec<_> = Counter::ALL.iter().map(|counter| counter.key()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), Counter::ALL.len());
        assert!(
            Counter::ALL
                .iter()
                .all(|counter| counter.description().ends_with('.'))
        );
    }

    #[test]
    fn a_domains_counters_lie_before_the_supervisors() {
        assert_eq!(Counter::of_domain().count(), Counter::ALL.len() - 2);
    }
}
