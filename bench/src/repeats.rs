//! Repeats of an experiment's arms: interleaved, so that what else the machine does is in all of
//! them, and rotated, so that none always follows the same one.

use crate::prelude::*;

/// An arm's runs.
pub struct Repeats<A, R> {
    /// Which arm.
    pub arm: A,
    /// Its runs, in order.
    pub runs: Vec<R>,
    /// The failure that ended them.
    pub failure: Option<Error>,
}

impl<A: Copy, R> Repeats<A, R> {
    /// Of arms that have not run.
    pub fn of(arms: &[A]) -> Vec<Self> {
        let empty = |arm: &A| Self {
            arm: *arm,
            runs: Vec::new(),
            failure: None,
        };
        arms.iter().map(empty).collect()
    }

    /// What each run has of something.
    pub fn each(&self, value: impl Fn(&R) -> f64) -> Vec<f64> {
        self.runs.iter().map(value).collect()
    }
}

/// Runs each arm once that has not failed; `run` is told whether it is the arm's first time.
pub fn run_each<A: Copy, R>(
    all: &mut [Repeats<A, R>],
    repeat: u64,
    mut run: impl FnMut(A, bool) -> Result<R>,
) {
    let count = all.len();
    for k in 0..count {
        let one = &mut all[(k + repeat as usize) % count];
        if one.failure.is_some() {
            continue;
        }
        match run(one.arm, one.runs.is_empty()) {
            Ok(done) => one.runs.push(done),
            Err(why) => one.failure = Some(why),
        }
    }
}
