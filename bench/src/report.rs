//! Judging the figures: medians of the repeats with their intervals, ratios of medians,
//! targets. How they are printed and drawn is elsewhere ([`crate::text`],
//! [`crate::plot`]).

use crate::ExperimentError;
use crate::access::Figure;
use crate::arm::Arm;
use crate::error::while_doing;
use crate::machine::Machine;
use crate::pass::Pass;
use crate::statistics::{self, Estimate};
use crate::target::{Outcome, Per, Target, Verdict};
use crate::worker::Figures;
use serde_json::{Map, Value, json};
use std::path::Path;

/// One arm's runs with one number of threads.
pub struct Series {
    /// Which arm.
    pub arm: Arm,
    /// How many threads.
    pub threads: u64,
    /// What each run did.
    pub passes: Vec<Pass>,
    /// Its runs, in order.
    pub runs: Vec<Figures>,
    /// The failure that ended the runs.
    pub failure: Option<ExperimentError>,
}

impl Series {
    /// Of an arm that has not run.
    pub fn new(arm: Arm, threads: u64, passes: Vec<Pass>) -> Self {
        Self {
            arm,
            threads,
            passes,
            runs: Vec::new(),
            failure: None,
        }
    }

    /// What each run has of a pass; nothing of an arm that failed.
    fn each(&self, pass: Pass, value: impl Fn(&Figure) -> f64) -> Vec<f64> {
        if self.failure.is_some() {
            return Vec::new();
        }
        let of = |run: &Figures| run.passes.iter().find(|f| f.pass == pass).map(&value);
        self.runs.iter().filter_map(of).collect()
    }

    /// Nanoseconds a page.
    pub fn time(&self, pass: Pass) -> Option<Estimate> {
        statistics::of_median(&self.each(pass, Figure::ns_per_page))
    }

    /// Nanoseconds of the median access and of the 99th percentile, medians over the runs;
    /// of a pass out of order.
    pub fn latency(&self, pass: Pass) -> Option<(f64, f64)> {
        if pass.in_order() {
            return None;
        }
        let median =
            |value: fn(&Figure) -> u64| statistics::median(&self.each(pass, |f| value(f) as f64));
        Some((median(|f| f.p50_ns)?, median(|f| f.p99_ns)?))
    }

    /// The part of the accesses that found their page in memory, the median over the runs.
    pub fn hit_rate(&self, pass: Pass) -> Option<f64> {
        let rates = self.each(pass, |f| f.hit_rate().unwrap_or(f64::NAN));
        statistics::median(&rates).filter(|rate| !rate.is_nan())
    }

    /// The reason that a pass has no figures, if it has no figures.
    fn lack(&self, pass: Pass) -> Option<String> {
        if let Some(failure) = &self.failure {
            return Some(format!("{}: {failure}", self.arm.name()));
        }
        if !self.passes.contains(&pass) || self.runs.is_empty() {
            return Some(format!("{}: {} was not run", self.arm.name(), pass.name()));
        }
        None
    }

    fn json(&self) -> Value {
        let mut medians = Map::new();
        for pass in &self.passes {
            let latency = self.latency(*pass);
            medians.insert(
                pass.name().to_owned(),
                json!({
                    "ns_per_page": self.time(*pass),
                    "p50_ns": latency.map(|(p50, _)| p50),
                    "p99_ns": latency.map(|(_, p99)| p99),
                    "hit_rate": self.hit_rate(*pass),
                }),
            );
        }
        json!({
            "arm": self.arm.name(),
            "about": self.arm.about(),
            "threads": self.threads,
            "medians": medians,
            "runs": self.runs,
            "failure": self.failure.as_ref().map(ToString::to_string),
        })
    }
}

/// All arms' runs and what they were taken on.
pub struct Report {
    /// The configuration in force.
    pub machine: Machine,
    /// Load average when the last run had ended.
    pub load_at_end: String,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of memory.
    pub frames_bytes: u64,
    /// Accesses of a pass that is not in order.
    pub accesses: u64,
    /// Runs of each arm.
    pub repeats: u64,
    /// The arms, by numbers of threads.
    pub series: Vec<Series>,
}

impl Report {
    /// Returns true if there was wrong data, or an arm of ours failed though this machine has what
    /// it needs. What an alternative lacks is said in its row.
    pub fn failed(&self) -> bool {
        self.series.iter().any(|series| match &series.failure {
            None | Some(ExperimentError::Unavailable(_)) => false,
            Some(ExperimentError::WrongData { .. }) => true,
            Some(_) => series.arm.ours(),
        })
    }

    /// An arm's runs.
    pub fn series(&self, arm: Arm, threads: u64) -> Option<&Series> {
        let same = |series: &&Series| series.arm == arm && series.threads == threads;
        self.series.iter().find(same)
    }

    /// The numbers of threads that were run, rising.
    pub fn threads(&self) -> Vec<u64> {
        let mut all: Vec<_> = self.series.iter().map(|series| series.threads).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The passes that were run with so many threads, in their order.
    pub fn passes(&self, threads: u64) -> Vec<Pass> {
        let run = |pass: &Pass| {
            let mut with = self.series.iter().filter(|s| s.threads == threads);
            with.any(|s| s.passes.contains(pass))
        };
        Pass::ALL.into_iter().filter(run).collect()
    }

    /// Time of an arm over time of a rival.
    pub fn ratio(&self, arm: Arm, rival: Arm, threads: u64, pass: Pass) -> Option<Estimate> {
        let times = |arm| {
            let series = self.series(arm, threads)?;
            Some(series.each(pass, Figure::ns_per_page))
        };
        statistics::of_ratio(&times(arm)?, &times(rival)?)
    }

    /// The verdict on every target that concerns the runs.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let asked = |target: &&Target| {
            let ours = self.series(target.ours, target.threads);
            ours.is_some_and(|series| series.passes.contains(&target.pass))
                && self.series(target.theirs, target.threads).is_some()
        };
        Target::ALL
            .iter()
            .filter(asked)
            .map(|target| Verdict {
                target: *target,
                outcome: self.judged(target),
            })
            .collect()
    }

    fn judged(&self, target: &Target) -> Result<Outcome, String> {
        let times = |arm: Arm| {
            let series = self
                .series(arm, target.threads)
                .ok_or_else(|| format!("{} was not run", arm.name()))?;
            match series.lack(target.pass) {
                Some(why) => Err(why),
                None => Ok(series.each(target.pass, |figure: &Figure| Per::of(target.per, figure))),
            }
        };
        let (ours, theirs) = (times(target.ours)?, times(target.theirs)?);
        let of = |median: Option<Estimate>| median.ok_or_else(|| "there are no figures".to_owned());
        Ok(Outcome::new(
            target.bound,
            of(statistics::of_median(&ours))?,
            of(statistics::of_median(&theirs))?,
            of(statistics::of_ratio(&ours, &theirs))?,
        ))
    }

    /// Everything, as data.
    pub fn json(&self) -> Value {
        let verdicts: Vec<_> = self.verdicts().iter().map(Verdict::json).collect();
        let ratios: Vec<_> = self
            .series
            .iter()
            .flat_map(|s| self.beside_rivals(s))
            .collect();
        let arms: Vec<_> = self.series.iter().map(Series::json).collect();
        json!({
            "experiment": "paging",
            "machine": self.machine,
            "load_at_end": self.load_at_end,
            "data_bytes": self.data_bytes,
            "frames_bytes": self.frames_bytes,
            "accesses": self.accesses,
            "repeats": self.repeats,
            "targets": verdicts,
            "ratios": ratios,
            "arms": arms,
        })
    }

    /// A series beside each of its rivals, as data.
    fn beside_rivals(&self, series: &Series) -> Vec<Value> {
        let mut all = Vec::new();
        for rival in series.arm.rivals() {
            for pass in &series.passes {
                if let Some(time) = self.ratio(series.arm, *rival, series.threads, *pass) {
                    all.push(json!({
                        "ours": series.arm.name(),
                        "theirs": rival.name(),
                        "threads": series.threads,
                        "pass": pass,
                        "time": time,
                    }));
                }
            }
        }
        all
    }

    /// Writes [`Report::json`] to a file.
    pub fn save(&self, path: &Path) -> Result<(), ExperimentError> {
        std::fs::write(path, format!("{:#}\n", self.json()))
            .map_err(while_doing(format!("write {}", path.display())))
    }
}

/// Reports made up for tests.
#[cfg(test)]
pub mod made_up {
    use super::*;

    /// An arm with one thread whose every pass took so many nanoseconds a page.
    pub fn series(arm: Arm, ns: &[u64]) -> Series {
        let figure = |pass, ns: u64| Figure {
            pass,
            pages: 10,
            elapsed_ns: ns * 10,
            p50_ns: ns,
            p99_ns: 2 * ns,
            misses: Some(1),
            device_bytes: Some(10 * 4096),
        };
        let run = |ns: &u64| Figures {
            passes: Pass::ALL.iter().map(|p| figure(*p, *ns)).collect(),
            major_faults: 0,
            minor_faults: 0,
            resident: 0,
        };
        Series {
            runs: ns.iter().map(run).collect(),
            ..Series::new(arm, 1, Pass::ALL.to_vec())
        }
    }

    /// Of some arms.
    pub fn report(series: Vec<Series>) -> Report {
        Report {
            machine: Machine::now(Path::new("/")),
            load_at_end: "0.00".into(),
            data_bytes: 1 << 29,
            frames_bytes: 1 << 26,
            accesses: 1,
            repeats: 3,
            series,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made_up::{report, series};
    use super::*;

    #[test]
    fn a_ratio_is_of_medians_and_an_outlier_does_not_move_it() {
        let report = report(vec![
            series(Arm::RunRam, &[10, 1000, 12]),
            series(Arm::SwapZram, &[24, 23, 25]),
        ]);
        let ratio = report.ratio(Arm::RunRam, Arm::SwapZram, 1, Pass::Fill);
        assert_eq!(ratio.map(|r| r.median), Some(0.5));
        let other_threads = report.ratio(Arm::RunRam, Arm::SwapZram, 2, Pass::Fill);
        assert_eq!(other_threads, None);
        assert!(!report.failed());
    }

    #[test]
    fn a_target_has_a_verdict_once_both_its_arms_were_asked_for() {
        let mut report = report(vec![
            series(Arm::LinkedRam, &[10, 11, 12]),
            series(Arm::SwapZram, &[24, 23, 25]),
        ]);
        let verdicts = report.verdicts();
        let met = verdicts.iter().map(|v| v.outcome.as_ref().unwrap().met);
        assert_eq!(met.collect::<Vec<_>>(), [true, true]);
        assert_eq!(report.json()["targets"][0]["met"], true);
        report.series[1].failure = Some(ExperimentError::Unavailable("no zram".into()));
        let verdicts = report.verdicts();
        assert_eq!(
            verdicts[0].outcome,
            Err("swap-zram: no zram".to_owned()),
            "a row whose arm cannot run says why"
        );
    }

    #[test]
    fn wrong_data_and_a_failure_of_ours_fail_and_what_an_alternative_lacks_does_not() {
        let failing = |arm, failure| {
            let mut series = series(arm, &[1]);
            series.failure = Some(failure);
            report(vec![series]).failed()
        };
        let unavailable = || ExperimentError::Unavailable("no root".into());
        let worker = || ExperimentError::Worker("killed".into());
        let wrong = || ExperimentError::WrongData {
            page: 1,
            word: 2,
            found: 3,
            expected: 4,
        };
        assert!(!failing(Arm::SwapFile, unavailable()));
        assert!(!failing(Arm::RunRam, unavailable()));
        assert!(!failing(Arm::SwapFile, worker()));
        assert!(failing(Arm::RunRam, worker()));
        assert!(failing(Arm::Mmap, wrong()));
    }

    #[test]
    fn latencies_and_hit_rates_are_in_the_data() {
        let report = report(vec![series(Arm::LinkedRam, &[10, 12, 14])]);
        let medians = &report.json()["arms"][0]["medians"]["zipf"];
        assert_eq!(medians["p50_ns"], 12.0);
        assert_eq!(medians["p99_ns"], 24.0);
        assert!((medians["hit_rate"].as_f64().unwrap() - 0.9).abs() < 1e-9);
        assert!(report.json()["arms"][0]["medians"]["fill"]["p50_ns"].is_null());
    }
}
