//! How much load makes stock Linux miss some of the deadlines, not all and not none:
//! bisection over the load. Pure: it is told what a load did, and says what to try next.
//!
//! Misses rise with the load, but for noise. The load is frozen once it is found, so that
//! all arms have the same.

use std::ops::RangeInclusive;

/// Percent of deadlines that stock Linux is to miss; narrower than what is promised of it,
/// 10 to 40, since another run differs.
pub const WANTED: RangeInclusive<f64> = 15.0..=35.0;

/// Loads that are tried: the last are two hundredths of the range apart.
const TRIES: usize = 7;

/// The search.
#[derive(Clone, Debug)]
pub struct Search {
    low: f64,
    high: f64,
    tried: Vec<Tried>,
}

/// A load and what it did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// In processors.
    pub load: f64,
    /// Percent of deadlines.
    pub missed: f64,
}

impl Search {
    /// Between no load and the most.
    pub fn up_to(most: f64) -> Self {
        Self {
            low: 0.0,
            high: most,
            tried: Vec::new(),
        }
    }

    /// What to try; nothing once it is found, or was looked for long enough.
    pub fn next(&self) -> Option<f64> {
        let found = self
            .tried
            .last()
            .is_some_and(|t| WANTED.contains(&t.missed));
        (!found && self.tried.len() < TRIES).then_some((self.low + self.high) / 2.0)
    }

    /// What became of it.
    pub fn tell(&mut self, tried: Tried) {
        if tried.missed < *WANTED.start() {
            self.low = tried.load;
        } else if tried.missed > *WANTED.end() {
            self.high = tried.load;
        }
        self.tried.push(tried);
    }

    /// The best that was tried: nearest to the middle of what is wanted.
    pub fn best(&self) -> Option<Tried> {
        let middle = (WANTED.start() + WANTED.end()) / 2.0;
        let off = |tried: &Tried| (tried.missed - middle).abs();
        let best = |a: &&Tried, b: &&Tried| off(a).total_cmp(&off(b));
        self.tried.iter().min_by(best).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn searched(most: f64, machine: impl Fn(f64) -> f64) -> Search {
        let mut search = Search::up_to(most);
        while let Some(load) = search.next() {
            let missed = machine(load);
            search.tell(Tried { load, missed });
        }
        search
    }

    #[test]
    fn a_machine_that_never_misses_is_given_almost_all_there_is() {
        let search = searched(4.0, |_| 0.0);
        assert_eq!(search.tried.len(), TRIES);
        assert!(search.tried.last().unwrap().load > 3.9);
    }

    #[test]
    fn without_a_load_in_between_the_nearest_counts() {
        let search = searched(4.0, |load| if load < 1.0 { 2.0 } else { 50.0 });
        assert_eq!(search.best().unwrap().missed, 2.0);
    }

    proptest! {
        #[test]
        fn a_load_in_between_is_found_where_misses_rise_steadily(from in 0.0f64..3.0, steep in 10.0f64..200.0) {
            let misses = |load: f64| ((load - from) * steep).clamp(0.0, 100.0);
            let best = searched(4.0, misses).best().unwrap();
            // The most that is tried: halves of what is left, up to there.
            let most = 4.0 - 4.0 / f64::from(1 << TRIES);
            prop_assert!(WANTED.contains(&best.missed) || misses(most) < *WANTED.start(), "{best:?}");
        }

        #[test]
        fn what_is_tried_stays_between_what_was_too_little_and_too_much(answers in prop::collection::vec(0.0f64..100.0, TRIES)) {
            let mut search = Search::up_to(2.0);
            for missed in answers {
                let Some(load) = search.next() else { break };
                for before in &search.tried {
                    prop_assert!(before.missed > *WANTED.end() || load > before.load);
                    prop_assert!(before.missed < *WANTED.start() || load < before.load);
                }
                search.tell(Tried { load, missed });
            }
            prop_assert!(search.tried.len() <= TRIES);
        }
    }
}
