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

/// Targets by lines of a table: in words, our arm / theirs, the work and its number of threads, per
/// page of which kind, and how far.
macro_rules! targets {
    ($($name:literal: $ours:ident / $theirs:ident, $pass:ident x $threads:literal,
       per $per:ident, $bound:ident $times:literal;)*) => {
        [$(Target {
            name: $name,
            ours: Arm::$ours,
            theirs: Arm::$theirs,
            pass: Pass::$pass,
            threads: $threads,
            per: Per::$per,
            bound: Bound::$bound($times),
        }),*]
    };
}

impl Target {
    /// All.
    pub const ALL: [Self; 13] = targets! {
        "compressed RAM, random read, 1 thread, linked":
            LinkedRam / SwapZram, RandomRead x 1, per Page, AtMost 0.5;
        "compressed RAM, random read-modify-write, 1 thread, linked":
            LinkedRam / SwapZram, RandomRmw x 1, per Page, AtMost 0.7;
        "compressed RAM, random read, 2 threads, linked":
            LinkedRam / SwapZram, RandomRead x 2, per Page, AtLeast 2.0;
        "compressed RAM, random read, 1 thread, run":
            RunRam / SwapZram, RandomRead x 1, per Page, AtMost 0.85;
        "compressed RAM, random read, 2 threads, run":
            RunRam / SwapZram, RandomRead x 2, per Page, AtLeast 1.2;
        "disk, sequential read, linked":
            LinkedDisk / SwapFile, SequentialRead x 1, per Page, AtLeast 3.0;
        "disk, sequential read, run":
            RunDisk / SwapFile, SequentialRead x 1, per Page, AtLeast 3.0;
        "disk, sequential read, linked":
            LinkedDisk / Device, SequentialRead x 1, per FetchedPage, AtLeast 0.75;
        "disk, random read, 1 thread, linked":
            LinkedDisk / Device, RandomRead x 1, per FetchedPage, AtMost 1.15;
        "disk, random read, 16 threads, linked":
            LinkedDisk / Device, RandomRead x 16, per FetchedPage, AtLeast 0.85;
        "disk, fill, linked": LinkedDisk / SwapFile, Fill x 1, per Page, AtLeast 1.0;
        "disk, fill, run": RunDisk / SwapFile, Fill x 1, per Page, AtLeast 1.0;
        "2 MiB frames, sequential read-modify-write":
            LinkedHuge / LinkedRam, SequentialRmw x 1, per Page, AtLeast 1.3;
    };

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
