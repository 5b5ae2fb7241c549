//! Judging the figures: medians of the repeats, ratios first, then what they come from.

use crate::ExperimentError;
use crate::access::Pass;
use crate::arm::Arm;
use crate::error::while_doing;
use crate::machine::Machine;
use crate::worker::Figures;
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

/// One arm's runs.
pub struct Row {
    /// Which.
    pub arm: Arm,
    /// Its runs, in order.
    pub runs: Vec<Figures>,
    /// Why there are no more of them.
    pub failure: Option<ExperimentError>,
}

impl Row {
    /// Of an arm that has not run.
    pub fn new(arm: Arm) -> Self {
        Self {
            arm,
            runs: Vec::new(),
            failure: None,
        }
    }

    /// The median over the runs of nanoseconds a page.
    pub fn median(&self, pass: Pass) -> Option<f64> {
        if self.failure.is_some() {
            return None;
        }
        median(self.each(pass))
    }

    fn each(&self, pass: Pass) -> Vec<f64> {
        let of = |run: &Figures| {
            run.passes
                .iter()
                .find(|f| f.pass == pass)
                .map(|f| f.ns_per_page())
        };
        self.runs.iter().filter_map(of).collect()
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (
        values.get(values.len().saturating_sub(1) / 2)?,
        values.get(values.len() / 2)?,
    );
    Some((low + high) / 2.0)
}

/// All arms' runs and what they were taken on.
pub struct Report {
    /// The configuration in force.
    pub machine: Machine,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of memory.
    pub frames_bytes: u64,
    /// Random accesses in each pass.
    pub accesses: u64,
    /// Threads.
    pub threads: u64,
    /// Runs of each arm.
    pub repeats: u64,
    /// The arms.
    pub rows: Vec<Row>,
}

impl Report {
    /// Whether an arm had wrong data, or failed though this machine has what it needs.
    pub fn failed(&self) -> bool {
        self.rows
            .iter()
            .any(|row| !matches!(row.failure, None | Some(ExperimentError::Unavailable(_))))
    }

    fn row(&self, arm: Arm) -> Option<&Row> {
        self.rows.iter().find(|row| row.arm == arm)
    }

    /// Time of `arm` over time of `rival`, for each pass.
    pub fn ratios(&self, arm: Arm, rival: Arm) -> Option<[f64; 4]> {
        let (ours, theirs) = (self.row(arm)?, self.row(rival)?);
        let mut ratios = [0.0; 4];
        for (ratio, pass) in ratios.iter_mut().zip(Pass::ALL) {
            *ratio = ours.median(pass)? / theirs.median(pass)?;
        }
        Some(ratios)
    }

    /// Everything, as data.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let medians: serde_json::Map<String, Value> = Pass::ALL
                    .iter()
                    .map(|p| (p.name().replace([' ', '-'], "_"), json!(row.median(*p))))
                    .collect();
                json!({
                    "arm": row.arm.name(),
                    "about": row.arm.about(),
                    "median_ns_per_page": medians,
                    "runs": row.runs,
                    "failure": row.failure.as_ref().map(ToString::to_string),
                })
            })
            .collect();
        json!({
            "experiment": "paging",
            "machine": self.machine,
            "data_bytes": self.data_bytes,
            "frames_bytes": self.frames_bytes,
            "accesses": self.accesses,
            "threads": self.threads,
            "repeats": self.repeats,
            "arms": rows,
        })
    }

    /// Writes [`Report::json`] to a file.
    pub fn save(&self, path: &Path) -> Result<(), ExperimentError> {
        std::fs::write(path, format!("{:#}\n", self.json()))
            .map_err(while_doing(format!("write {}", path.display())))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.machine.lines() {
            writeln!(f, "{line}")?;
        }
        writeln!(
            f,
            "{} MiB of data compressing 2:1 under lz4, {} MiB of memory (frames, or a cgroup's limit), 4 KiB pages,",
            self.data_bytes >> 20,
            self.frames_bytes >> 20
        )?;
        writeln!(
            f,
            "{} thread(s), {} random accesses a pass, medians of {} interleaved runs, contents verified\n",
            self.threads, self.accesses, self.repeats
        )?;
        let heads = Pass::ALL.map(|p| format!("{:>16}", p.name())).concat();
        writeln!(
            f,
            "{:<58}{heads}",
            "time of ours / time of theirs (below 1: ours is faster)"
        )?;
        for row in &self.rows {
            for rival in row.arm.rivals() {
                let name = format!("{} / {}", row.arm.about(), rival.about());
                match self.ratios(row.arm, *rival) {
                    Some(ratios) => writeln!(
                        f,
                        "{name:<58}{}",
                        ratios.map(|r| format!("{r:>16.2}")).concat()
                    )?,
                    None => writeln!(f, "{name:<58}{:>16}", "no figures")?,
                }
            }
        }
        writeln!(f, "\n{:<58}{heads}", "us a page (MB/s), median")?;
        for row in &self.rows {
            write!(f, "{:<58}", row.arm.about())?;
            match &row.failure {
                Some(failure) => writeln!(f, "  cannot: {failure}")?,
                None => {
                    for pass in Pass::ALL {
                        let cell = row.median(pass).map_or_else(String::new, |ns| {
                            format!("{:.2} ({:.0})", ns / 1000.0, 4096.0 / ns * 1000.0)
                        });
                        write!(f, "{cell:>16}")?;
                    }
                    writeln!(f)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Figure;

    fn row(arm: Arm, ns: &[u64]) -> Row {
        let figure = |pass, ns: u64| Figure {
            pass,
            pages: 10,
            elapsed_ns: ns * 10,
            p50_ns: 0,
            p99_ns: 0,
        };
        let run = |ns: &u64| Figures {
            passes: Pass::ALL.iter().map(|p| figure(*p, *ns)).collect(),
            major_faults: 0,
            minor_faults: 0,
            resident: 0,
        };
        Row {
            arm,
            runs: ns.iter().map(run).collect(),
            failure: None,
        }
    }

    fn report(rows: Vec<Row>) -> Report {
        let machine = Machine::now(Path::new("/"));
        Report {
            machine,
            data_bytes: 1 << 29,
            frames_bytes: 1 << 26,
            accesses: 1,
            threads: 1,
            repeats: 3,
            rows,
        }
    }

    #[test]
    fn a_ratio_is_of_medians_and_an_outlier_does_not_move_it() {
        let report = report(vec![
            row(Arm::RunRam, &[10, 1000, 12]),
            row(Arm::SwapZram, &[24, 23, 25]),
        ]);
        assert_eq!(report.ratios(Arm::RunRam, Arm::SwapZram), Some([0.5; 4]));
        assert!(report.to_string().contains("0.50"));
        assert!(!report.failed());
    }

    #[test]
    fn an_arm_that_cannot_run_says_why_and_only_a_real_failure_fails() {
        let mut gone = row(Arm::SwapFile, &[1]);
        gone.failure = Some(ExperimentError::Unavailable("no root".into()));
        let mut report = report(vec![gone]);
        assert!(report.to_string().contains("cannot: no root"));
        assert!(!report.failed());
        report.rows[0].failure = Some(ExperimentError::WrongData {
            page: 1,
            word: 2,
            found: 3,
            expected: 4,
        });
        assert!(report.failed());
        assert!(
            report.json()["arms"][0]["failure"]
                .as_str()
                .unwrap()
                .contains("wrong data")
        );
    }
}
