//! Turns the rounds of all arms into rows, and the paper's tables 1 and 11.

use super::arm::Arm;
use super::deadline_misses::Quality;
use super::program::Neighbour;
use super::run::RunResult;
use super::sampler::UsageSample;
use crate::error::in_words;
use crate::prelude::*;
use crate::repeats::Repeats;
use serde_json::{Value, json};

/// Percent of deadlines that stock Linux misses where ours is judged.
pub const JUDGED: f64 = 10.0;

/// Percent that ours may miss there.
const MISSES: f64 = 1.0;

/// Of stock Linux's mean delay, the most that may be left.
const DELAY: f64 = 0.1;

/// Times as long as without limits that a neighbour's launch may take.
const LAUNCH: f64 = 2.0;

/// An arm's rounds.
pub type Series = Repeats<Arm, RunResult>;

impl Series {
    /// The round whose misses are the median: the one to be drawn.
    pub fn typical(&self) -> Option<&RunResult> {
        let mut all: Vec<&RunResult> = self.runs.iter().collect();
        all.sort_by_key(|round| round.quality.missed);
        all.get(all.len().checked_sub(1)? / 2).copied()
    }

    /// Seconds of each launch.
    fn launches(&self) -> Vec<f64> {
        self.runs.iter().filter_map(|round| round.launch).collect()
    }
}

/// One neighbour and read-ahead, with all arms.
pub struct Comparison {
    /// Its name.
    pub title: String,
    /// Which neighbour.
    pub neighbour: String,
    /// Frames held.
    pub ahead: u64,
    /// The load, in processors.
    pub load: f64,
    /// By arm.
    pub series: Vec<Series>,
}

impl Comparison {
    /// Without rounds yet.
    pub fn new(neighbour: &Neighbour, ahead: u64, load: f64, arms: &[Arm]) -> Self {
        let neighbour = neighbour.name.name();
        Self {
            title: format!("{neighbour}, read-ahead {ahead}"),
            neighbour,
            ahead,
            load,
            series: Repeats::of(arms),
        }
    }

    /// An arm's rounds, if it was run.
    pub fn of(&self, arm: Arm) -> Option<&Series> {
        self.series.iter().find(|series| series.arm == arm)
    }

    /// What stock Linux misses, in percent.
    fn stock(&self) -> Option<f64> {
        median(
            &self
                .of(Arm::Stock)?
                .each(|round| round.quality.missed_percent()),
        )
    }

    fn judged(&self) -> bool {
        self.stock().is_some_and(|missed| missed >= JUDGED)
    }

    /// The reason that no target applies, if none does.
    pub fn unjudged(&self) -> Option<String> {
        let missed = self.stock().filter(|missed| *missed < JUDGED)?;
        Some(format!(
            "{}: stock Linux missed {missed:.1} % of the deadlines: nothing is judged where it misses less than {JUDGED:.0} %",
            self.title
        ))
    }

    /// The targets, where they apply.
    fn promised(&self, bound: Bound) -> Bound {
        match self.judged() {
            true => bound,
            false => Bound::Open,
        }
    }

    /// Its rows. Failures are taken out of it.
    pub fn rows(&mut self) -> Vec<Row> {
        let (ours, limited, stock) = (Arm::Ours, Arm::OursLimited, Arm::Stock);
        let [misses, delay] = [MISSES, DELAY].map(|most| self.promised(Bound::AtMost(most)));
        let rows = [
            self.over("mean delay", "ms", [ours, stock], Bound::Open),
            self.over("mean delay", "ms", [limited, stock], delay),
            self.over("launch", "s", [limited, ours], Bound::AtMost(LAUNCH)),
            self.over("launch", "s", [limited, stock], Bound::Open),
        ];
        let title = &self.title;
        let own = self.series.iter_mut().map(|series| {
            let bound = if series.arm == limited {
                misses
            } else {
                Bound::Open
            };
            let what = format!("{title}: {}, frames missed", series.arm.name());
            let row = Row::new(what, "%", bound).samples(series.runs.iter().map(sample));
            row.failure(series.failure.take().map(|why| lacking(series.arm, why)))
        });
        own.chain(rows.into_iter().flatten()).collect()
    }

    /// One arm's figures over another's. Where the other's are nothing there is no ratio.
    fn over(&self, what: &str, unit: &'static str, arms: [Arm; 2], bound: Bound) -> Option<Row> {
        let figures = |arm| {
            let series = self.of(arm)?;
            Some(match what {
                "launch" => series.launches(),
                _ => series.each(|round| round.quality.mean_ms),
            })
        };
        let [ours, theirs] = arms;
        let (mine, beside) = (figures(ours)?, figures(theirs)?);
        if mine.is_empty() || median(&beside)? <= 0.0 {
            return None;
        }
        let what = format!("{}: {}, {what}", self.title, ours.name());
        Some(
            Row::new(what, unit, bound)
                .beside(theirs.name())
                .pairs(mine, beside),
        )
    }

    /// Everything, as data.
    pub fn json(&self) -> Value {
        let arms = self.series.iter().map(|series| {
            json!({
                "arm": series.arm.name(),
                "failure": series.failure.as_ref().map(in_words),
                "rounds": series.runs,
            })
        });
        json!({
            "neighbour": self.neighbour,
            "read_ahead": self.ahead,
            "load_processors": self.load,
            "judged": self.judged(),
            "arms": arms.collect::<Vec<_>>(),
        })
    }
}

/// A failure in an arm of the kernel is no failure of the benchmark.
fn lacking(arm: Arm, why: Error) -> Error {
    match arm.ours() {
        true => why,
        false => unavailable(in_words(&why)),
    }
}

fn sample(round: &RunResult) -> Sample {
    let quality = &round.quality;
    let notes = [
        ("mean delay ms", quality.mean_ms),
        ("of late frames ms", quality.mean_late_ms),
        ("longest ms", quality.max_ms),
        ("longest run", quality.longest_run as f64),
    ];
    Sample::new(quality.missed_percent(), None)
        .notes(notes)
        .notes(round.launch.map(|seconds| ("launch s", seconds)))
}

/// Table 1 of the paper: the executables of the neighbours, and their memory.
pub fn programs(neighbours: &[Neighbour], scenes: &[Comparison]) -> Table {
    let columns = ["text", "data", "bss", "resident", "contract", "faults"];
    let mut table = Table::new("table 1: the neighbours (bytes; on stock Linux)", columns);
    for neighbour in neighbours {
        let (own, image) = (neighbour.name.name(), neighbour.image);
        let scene = scenes.iter().find(|scene| scene.neighbour == own);
        let stock = scene.and_then(|scene| scene.of(Arm::Stock)?.typical());
        let of_stock = |value: fn(&[UsageSample]) -> f64| {
            stock.map_or("-".into(), |round| format!("{:.0}", value(&round.seen)))
        };
        let cells = [
            image.text.to_string(),
            image.data.to_string(),
            image.bss.to_string(),
            of_stock(|seen| peak(seen) * 1048576.0),
            neighbour.frames.to_string(),
            of_stock(faults),
        ];
        table.row(own, cells, "");
    }
    table
}

/// Table 11 of the paper: all repeats together.
pub fn misses(scenes: &[Comparison]) -> Table {
    let columns = [
        "frames",
        "missed",
        "rate %",
        "mean ms",
        "of late ms",
        "max ms",
        "run",
        "launch s",
    ];
    let mut table = Table::new("table 11: deadlines missed, all repeats together", columns);
    for scene in scenes {
        let ran = |series: &&Series| !series.runs.is_empty();
        for series in scene.series.iter().filter(ran) {
            let lateness = series.runs.iter().flat_map(|r| r.lateness_us.clone());
            let quality = Quality::of(&lateness.collect::<Vec<i64>>());
            // A run does not go from one repeat into the next.
            let runs = series.runs.iter().map(|round| round.quality.longest_run);
            let launch = median(&series.launches());
            let cells = [
                quality.frames.to_string(),
                quality.missed.to_string(),
                format!("{:.1}", quality.missed_percent()),
                format!("{:.2}", quality.mean_ms),
                format!("{:.1}", quality.mean_late_ms),
                format!("{:.0}", quality.max_ms),
                runs.max().unwrap_or(0).to_string(),
                launch.map_or("-".into(), |s| format!("{s:.2}")),
            ];
            table.row(format!("{}: {}", scene.title, series.arm.name()), cells, "");
        }
    }
    table
}

/// MiB.
fn peak(seen: &[UsageSample]) -> f64 {
    seen.iter().map(|seen| seen.resident).fold(0.0, f64::max)
}

/// All that were seen.
fn faults(seen: &[UsageSample]) -> f64 {
    let spans = seen.windows(2).map(|two| (two[1].at - two[0].at, two[1]));
    spans
        .map(|(span, seen)| span * (seen.minor + seen.major))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::is_unavailable;
    use anyhow::anyhow;

    fn round(lateness_us: &[i64], launch: Option<f64>) -> RunResult {
        RunResult {
            quality: Quality::of(lateness_us),
            lateness_us: lateness_us.to_vec(),
            launch,
            seen: Vec::new(),
            counters: [Value::Null, Value::Null],
            result: String::new(),
            realtime: false,
        }
    }

    fn scene(stock: &[i64], limited: &[i64]) -> Comparison {
        let series = |arm, runs| Series {
            arm,
            runs,
            failure: None,
        };
        Comparison {
            title: "python, read-ahead 1".into(),
            neighbour: "python".into(),
            ahead: 1,
            load: 1.5,
            series: vec![
                series(Arm::Stock, vec![round(stock, Some(1.0)); 3]),
                series(Arm::Ours, vec![round(stock, Some(2.0)); 3]),
                series(Arm::OursLimited, vec![round(limited, Some(3.0)); 3]),
            ],
        }
    }

    fn verdicts(mut scene: Comparison) -> Vec<(String, String)> {
        let rows = scene.rows();
        rows.iter()
            .map(|row| (row.what.clone(), row.verdict().to_owned()))
            .collect()
    }

    fn of(verdicts: &[(String, String)], words: &str) -> String {
        let found = verdicts.iter().find(|(what, _)| what.ends_with(words));
        found.expect("there is such a row").1.clone()
    }

    #[test]
    fn ours_is_judged_where_stock_misses_a_tenth() {
        let all = verdicts(scene(&[20_000, -1, -1, -1, -1], &[-1; 5]));
        assert_eq!(of(&all, "ours-limited, frames missed"), "met");
        assert_eq!(of(&all, "ours-limited, mean delay"), "met");
        assert_eq!(of(&all, "ours-limited, launch"), "met");
        assert_eq!(of(&all, "stock, frames missed"), "");
        let all = verdicts(scene(&[20_000, -1, -1, -1, -1], &[9_000, 1, -1, -1, -1]));
        assert_eq!(of(&all, "ours-limited, frames missed"), "MISSED");
        assert_eq!(of(&all, "ours-limited, mean delay"), "MISSED");
    }

    #[test]
    fn where_stock_hardly_misses_nothing_was_promised() {
        let mut stock = vec![-1; 99];
        stock.push(5);
        let all = verdicts(scene(&stock, &[7; 100]));
        assert_eq!(of(&all, "ours-limited, frames missed"), "");
        assert_eq!(of(&all, "ours-limited, mean delay"), "");
    }

    #[test]
    fn a_ratio_over_nothing_is_no_row() {
        let all = verdicts(scene(&[-1; 10], &[7; 10]));
        assert!(!all.iter().any(|(what, _)| what.ends_with("mean delay")));
    }

    #[test]
    fn a_failure_of_the_kernels_arm_is_not_the_benchmarks() {
        let mut scene = scene(&[1], &[1]);
        scene.series[0].failure = Some(anyhow!("killed"));
        scene.series[2].failure = Some(anyhow!("killed"));
        let rows = scene.rows();
        let of = |n: usize| rows[n].failure.as_ref().map(is_unavailable);
        assert_eq!(of(0), Some(true));
        assert_eq!(of(2), Some(false));
    }

    #[test]
    fn a_table_counts_all_repeats_and_no_run_across_them() {
        let text = misses(&[scene(&[1, 1, -1, 1], &[-1; 4])]).to_string();
        let line = text.lines().find(|line| line.contains(": stock")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[4..7], ["12", "9", "75.0"]);
        assert_eq!(words[10], "2");
    }
}
