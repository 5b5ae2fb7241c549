//! From runs to tables, judged rows and data.

use super::arm::MemoryArm;
use super::fraction::Fraction;
use super::program::KnownProgram;
use super::trial::{Allotment, TrialFigures};
use crate::error::{in_words, is_unavailable};
use crate::prelude::*;
use crate::repeats::Repeats;
use crate::statistics::of_median;
use crate::table::digits;
use serde_json::{Value, json};

/// The most that a program that fits in its frames may take of its own time.
const FITS: Bound = Bound::AtMost(1.02);

/// All runs of a program in so much memory.
pub struct Part {
    /// Which program.
    pub program: KnownProgram,
    /// How much of what it takes.
    pub fraction: Fraction,
    /// In bytes.
    pub memory: Allotment,
    /// The runs of each arm.
    pub series: Vec<Repeats<MemoryArm, TrialFigures>>,
}

/// Why an arm has no figure, or fewer than it was to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All runs ended well.
    Finished,
    /// The kernel killed a run.
    Killed,
    /// The benchmark ended a run that took too long.
    Late,
    /// This machine has not what it needs.
    Unavailable,
    /// Anything else: an error, or another output.
    Failed,
}

/// How an arm ended.
pub fn outcome(series: &Repeats<MemoryArm, TrialFigures>) -> Outcome {
    let Some(why) = &series.failure else {
        return Outcome::Finished;
    };
    match why.downcast_ref() {
        Some(ExperimentError::Killed) => Outcome::Killed,
        Some(ExperimentError::Late(_)) => Outcome::Late,
        _ if is_unavailable(why) => Outcome::Unavailable,
        _ => Outcome::Failed,
    }
}

/// Seconds of each run.
fn seconds(series: &Repeats<MemoryArm, TrialFigures>) -> Vec<f64> {
    series.each(|run| run.done.elapsed.as_secs_f64())
}

/// The largest peak, in MiB.
pub fn peak_mib(series: &Repeats<MemoryArm, TrialFigures>) -> Option<f64> {
    let peaks = series.each(|run| run.peak() as f64 / f64::from(1 << 20));
    peaks.into_iter().reduce(f64::max)
}

impl Part {
    fn name(&self) -> String {
        let [limit, bytes] = [self.memory.limit, self.memory.bytes].map(|bytes| bytes >> 20);
        let (program, fraction) = (self.program.name(), self.fraction.name());
        format!("{program}, {fraction}: {limit} of {bytes} MiB")
    }

    fn of(&self, arm: MemoryArm) -> Option<&Repeats<MemoryArm, TrialFigures>> {
        let mut all = self.series.iter();
        all.find(|one| one.arm == arm && !one.runs.is_empty())
    }

    /// An arm's median in seconds.
    pub fn median(&self, arm: MemoryArm) -> Option<f64> {
        median(&seconds(self.of(arm)?))
    }

    /// An arm's median over that of the program alone.
    pub fn of_alone(&self, arm: MemoryArm) -> Option<f64> {
        Some(self.median(arm)? / self.median(MemoryArm::Alone)?)
    }

    /// Each arm's time and peak.
    pub fn table(&self) -> Table {
        let heads = ["s", "of alone", "processor s", "peak MiB"];
        let mut table = Table::new(&self.name(), heads);
        for one in &self.series {
            let shown = |value: Option<f64>| value.map_or("-".into(), digits);
            let processor = one.each(|run| run.done.processor.as_secs_f64());
            let cells = [
                shown(self.median(one.arm)),
                shown(self.of_alone(one.arm)),
                shown(median(&processor)),
                peak_mib(one).map_or("-".into(), |peak| format!("{peak:.0}")),
            ];
            table.row(one.arm.name(), cells, &remark(one));
        }
        table
    }

    /// Ours over the kernel's on the same medium, and what failed.
    pub fn rows(&self) -> Vec<Row> {
        let ours = self.series.iter().filter(|one| one.arm.is_ours());
        let judged = ours.filter_map(|one| {
            let (rival, bound) = self.rival(one.arm)?;
            let (ours, theirs) = (seconds(self.of(one.arm)?), seconds(self.of(rival)?));
            let what = format!("{}: {}", self.name(), one.arm.name());
            Some(
                Row::new(what, "s", bound)
                    .beside(rival.name())
                    .pairs(ours, theirs),
            )
        });
        let failed = self
            .series
            .iter()
            .filter(|one| outcome(one) == Outcome::Failed);
        let failed = failed.filter_map(|one| {
            let why = anyhow!(in_words(one.failure.as_ref()?));
            Some(Row::lacking(
                format!("{}: {}", self.name(), one.arm.name()),
                why,
            ))
        });
        judged.chain(failed).collect()
    }

    /// What an arm of ours is judged by, and how.
    fn rival(&self, arm: MemoryArm) -> Option<(MemoryArm, Bound)> {
        let rival = arm.rival()?;
        Some(match self.fraction {
            Fraction::Fits if self.of(MemoryArm::AloneMimalloc).is_some() => {
                (MemoryArm::AloneMimalloc, FITS)
            }
            // Its allocator is another, which is part of the difference.
            Fraction::Fits => (MemoryArm::Alone, Bound::Open),
            _ => (rival, Bound::AtMost(1.0)),
        })
    }

    /// As data.
    pub fn json(&self) -> Value {
        let arms = self.series.iter().map(|one| {
            json!({
                "arm": one.arm,
                "seconds": of_median(&seconds(one)),
                "of_alone": self.of_alone(one.arm),
                "peak_mib": peak_mib(one),
                "runs": one.runs,
                "failure": one.failure.as_ref().map(in_words),
            })
        });
        json!({
            "program": self.program,
            "memory": self.fraction,
            "takes_bytes": self.memory.bytes,
            "limit_bytes": self.memory.limit,
            "arms": arms.collect::<Vec<_>>(),
        })
    }
}

/// How an arm ended, and after how many runs.
fn remark(series: &Repeats<MemoryArm, TrialFigures>) -> String {
    let Some(why) = &series.failure else {
        return String::new();
    };
    let after = match series.runs.len() {
        0 => String::new(),
        runs => format!(" in run {}", runs + 1),
    };
    match outcome(series) {
        Outcome::Unavailable => format!("cannot: {why:#}"),
        Outcome::Failed => format!("FAILED{after}: {why:#}"),
        _ => format!("{why:#}{after}"),
    }
}

/// Seconds of every program in every arm, in so much memory.
pub fn summary(fraction: Fraction, parts: &[Part]) -> Table {
    let of = || parts.iter().filter(|part| part.fraction == fraction);
    let first = of().next();
    let arms: Vec<MemoryArm> = first.map_or(Vec::new(), |part| {
        part.series.iter().map(|one| one.arm).collect()
    });
    let title = format!("seconds in {}", fraction.about());
    let mut table = Table::new(&title, arms.iter().map(MemoryArm::name));
    for part in of() {
        let cell =
            |one: &Repeats<MemoryArm, TrialFigures>| match (outcome(one), part.median(one.arm)) {
                (Outcome::Finished, Some(median)) => digits(median),
                (Outcome::Finished | Outcome::Unavailable, _) => "-".into(),
                (Outcome::Killed, _) => "killed".into(),
                (Outcome::Late, _) => "too long".into(),
                (Outcome::Failed, _) => "FAILED".into(),
            };
        table.row(part.program.name(), part.series.iter().map(cell), "");
    }
    table
}

#[cfg(test)]
pub mod tests {
    use super::super::child::Done;
    use super::*;

    /// Runs of so many seconds each.
    pub fn series(
        arm: MemoryArm,
        times: &[u64],
        failure: Option<Error>,
    ) -> Repeats<MemoryArm, TrialFigures> {
        let run = |seconds: &u64| TrialFigures {
            done: Done {
                elapsed: Duration::from_secs(*seconds),
                processor: Duration::from_secs(*seconds),
                digest: 1,
            },
            cgroup_bytes: 32 << 20,
            zram_bytes: 8 << 20,
        };
        Repeats {
            arm,
            runs: times.iter().map(run).collect(),
            failure,
        }
    }

    /// A program in a quarter of 256 MiB.
    pub fn part(series: Vec<Repeats<MemoryArm, TrialFigures>>) -> Part {
        Part {
            program: KnownProgram::Sort,
            fraction: Fraction::Quarter,
            memory: Allotment {
                bytes: 256 << 20,
                limit: 64 << 20,
            },
            series,
        }
    }

    fn of_all() -> Part {
        part(vec![
            series(MemoryArm::Alone, &[2, 2, 2], None),
            series(MemoryArm::Zram, &[6, 5, 6], None),
            series(MemoryArm::Swap, &[9], Some(ExperimentError::Killed.into())),
            series(MemoryArm::OursRam, &[4, 4, 3], None),
            series(
                MemoryArm::OursDisk,
                &[],
                Some(anyhow!("its output differs")),
            ),
            series(MemoryArm::OursContract, &[], Some(unavailable("no root"))),
        ])
    }

    #[test]
    fn a_table_has_times_peaks_and_what_happened_instead() {
        let text = of_all().table().to_string();
        assert!(text.contains("sort, quarter: 64 of 256 MiB"), "{text}");
        let line = |name| {
            text.lines()
                .find(|line| line.starts_with(name))
                .expect("a row")
        };
        let words: Vec<&str> = line("zram").split_whitespace().collect();
        assert_eq!(words, ["zram", "6.00", "3.00", "6.00", "40"]);
        assert!(
            line("swap").ends_with("killed by the kernel in run 2"),
            "{text}"
        );
        assert!(
            line("ours-disk").contains("FAILED: its output differs"),
            "{text}"
        );
        assert!(line("ours-contract").contains("cannot: no root"), "{text}");
    }

    #[test]
    fn ours_is_judged_by_the_kernels_of_the_same_medium_and_a_failure_is_a_row() {
        let rows = of_all().rows();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].beside.as_deref(), Some("zram"));
        assert_eq!(rows[0].verdict(), "met");
        assert!(rows[1].failure.is_some() && rows[1].what.ends_with("ours-disk"));
    }

    #[test]
    fn a_program_that_fits_is_judged_by_itself_with_the_same_allocator() {
        let mut part = part(vec![
            series(MemoryArm::Alone, &[3], None),
            series(MemoryArm::AloneMimalloc, &[2], None),
            series(MemoryArm::OursRam, &[2], None),
        ]);
        part.fraction = Fraction::Fits;
        let rows = part.rows();
        assert_eq!(rows[0].beside.as_deref(), Some("alone-mimalloc"));
        assert_eq!((rows.len(), rows[0].verdict()), (1, "met"));
        part.series.remove(1);
        assert_eq!(part.rows()[0].verdict(), "");
    }

    #[test]
    fn a_summary_has_a_row_for_each_program_and_names_what_has_no_time() {
        let text = summary(Fraction::Quarter, &[of_all()]).to_string();
        let last = text.lines().last().expect("a row");
        let words: Vec<&str> = last.split_whitespace().collect();
        assert_eq!(
            words,
            ["sort", "2.00", "6.00", "killed", "4.00", "FAILED", "-"]
        );
        assert_eq!(
            summary(Fraction::Half, &[of_all()])
                .to_string()
                .lines()
                .count(),
            1
        );
    }
}
