//! How much load makes stock Linux miss some of the deadlines, not all and not none:
//! bisection over the load. Pure functions: from the misses of a load to the next load.
//!
//! Misses rise with the load, but for noise. The load is frozen once it is found, so that
//! all arms have the same.

use super::load::processors;
use crate::statistics::median;
use std::ops::RangeInclusive;

/// Percent of deadlines that stock Linux is to miss; narrower than what is promised of it,
/// 10 to 40, since another run differs.
pub const WANTED: RangeInclusive<f64> = 15.0..=35.0;

/// Loads that are tried: the last are two hundredths of the range apart.
const TRIES: usize = 7;

/// Rounds that confirm a load: one round may be luck.
const TIMES: usize = 3;

/// The highest load that is tried, in parts of all processors: no player runs beyond it.
const MAX_LOAD: f64 = 1.25;

/// That load on this machine, in processors.
pub fn most_load() -> f64 {
    processors() as f64 * MAX_LOAD
}

/// The search.
#[derive(Clone, Debug)]
pub struct Search {
    low: f64,
    high: f64,
    tried: Vec<Attempt>,
}

/// A load and what it did.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// In processors.
    pub load: f64,
    /// Percent of deadlines, each time.
    samples: Vec<f64>,
}

impl Attempt {
    /// Percent of deadlines: the median.
    pub fn missed(&self) -> f64 {
        median(&self.samples).unwrap_or(0.0)
    }

    /// The number of its rounds.
    pub fn times(&self) -> usize {
        self.samples.len()
    }

    /// Returns true if its median is in range.
    fn fits(&self) -> bool {
        WANTED.contains(&self.missed())
    }

    /// Returns true if it needs more rounds before it is judged.
    fn is_open(&self) -> bool {
        match self.times() {
            1 => self.fits(),
            times => times < TIMES,
        }
    }
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

    /// The next load to try; none once a load is found or the tries are used up.
    pub fn next(&self) -> Option<f64> {
        match self.tried.last() {
            Some(last) if last.is_open() => Some(last.load),
            Some(last) if last.fits() || self.tried.len() == TRIES => None,
            _ => Some((self.low + self.high) / 2.0),
        }
    }

    /// Records the misses of the load, in percent of deadlines.
    pub fn record(&mut self, load: f64, missed: f64) {
        match self.tried.last_mut().filter(|last| last.is_open()) {
            Some(last) => last.samples.push(missed),
            None => self.tried.push(Attempt {
                load,
                samples: vec![missed],
            }),
        }
        let Some(last) = self.tried.last().filter(|last| !last.is_open()) else {
            return;
        };
        if last.missed() < *WANTED.start() {
            self.low = last.load;
        } else if last.missed() > *WANTED.end() {
            self.high = last.load;
        }
    }

    /// The best that was tried: nearest to the middle of what is wanted.
    pub fn best(&self) -> Option<&Attempt> {
        let middle = (WANTED.start() + WANTED.end()) / 2.0;
        let off = |tried: &Attempt| (tried.missed() - middle).abs();
        // Of equals the last: where none misses any, the most that was tried.
        let all = self.tried.iter().rev();
        all.min_by(|a, b| off(a).total_cmp(&off(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn searched(most: f64, machine: impl Fn(f64) -> f64) -> Search {
        let mut search = Search::up_to(most);
        while let Some(load) = search.next() {
            search.record(load, machine(load));
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
        assert_eq!(search.best().unwrap().missed(), 2.0);
    }

    #[test]
    fn one_lucky_round_is_not_believed() {
        let mut search = Search::up_to(4.0);
        search.record(2.0, 20.0);
        assert_eq!(search.next(), Some(2.0));
        search.record(2.0, 0.0);
        search.record(2.0, 1.0);
        assert_eq!(search.next(), Some(3.0));
        assert_eq!(search.best().unwrap().missed(), 1.0);
    }

    proptest! {
        #[test]
        fn a_load_in_between_is_found_where_misses_rise_steadily(from in 0.0f64..3.0, steep in 10.0f64..200.0) {
            let misses = |load: f64| ((load - from) * steep).clamp(0.0, 100.0);
            let search = searched(4.0, misses);
            let best = search.best().unwrap();
            // The most that is tried: halves of what is left, up to there.
            let most = 4.0 - 4.0 / f64::from(1 << TRIES);
            prop_assert!(best.fits() && best.times() == TIMES || misses(most) < *WANTED.start(), "{best:?}");
        }

        #[test]
        fn what_is_tried_stays_between_what_was_too_little_and_too_much(answers in prop::collection::vec(0.0f64..100.0, TRIES * TIMES)) {
            let mut search = Search::up_to(2.0);
            for missed in answers {
                let Some(load) = search.next() else { break };
                for before in search.tried.iter().filter(|before| before.load != load) {
                    prop_assert!(before.missed() > *WANTED.end() || load > before.load);
                    prop_assert!(before.missed() < *WANTED.start() || load < before.load);
                }
                search.record(load, missed);
            }
            prop_assert_eq!(search.next(), None);
            prop_assert!(search.tried.len() <= TRIES);
            prop_assert!(search.tried.iter().all(|tried| tried.times() <= TIMES));
        }
    }
}
