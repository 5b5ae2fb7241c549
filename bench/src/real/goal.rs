//! What was promised of a measurement, and whether it holds.
//!
//! Each row is one figure: ours over what stands beside it, or ours alone, with the interval
//! it lies in ([`crate::statistics`]).

use crate::ExperimentError;
use crate::error::while_doing;
use crate::machine::Machine;
use crate::statistics::{self, Estimate, median};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// Anything: a figure to know, of which nothing was promised.
    Open,
}

impl Bound {
    /// Returns true if a value is as it must be.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::Open => true,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::Open => Ok(()),
        }
    }
}

/// One repeat of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Of ours.
    pub ours: f64,
    /// Of what stands beside it, where something does.
    pub beside: Option<f64>,
    /// What else was seen, by name.
    pub notes: BTreeMap<String, f64>,
}

/// A figure with its repeats.
pub struct Row {
    /// What is measured.
    pub what: String,
    /// What stands beside it.
    pub beside: Option<String>,
    /// The unit of a sample.
    pub unit: &'static str,
    /// What the value must be.
    pub bound: Bound,
    /// The repeats.
    pub samples: Vec<Sample>,
    /// The failure that ended the repeats.
    pub failure: Option<ExperimentError>,
}

impl Row {
    /// The estimate over the repeats.
    pub fn estimate(&self) -> Option<Estimate> {
        let (ours, beside) = self.figures();
        match beside.is_empty() {
            true => statistics::of_median(&ours),
            false => statistics::of_ratio(&ours, &beside),
        }
    }

    fn figures(&self) -> (Vec<f64>, Vec<f64>) {
        (
            self.samples.iter().map(|s| s.ours).collect(),
            self.samples.iter().filter_map(|s| s.beside).collect(),
        )
    }

    /// In words: whether the value is as it must be, and whether the interval leaves doubt.
    pub fn verdict(&self) -> &'static str {
        let Some(Estimate { median, low, high }) = self.estimate() else {
            return "no figure";
        };
        if self.bound == Bound::Open {
            return "";
        }
        let doubtful = self.bound.holds(low) != self.bound.holds(high);
        match (self.bound.holds(median), doubtful) {
            (true, false) => "met",
            (true, true) => "met, in doubt",
            (false, false) => "MISSED",
            (false, true) => "missed, in doubt",
        }
    }

    fn medians(&self) -> Option<(f64, Option<f64>)> {
        let (ours, beside) = self.figures();
        Some((median(&ours)?, median(&beside)))
    }

    fn notes(&self) -> BTreeMap<&str, f64> {
        let names = self.samples.iter().flat_map(|s| s.notes.keys());
        names
            .filter_map(|name| {
                let of_name = |s: &Sample| s.notes.get(name).copied();
                let all: Vec<_> = self.samples.iter().filter_map(of_name).collect();
                Some((name.as_str(), median(&all)?))
            })
            .collect()
    }

    fn json(&self) -> Value {
        let medians = self.medians();
        json!({
            "what": self.what,
            "beside": self.beside,
            "unit": self.unit,
            "must_be": self.bound.to_string(),
            "estimate": self.estimate(),
            "verdict": self.verdict(),
            "median_ours": medians.map(|m| m.0),
            "median_beside": medians.and_then(|m| m.1),
            "samples": self.samples,
            "failure": self.failure.as_ref().map(ToString::to_string),
        })
    }
}

/// All rows and what they were taken on.
pub struct Report {
    /// The experiment's name.
    pub experiment: &'static str,
    /// The machine as it was.
    pub machine: Machine,
    /// The experiment's own settings, in words.
    pub settings: Vec<String>,
    /// The figures.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns true if a row has no figure though this machine has what it needs. A target that was
    /// missed is a figure.
    fn failed(&self) -> bool {
        self.rows
            .iter()
            .any(|row| !matches!(row.failure, None | Some(ExperimentError::Unavailable(_))))
    }

    /// Prints it, writes it as JSON on request, and returns the exit status.
    pub fn publish(&self, json: Option<&Path>) -> Result<ExitCode, ExperimentError> {
        self.publish_with(json, Value::Null)
    }

    /// The same, with more in the JSON than rows hold.
    pub fn publish_with(
        &self,
        json: Option<&Path>,
        details: Value,
    ) -> Result<ExitCode, ExperimentError> {
        print!("{self}");
        if let Some(path) = json {
            self.save(path, details)?;
            println!("all figures: {}", path.display());
        }
        Ok(match self.failed() {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }

    /// Writes everything as JSON.
    fn save(&self, path: &Path, details: Value) -> Result<(), ExperimentError> {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        let mut all = json!({
            "experiment": self.experiment,
            "machine": self.machine,
            "settings": self.settings,
            "rows": rows,
        });
        if !details.is_null() {
            all["details"] = details;
        }
        std::fs::write(path, format!("{all:#}\n"))
            .map_err(while_doing(format!("write {}", path.display())))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.machine.lines().iter().chain(&self.settings) {
            writeln!(f, "{line}")?;
        }
        writeln!(
            f,
            "\n{:<74}{:>9}{:>18}{:>11}  ",
            "ours / beside it", "value", "95 % interval", "must be"
        )?;
        for row in &self.rows {
            let beside = row.beside.as_ref().map(|b| format!(" / {b}"));
            let name = format!("{}{}", row.what, beside.unwrap_or_default());
            match row.estimate() {
                Some(Estimate { median, low, high }) => writeln!(
                    f,
                    "{name:<74}{:>9}{:>18}{:>11}  {}",
                    digits(median),
                    format!("{} - {}", digits(low), digits(high)),
                    row.bound.to_string(),
                    row.verdict()
                )?,
                None => writeln!(f, "{name:<74}{:>9}", "no figure")?,
            }
        }
        writeln!(f, "\nmedians")?;
        for row in &self.rows {
            write!(f, "{:<40}", row.what)?;
            if let Some((ours, beside)) = row.medians() {
                write!(f, "{:>10} {}", digits(ours), row.unit)?;
                if let Some(beside) = beside {
                    write!(f, ", beside it {} {}", digits(beside), row.unit)?;
                }
                for (name, value) in row.notes() {
                    write!(f, "; {name} {}", digits(value))?;
                }
            }
            match &row.failure {
                Some(failure) => writeln!(f, "  cannot: {failure}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

/// Three or four digits that count.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bound: Bound, pairs: &[(f64, Option<f64>)]) -> Row {
        let samples = pairs.iter().map(|(ours, beside)| Sample {
            ours: *ours,
            beside: *beside,
            notes: BTreeMap::new(),
        });
        Row {
            what: "fault".into(),
            beside: None,
            unit: "us",
            bound,
            samples: samples.collect(),
            failure: None,
        }
    }

    #[test]
    fn the_value_is_the_ratio_of_medians_and_lies_in_its_interval() {
        let of_pairs = [(2.0, Some(1.0)), (4.0, Some(2.0)), (90.0, Some(2.0))];
        let row = row(Bound::AtMost(4.0), &of_pairs);
        let Estimate { median, low, high } = row.estimate().unwrap();
        assert!(median == 2.0 && low <= median && median <= high && high > 4.0);
        assert_eq!(row.verdict(), "met, in doubt");
    }

    #[test]
    fn a_bound_is_met_or_missed_and_nothing_is_neither() {
        let alone = [(0.9, None); 3];
        assert_eq!(row(Bound::AtLeast(0.9), &alone).verdict(), "met");
        assert_eq!(row(Bound::AtLeast(0.91), &alone).verdict(), "MISSED");
        assert_eq!(row(Bound::AtMost(1.0), &[]).verdict(), "no figure");
    }
}
