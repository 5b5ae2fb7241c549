//! What paging has to reach: each target is a ratio of two arms' medians on the same work
//! in the same run. Data; nothing here measures.

use super::arm::Arm;
use super::figure::Figure;
use super::pass::Pass;
use super::series::{AllSeries, Series};
use crate::prelude::*;

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
    fn of(self, figure: &Figure) -> f64 {
        match self {
            Self::Page => figure.ns_per_page(),
            Self::FetchedPage => figure.ns_per_fetched_page(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Page => "page accessed",
            Self::FetchedPage => "page from the device",
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
    /// How far: our time at most, or our throughput at least, so many times theirs.
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
            bound: Bound::AtMost(1.0),
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
        self.bound = Bound::AtMost(part);
        self
    }

    /// Our throughput is at least this many times theirs.
    const fn at_least(mut self, times: f64) -> Self {
        self.bound = Bound::AtLeast(times);
        self
    }

    /// Its figures; none where it does not concern the runs.
    pub fn row(&self, all: &AllSeries) -> Option<Row> {
        let ours = all.find(self.ours, self.threads)?;
        let theirs = all.find(self.theirs, self.threads)?;
        if !ours.passes.contains(&self.pass) {
            return None;
        }
        let us = |series: &Series| series.figures(self.pass, |f| self.per.of(f) / 1e3);
        let figures = us(ours).and_then(|ours| Ok((ours, us(theirs)?)));
        let is_rate = matches!(self.bound, Bound::AtLeast(_));
        let unit = if is_rate { "k/s" } else { "us" };
        let mut row = Row::new(self.name, unit, self.bound).beside(self.theirs.name());
        row.rate = is_rate.then_some(1e3);
        row.details.extend([
            ("ours".to_owned(), self.ours.name().into()),
            ("pass".to_owned(), self.pass.name().into()),
            ("threads".to_owned(), self.threads.into()),
            ("per".to_owned(), self.per.name().into()),
        ]);
        Some(match figures {
            Ok((ours, theirs)) => row.pairs(ours, theirs),
            Err(failure) => row.failure(Some(failure)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::made_up::series;
    use super::*;
    use crate::error::unavailable;

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
    fn a_target_has_a_verdict_once_both_its_arms_were_asked_for() {
        let mut all = AllSeries(vec![
            series(Arm::LinkedRam, &[10, 11, 12]),
            series(Arm::SwapZram, &[24, 23, 25]),
        ]);
        let rows = |all: &AllSeries| -> Vec<Row> {
            Target::ALL.iter().filter_map(|t| t.row(all)).collect()
        };
        let verdicts: Vec<_> = rows(&all).iter().map(Row::verdict).collect();
        assert_eq!(verdicts, ["met, in doubt", "met"]);
        all.0[1].failure = Some(unavailable("no zram"));
        let why = rows(&all)[0].failure.as_ref().map(ToString::to_string);
        assert_eq!(why.as_deref(), Some("swap-zram: no zram"));
    }
}
