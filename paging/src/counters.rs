//! What a domain counts, in memory that outlives it.
//!
//! The words may lie in memory shared with a supervisor, so that the figures of a
//! process that was killed are not lost. One definition of each figure: everything that
//! prints one reads it here.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// One figure that a domain keeps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(non_camel_case_types)]
        pub enum Counter { $($(#[doc = $doc])+ $name,)+ }

        impl Counter {
            /// All figures, in the order of their words.
            pub const ALL: &'static [Counter] = &[$(Counter::$name,)+];

            /// The name under which the figure is printed.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$name => stringify!($name),)+ }
            }
        }
    };
}

counters! {
    /// Page faults taken on stretches, of every kind.
    faults,
    /// Faults answered with a page of zeros.
    zero_filled,
    /// Faults answered from the standby list: staged pages that came back.
    from_standby,
    /// Faults answered from the store at once: compressed RAM.
    from_ram,
    /// Faults answered from the store after input and output.
    from_disk,
    /// Faults answered from what had been read ahead of them.
    from_ahead,
    /// Pages brought in with the page of a fault, because its stream wants them next.
    prefetched,
    /// Pages read from the store before anyone asked.
    read_ahead,
    /// Of those, pages that were dropped unused.
    read_ahead_unused,
    /// Faults answered with a huge frame: 512 pages at once.
    huge,
    /// Faults that found the page there already.
    spurious,
    /// Faults that had to wait for a frame.
    starved,
    /// Pages taken out of the program's reach onto the standby list.
    staged,
    /// Staged pages dropped because their stored copy was the same.
    dropped_clean,
    /// Staged pages dropped because they held only zeros.
    dropped_zero,
    /// Staged pages written to the store.
    written,
    /// Pages that direct input and output kept from being evicted.
    pinned,
    /// Pages that the store refused when they were written; they stay in memory.
    write_failures,
    /// Pages that could not be read back or placed; the access failed.
    lost,
    /// Protection faults dispatched.
    protection_faults,
    /// Faults on addresses of no stretch, or not allocated.
    unallocated_faults,
    /// Frames given back when asked.
    relinquished,
    /// Faults that slept because their thread, or all, were past their limit.
    throttled_faults,
    /// Microseconds that they slept.
    throttled_us,
    /// Pages left out of windows and huge frames, because the limit had no room for them.
    cut,
    /// The most faults of one thread in one period.
    most_task_faults,
    /// The most faults of all threads in one period.
    most_tree_faults,
    /// How often the swapper was called: more faults in a period than the system's limit.
    swapper_calls,
    /// Bytes of the stretches now.
    stretch_bytes,
    /// Frames held now: mapped, standby and nailed.
    resident_pages,
    /// The most frames ever held.
    peak_resident_pages,
}

/// The figures' words.
#[derive(Clone, Copy)]
pub struct Counters(&'static [AtomicU64]);

impl Counters {
    /// Figures kept in `words`, at least as many as there are counters.
    pub fn new(words: &'static [AtomicU64]) -> Self {
        assert!(words.len() >= Counter::ALL.len(), "a word for each counter");
        Self(words)
    }

    /// Adds to a figure.
    pub(crate) fn add(&self, counter: Counter, by: u64) {
        self.0[counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Takes from a figure of what is there now.
    pub(crate) fn sub(&self, counter: Counter, by: u64) {
        self.0[counter as usize].fetch_sub(by, Ordering::Relaxed);
    }

    /// Sets a figure of what is there now.
    pub(crate) fn set(&self, counter: Counter, to: u64) {
        self.0[counter as usize].store(to, Ordering::Relaxed);
    }

    /// Raises a figure of the most that was.
    pub(crate) fn raise(&self, counter: Counter, to: u64) {
        self.0[counter as usize].fetch_max(to, Ordering::Relaxed);
    }

    /// Reads a figure.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let figures = Counter::ALL
            .iter()
            .map(|counter| (counter.name(), self.get(*counter)));
        f.debug_map().entries(figures).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_by_their_names() {
        let words: Vec<_> = Counter::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        let counters = Counters::new(Box::leak(words.into_boxed_slice()));
        counters.add(Counter::faults, 7);
        let shown = format!("{counters:?}");
        assert!(
            shown.starts_with("{\"faults\": 7, \"zero_filled\": 0,"),
            "{shown}"
        );
    }
}
