//! The runs of all arms: medians of the repeats with their intervals, ratios of medians.

use super::arm::Arm;
use super::figure::Figure;
use super::pass::Pass;
use super::worker::Figures;
use crate::error::{in_words, is_unavailable};
use crate::prelude::*;
use crate::statistics::{self, Estimate};
use crate::table::digits;
use serde_json::{Map, Value, json};

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
    pub failure: Option<Error>,
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

    /// What each run has of a pass, or the reason that it has no figures.
    pub fn figures(&self, pass: Pass, value: impl Fn(&Figure) -> f64) -> Result<Vec<f64>> {
        let name = self.arm.name();
        let lack = match &self.failure {
            Some(failure) => format!("{name}: {failure:#}"),
            None if self.runs.is_empty() || !self.passes.contains(&pass) => {
                format!("{name}: {} was not run", pass.name())
            }
            None => return Ok(self.each(pass, value)),
        };
        Err(unavailable(lack))
    }

    /// Nanoseconds a page.
    pub fn time(&self, pass: Pass) -> Option<Estimate> {
        statistics::of_median(&self.each(pass, Figure::ns_per_page))
    }

    /// Nanoseconds of the median access and of the 99th percentile, medians over the runs;
    /// of a pass out of order.
    fn latency(&self, pass: Pass) -> Option<(f64, f64)> {
        if pass.in_order() {
            return None;
        }
        let median =
            |value: fn(&Figure) -> u64| statistics::median(&self.each(pass, |f| value(f) as f64));
        Some((median(|f| f.p50_ns)?, median(|f| f.p99_ns)?))
    }

    /// The part of the accesses that found their page in memory, the median over the runs.
    fn hit_rate(&self, pass: Pass) -> Option<f64> {
        let rates = self.each(pass, |f| f.hit_rate().unwrap_or(f64::NAN));
        statistics::median(&rates).filter(|rate| !rate.is_nan())
    }

    fn json(&self) -> Value {
        let medians = self.passes.iter().map(|pass| {
            let latency = self.latency(*pass);
            let median = json!({
                "ns_per_page": self.time(*pass),
                "p50_ns": latency.map(|(p50, _)| p50),
                "p99_ns": latency.map(|(_, p99)| p99),
                "hit_rate": self.hit_rate(*pass),
            });
            (pass.name(), median)
        });
        json!({
            "arm": self.arm.name(),
            "about": self.arm.about(),
            "threads": self.threads,
            "medians": medians.collect::<Map<_, _>>(),
            "runs": self.runs,
            "failure": self.failure.as_ref().map(in_words),
        })
    }
}

/// The arms, by numbers of threads.
pub struct AllSeries(pub Vec<Series>);

impl AllSeries {
    /// Returns true if there was wrong data, or an arm of ours failed though this machine has what
    /// it needs. What an alternative lacks is said in its row.
    pub fn failed(&self) -> bool {
        self.0.iter().any(|series| {
            let failure = series.failure.as_ref().map(|why| (why, why.downcast_ref()));
            failure.is_some_and(|(why, kind)| match kind {
                Some(ExperimentError::WrongData { .. }) => true,
                _ => series.arm.ours() && !is_unavailable(why),
            })
        })
    }

    /// An arm's runs.
    pub fn find(&self, arm: Arm, threads: u64) -> Option<&Series> {
        self.with(threads).find(|series| series.arm == arm)
    }

    fn with(&self, threads: u64) -> impl Iterator<Item = &Series> {
        self.0
            .iter()
            .filter(move |series| series.threads == threads)
    }

    /// The numbers of threads that were run, rising.
    pub fn threads(&self) -> Vec<u64> {
        let mut all: Vec<_> = self.0.iter().map(|series| series.threads).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Time of an arm over time of a rival.
    fn ratio(&self, arm: Arm, rival: Arm, threads: u64, pass: Pass) -> Option<Estimate> {
        let times = |arm| Some(self.find(arm, threads)?.each(pass, Figure::ns_per_page));
        statistics::of_ratio(&times(arm)?, &times(rival)?)
    }

    /// The arms beside each of their rivals, then what the ratios come from, for each number of
    /// threads; and what the arms are.
    pub fn tables(&self) -> Vec<Table> {
        let of = |threads| {
            let ran = |pass: &Pass| self.with(threads).any(|s| s.passes.contains(pass));
            let passes: Vec<Pass> = Pass::value_variants().iter().copied().filter(ran).collect();
            let apart: Vec<Pass> = passes.iter().copied().filter(|p| !p.in_order()).collect();
            let times = |series: &Series, pass| shown(series.time(pass).map(|t| t.times(1e-3)));
            [
                self.ratios(threads, &passes),
                Some(self.table("us a page [95 %]", threads, &passes, times)),
                (!apart.is_empty())
                    .then(|| self.table("us p50, p99; hits", threads, &apart, latencies)),
            ]
        };
        let mut tables: Vec<_> = self.threads().into_iter().flat_map(of).flatten().collect();
        let mut arms = Table::new::<&str>("arms", []);
        for arm in Arm::value_variants() {
            if self.0.iter().any(|series| series.arm == *arm) {
                arms.row::<&str>(format!("  {}", arm.name()), [], &arm.about());
            }
        }
        tables.push(arms);
        tables
    }

    fn ratios(&self, threads: u64, passes: &[Pass]) -> Option<Table> {
        let pairs: Vec<_> = self
            .with(threads)
            .flat_map(|s| s.arm.rivals().iter().map(move |rival| (s.arm, *rival)))
            .filter(|(_, rival)| self.find(*rival, threads).is_some())
            .collect();
        let mut table = table("our time / their time [95 %]", threads, passes);
        for (arm, rival) in &pairs {
            let ratio = |pass: &Pass| shown(self.ratio(*arm, *rival, threads, *pass));
            let name = format!("{} / {}", arm.name(), rival.name());
            table.row(name, passes.iter().map(ratio), "");
        }
        (!pairs.is_empty()).then_some(table)
    }

    fn table(
        &self,
        title: &str,
        threads: u64,
        passes: &[Pass],
        cell: impl Fn(&Series, Pass) -> String,
    ) -> Table {
        let mut table = table(title, threads, passes);
        for series in self.with(threads) {
            let name = series.arm.name();
            match &series.failure {
                Some(why) => table.row::<&str>(name, [], &format!("cannot: {why:#}")),
                None => table.row(name, passes.iter().map(|pass| cell(series, *pass)), ""),
            }
        }
        table
    }

    /// Everything, as data: the arms, and their ratios.
    pub fn json(&self) -> [(String, Value); 2] {
        let ratios: Vec<_> = self.0.iter().flat_map(|s| self.beside_rivals(s)).collect();
        let arms: Vec<_> = self.0.iter().map(Series::json).collect();
        [
            ("ratios".into(), ratios.into()),
            ("arms".into(), arms.into()),
        ]
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
}

fn table(title: &str, threads: u64, passes: &[Pass]) -> Table {
    let title = format!("{}: {title}", threads_in_words(threads));
    Table::new(&title, passes.iter().map(|pass| pass.name()))
}

/// So many threads.
pub fn threads_in_words(threads: u64) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// An estimate in its interval.
fn shown(estimate: Option<Estimate>) -> String {
    let in_interval = |Estimate { median, low, high }| {
        format!("{} [{},{}]", digits(median), digits(low), digits(high))
    };
    estimate.map_or_else(|| "-".to_owned(), in_interval)
}

fn latencies(series: &Series, pass: Pass) -> String {
    let hits = series.hit_rate(pass);
    let hits = hits.map_or_else(|| "-".into(), |rate| format!("{:.0} %", rate * 100.0));
    series.latency(pass).map_or_else(String::new, |(p50, p99)| {
        format!("{}, {}; {hits}", digits(p50 / 1e3), digits(p99 / 1e3))
    })
}

/// Runs made up for tests.
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
            passes: Pass::value_variants()
                .iter()
                .map(|p| figure(*p, *ns))
                .collect(),
            major_faults: 0,
            minor_faults: 0,
            resident: 0,
        };
        Series {
            runs: ns.iter().map(run).collect(),
            ..Series::new(arm, 1, Pass::value_variants().to_vec())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made_up::series;
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_ratio_is_of_medians_and_an_outlier_does_not_move_it() {
        let all = AllSeries(vec![
            series(Arm::RunRam, &[10, 1000, 12]),
            series(Arm::SwapZram, &[24, 23, 25]),
        ]);
        let ratio = all.ratio(Arm::RunRam, Arm::SwapZram, 1, Pass::Fill);
        assert_eq!(ratio.map(|r| r.median), Some(0.5));
        let other_threads = all.ratio(Arm::RunRam, Arm::SwapZram, 2, Pass::Fill);
        assert_eq!(other_threads, None);
        assert!(!all.failed());
    }

    #[test]
    fn wrong_data_and_a_failure_of_ours_fail_and_what_an_alternative_lacks_does_not() {
        let failing = |arm, failure| {
            let mut series = series(arm, &[1]);
            series.failure = Some(failure);
            AllSeries(vec![series]).failed()
        };
        let unavailable = || unavailable("no root");
        let worker = || anyhow!("killed");
        let wrong = || {
            Error::from(ExperimentError::WrongData {
                page: 1,
                word: 2,
                found: 3,
                expected: 4,
            })
        };
        assert!(!failing(Arm::SwapFile, unavailable()));
        assert!(!failing(Arm::RunRam, unavailable()));
        assert!(!failing(Arm::SwapFile, worker()));
        assert!(failing(Arm::RunRam, worker()));
        assert!(failing(Arm::Mmap, wrong()));
    }

    #[test]
    fn latencies_and_hit_rates_are_in_the_data() {
        let json = series(Arm::LinkedRam, &[10, 12, 14]).json();
        let medians = &json["medians"]["zipf"];
        assert_eq!(medians["p50_ns"], 12.0);
        assert_eq!(medians["p99_ns"], 24.0);
        assert!((medians["hit_rate"].as_f64().unwrap() - 0.9).abs() < 1e-9);
        assert!(json["medians"]["fill"]["p50_ns"].is_null());
    }

    #[test]
    fn ratios_come_first_then_figures_and_an_arm_that_cannot_run_says_why() {
        let mut gone = series(Arm::SwapFile, &[1]);
        gone.failure = Some(unavailable("no root"));
        let all = AllSeries(vec![
            series(Arm::LinkedRam, &[10, 12, 14]),
            series(Arm::SwapZram, &[24, 23, 25]),
            gone,
        ]);
        let text: String = all.tables().iter().map(ToString::to_string).collect();
        let at = |what: &str| {
            text.find(what)
                .unwrap_or_else(|| panic!("{what} in {text}"))
        };
        assert!(at("our time / their time") < at("us a page"));
        let line = text.lines().find(|l| l.contains("linked-ram / swap-zram"));
        assert!(line.unwrap().contains("0.50 [0.40,0.61]"), "{line:?}");
        assert!(text.contains("90 %") && text.contains("cannot: no root"));
    }
}
