//! What paging has to reach: each target is a ratio of two arms' medians on the same work
//! in the same run. Data; nothing here measures.

use crate::access::Figure;
use crate::arm::Arm;
use crate::pass::Pass;
use crate::statistics::Estimate;
use serde_json::{Value, json};

/// What a time is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Pages accessed.
    Page,
    /// Pages that came from a device ([`Figure::ns_per_fetched_page`]).
    FetchedPage,
}

impl Per {
    /// Nanoseconds.
    pub fn of(self, figure: &Figure) -> f64 {
        match self {
            Self::Page => figure.ns_per_page(),
            Self::FetchedPage => figure.ns_per_fetched_page(),
        }
    }
}

/// What a ratio must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Our time is at most this part of theirs.
    TimeAtMost(f64),
    /// Our throughput is at least this many times theirs.
    ThroughputAtLeast(f64),
}

impl Bound {
    /// The ratio that is bounded, of our time over theirs.
    pub fn ratio(self, times: Estimate) -> Estimate {
        match self {
            Self::TimeAtMost(_) => times,
            Self::ThroughputAtLeast(_) => times.inverted(1.0),
        }
    }

    /// Returns true if a ratio keeps it.
    pub fn met(self, ratio: f64) -> bool {
        match self {
            Self::TimeAtMost(most) => ratio <= most,
            Self::ThroughputAtLeast(least) => ratio >= least,
        }
    }
}

/// One thing to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// In words.
    pub name: &'static str,
    /// Which of ours.
    pub ours: Arm,
    /// Against which.
    pub theirs: Arm,
    /// On which work.
    pub pass: Pass,
    /// With how many threads.
    pub threads: u64,
    /// By what measure.
    pub per: Per,
    /// How far.
    pub bound: Bound,
}

impl Target {
    /// All.
    pub const ALL: [Self; 13] = [
        Self::ram("compressed RAM, random read, 1 thread, linked").at_most(0.5),
        Self::ram("compressed RAM, random read-modify-write, 1 thread, linked")
            .on(Pass::RandomRmw)
            .at_most(0.7),
        Self::ram("compressed RAM, random read, 2 threads, linked")
            .threads(2)
            .at_least(2.0),
        Self::ram("compressed RAM, random read, 1 thread, run")
            .of(Arm::RunRam)
            .at_most(0.85),
        Self::ram("compressed RAM, random read, 2 threads, run")
            .of(Arm::RunRam)
            .threads(2)
            .at_least(1.2),
        Self::disk("disk, sequential read, linked")
            .on(Pass::SequentialRead)
            .at_least(3.0),
        Self::disk("disk, sequential read, run")
            .of(Arm::RunDisk)
            .on(Pass::SequentialRead)
            .at_least(3.0),
        Self::device("disk, sequential read, linked")
            .on(Pass::SequentialRead)
            .at_least(0.75),
        Self::device("disk, random read, 1 thread, linked").at_most(1.15),
        Self::device("disk, random read, 16 threads, linked")
            .threads(16)
            .at_least(0.85),
        Self::disk("disk, fill, linked")
            .on(Pass::Fill)
            .at_least(1.0),
        Self::disk("disk, fill, run")
            .of(Arm::RunDisk)
            .on(Pass::Fill)
            .at_least(1.0),
        Self::new(
            "2 MiB frames, sequential read-modify-write",
            Arm::LinkedHuge,
            Arm::LinkedRam,
            Per::Page,
        )
        .on(Pass::SequentialRmw)
        .at_least(1.3),
    ];

    const fn new(name: &'static str, ours: Arm, theirs: Arm, per: Per) -> Self {
        Self {
            name,
            ours,
            theirs,
            pass: Pass::RandomRead,
            threads: 1,
            per,
            bound: Bound::TimeAtMost(1.0),
        }
    }

    const fn ram(name: &'static str) -> Self {
        Self::new(name, Arm::LinkedRam, Arm::SwapZram, Per::Page)
    }

    const fn disk(name: &'static str) -> Self {
        Self::new(name, Arm::LinkedDisk, Arm::SwapFile, Per::Page)
    }

    const fn device(name: &'static str) -> Self {
        Self::new(name, Arm::LinkedDisk, Arm::Device, Per::FetchedPage)
    }

    const fn of(mut self, ours: Arm) -> Self {
        self.ours = ours;
        self
    }

    const fn on(mut self, pass: Pass) -> Self {
        self.pass = pass;
        self
    }

    const fn threads(mut self, threads: u64) -> Self {
        self.threads = threads;
        self
    }

    const fn at_most(mut self, part: f64) -> Self {
        self.bound = Bound::TimeAtMost(part);
        self
    }

    const fn at_least(mut self, times: f64) -> Self {
        self.bound = Bound::ThroughputAtLeast(times);
        self
    }
}

/// The verdict on a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Which.
    pub target: Target,
    /// Its figures, or the reason that it has no figures.
    pub outcome: Result<Outcome, String>,
}

/// A target's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Our nanoseconds.
    pub ours: Estimate,
    /// Theirs.
    pub theirs: Estimate,
    /// The ratio that is bounded.
    pub ratio: Estimate,
    /// Whether the ratio of the medians keeps the bound.
    pub met: bool,
    /// Whether the whole interval lies on the same side of the bound.
    pub sure: bool,
}

impl Outcome {
    /// Judges medians in nanoseconds and the ratio of ours to theirs.
    pub fn new(bound: Bound, ours: Estimate, theirs: Estimate, times: Estimate) -> Self {
        let ratio = bound.ratio(times);
        let met = bound.met(ratio.median);
        Self {
            ours,
            theirs,
            ratio,
            met,
            sure: bound.met(ratio.low) == met && bound.met(ratio.high) == met,
        }
    }

    /// In words.
    pub fn word(&self) -> &'static str {
        match (self.met, self.sure) {
            (true, true) => "met",
            (true, false) => "met, but the interval says otherwise too",
            (false, true) => "NOT MET",
            (false, false) => "NOT MET, but the interval says otherwise too",
        }
    }
}

impl Verdict {
    /// As data.
    pub fn json(&self) -> Value {
        let target = &self.target;
        let (measure, must_be) = match target.bound {
            Bound::TimeAtMost(most) => ("time", json!({ "at_most": most })),
            Bound::ThroughputAtLeast(least) => ("throughput", json!({ "at_least": least })),
        };
        let per = match target.per {
            Per::Page => "page accessed",
            Per::FetchedPage => "page from the device",
        };
        let mut value = json!({
            "target": target.name,
            "ours": target.ours.name(),
            "theirs": target.theirs.name(),
            "pass": target.pass,
            "threads": target.threads,
            "measure": measure,
            "per": per,
            "must_be": must_be,
        });
        let figures = match &self.outcome {
            Ok(outcome) => json!({
                "ours_ns": outcome.ours,
                "theirs_ns": outcome.theirs,
                "ratio": outcome.ratio,
                "met": outcome.met,
                "sure": outcome.sure,
            }),
            Err(why) => json!({ "cannot": why }),
        };
        if let (Value::Object(value), Value::Object(figures)) = (&mut value, figures) {
            value.extend(figures);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(low: f64, median: f64, high: f64) -> Estimate {
        Estimate { median, low, high }
    }

    #[test]
    fn a_target_is_ours_against_one_of_the_alternatives() {
        for target in Target::ALL {
            assert!(target.ours.ours(), "{target:?}");
            assert!(
                target.ours.rivals().contains(&target.theirs),
                "{}",
                target.name
            );
        }
    }

    #[test]
    fn throughput_is_judged_upside_down() {
        let ns = estimate(9.0, 10.0, 11.0);
        let twice = estimate(0.4, 0.5, 0.6);
        let fast = Outcome::new(Bound::ThroughputAtLeast(1.5), ns, ns, twice);
        assert!(fast.met && fast.sure);
        assert_eq!(fast.ratio.median, 2.0);
        let slow = Outcome::new(Bound::ThroughputAtLeast(3.0), ns, ns, twice);
        assert!(!slow.met && slow.sure);
        assert_eq!(slow.word(), "NOT MET");
    }

    #[test]
    fn an_interval_across_the_bound_is_not_sure() {
        let ns = estimate(9.0, 10.0, 11.0);
        let near = Outcome::new(Bound::TimeAtMost(0.5), ns, ns, estimate(0.45, 0.49, 0.51));
        assert!(near.met && !near.sure);
    }
}
