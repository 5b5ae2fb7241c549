//! Free space, and the choice of a part of it.
//!
//! "Allocation of an extent (a contiguous range of blocks)" (Nemesis, section 6.7). Free space is
//! never stored: it is computed on demand from what the files leave. So it cannot disagree with
//! them, and released space has merged with its neighbours by itself.
//!
//! Rule: as few extents as possible, so that requests seldom straddle two. Space that follows the
//! file's last extent costs no extent; else the smallest run that is large enough, which keeps the
//! large ones whole; else the largest, whole, and again for the rest.

use super::UNIT;

/// Contiguous units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct UnitRun {
    pub first: u32,
    pub count: u32,
}

impl UnitRun {
    /// The unit after the last.
    pub fn end(self) -> u32 {
        self.first + self.count
    }
}

/// Units in `runs`.
pub(super) fn total(runs: &[UnitRun]) -> u32 {
    runs.iter().map(|run| run.count).sum()
}

/// Free runs, in order, none touching the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FreeSpace(Vec<UnitRun>);

impl FreeSpace {
    /// The runs that `taken` leaves of `units` units. `None` where two runs of `taken` overlap or
    /// one goes past the end: such a table is corrupt.
    pub fn beside(units: u32, taken: impl Iterator<Item = UnitRun>) -> Option<Self> {
        let mut taken: Vec<UnitRun> = taken.collect();
        taken.sort_unstable();
        let mut free = Vec::new();
        let mut at = 0;
        for run in taken {
            let end = run.first.checked_add(run.count)?;
            if run.count == 0 || run.first < at || end > units {
                return None;
            }
            push(&mut free, at, run.first);
            at = end;
        }
        push(&mut free, at, units);
        Some(Self(free))
    }

    /// Free bytes.
    pub fn free(&self) -> u64 {
        u64::from(total(&self.0)) * UNIT
    }

    /// Bytes of the largest run.
    pub fn largest(&self) -> u64 {
        u64::from(self.0.iter().map(|run| run.count).max().unwrap_or(0)) * UNIT
    }

    /// Adds `want` units to the end of `runs`. `None` if fewer are free.
    pub fn extend(&mut self, runs: &mut Vec<UnitRun>, want: u32) -> Option<()> {
        if total(&self.0) < want {
            return None;
        }
        let mut want = want;
        let near = runs.last().map(|last| last.end());
        if let Some(at) = self.0.iter().position(|run| Some(run.first) == near) {
            want -= self.take(at, want, runs);
        }
        while want > 0 {
            let fits = (0..self.0.len())
                .filter(|&at| self.0[at].count >= want)
                .min_by_key(|&at| self.0[at].count);
            let at = match fits {
                Some(at) => at,
                None => (0..self.0.len()).max_by_key(|&at| self.0[at].count)?,
            };
            want -= self.take(at, want, runs);
        }
        Some(())
    }

    /// Moves at most `want` units from the front of the free run `at` to the end of `runs`.
    fn take(&mut self, at: usize, want: u32, runs: &mut Vec<UnitRun>) -> u32 {
        let free = &mut self.0[at];
        let taken = UnitRun {
            first: free.first,
            count: free.count.min(want),
        };
        free.first += taken.count;
        free.count -= taken.count;
        if free.count == 0 {
            self.0.remove(at);
        }
        match runs.last_mut() {
            Some(last) if last.end() == taken.first => last.count += taken.count,
            _ => runs.push(taken),
        }
        taken.count
    }
}

fn push(free: &mut Vec<UnitRun>, first: u32, end: u32) {
    if end > first {
        free.push(UnitRun {
            first,
            count: end - first,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(first: u32, count: u32) -> UnitRun {
        UnitRun { first, count }
    }

    fn space(units: u32, taken: &[UnitRun]) -> FreeSpace {
        FreeSpace::beside(units, taken.iter().copied()).unwrap()
    }

    fn given(space: &mut FreeSpace, want: u32) -> Vec<UnitRun> {
        let mut runs = Vec::new();
        space.extend(&mut runs, want).unwrap();
        runs
    }

    #[test]
    fn the_smallest_run_that_fits_is_allocated() {
        let mut space = space(100, &[run(10, 5), run(20, 5), run(60, 5)]);
        assert_eq!(given(&mut space, 4), [run(15, 4)]);
        assert_eq!(given(&mut space, 30), [run(25, 30)]);
    }

    #[test]
    fn a_file_that_fits_nowhere_takes_the_largest_runs_first() {
        let mut space = space(100, &[run(10, 10), run(50, 40)]);
        assert_eq!(given(&mut space, 35), [run(20, 30), run(0, 5)]);
    }

    #[test]
    fn a_file_grows_in_place_where_it_can() {
        let mut space = space(100, &[run(0, 10), run(90, 10)]);
        let mut runs = vec![run(0, 10)];
        space.extend(&mut runs, 20).unwrap();
        assert_eq!(runs, [run(0, 30)]);
    }

    #[test]
    fn more_than_is_free_allocates_nothing() {
        let mut space = space(100, &[run(0, 60)]);
        let before = space.clone();
        assert_eq!(space.extend(&mut Vec::new(), 41), None);
        assert_eq!(space, before);
    }

    #[test]
    fn runs_that_overlap_or_pass_the_end_are_refused() {
        let of = |runs: &[UnitRun]| FreeSpace::beside(10, runs.iter().copied());
        assert_eq!(of(&[run(0, 5), run(4, 2)]), None);
        assert_eq!(of(&[run(8, 3)]), None);
        assert_eq!(of(&[run(u32::MAX, 2)]), None);
        assert_eq!(of(&[run(3, 0)]), None);
    }

    proptest! {
        /// Exhaustive: no fewer runs, largest first, could hold the file.
        #[test]
        fn no_file_has_more_extents_than_it_must(
            holes in prop::collection::vec((1u32..9, 1u32..4), 1..12),
            want in 1u32..40,
        ) {
            let mut taken = Vec::new();
            let mut at = 0;
            for &(free, used) in &holes {
                taken.push(run(at + free, used));
                at += free + used;
            }
            let mut space = space(at, &taken);
            let mut sizes: Vec<u32> = holes.iter().map(|&(free, _)| free).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let mut runs = Vec::new();
            let fits = space.extend(&mut runs, want).is_some();
            prop_assert_eq!(fits, sizes.iter().sum::<u32>() >= want);
            if fits {
                let mut left = want;
                let fewest = sizes.iter().take_while(|&&size| {
                    let more = left > 0;
                    left = left.saturating_sub(size);
                    more
                }).count();
                prop_assert_eq!(runs.len(), fewest);
                prop_assert_eq!(total(&runs), want);
            }
        }
    }
}
