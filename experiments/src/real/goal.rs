//! What was promised of a measurement, and whether it holds.
//!
//! Each row is one figure: ours over what stands beside it, or ours alone. Its value is the
//! ratio of the medians of all repeats; its interval is the middle 95 % of what resampling
//! the repeats gives (the bootstrap), ours and what stands beside it drawn together,
//! because they were taken together under the same load.

use crate::ExperimentError;
use crate::contents::mix;
use crate::error::while_doing;
use crate::machine::Machine;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Resamples of the bootstrap: the interval's ends move by less than the figures' last
/// printed digit with more.
const RESAMPLES: u64 = 2_000;

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Bound {
    /// Whether a value is as it must be.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    fn limit(self) -> f64 {
        let (Self::AtMost(limit) | Self::AtLeast(limit)) = self;
        limit
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self {
            Self::AtMost(_) => "<=",
            Self::AtLeast(_) => ">=",
        };
        write!(f, "{sign} {}", self.limit())
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
    /// Why there are no more of them.
    pub failure: Option<ExperimentError>,
}

/// A value and the interval it is in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The ratio of the medians, or ours alone.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Row {
    /// What the repeats come to.
    pub fn estimate(&self) -> Option<Estimate> {
        let value = ratio(&self.samples.iter().collect::<Vec<_>>())?;
        let count = self.samples.len() as u64;
        let mut drawn: Vec<f64> = (0..RESAMPLES)
            .filter_map(|round| {
                let pick = |i| &self.samples[(mix(round << 16 ^ i) % count) as usize];
                ratio(&(0..count).map(pick).collect::<Vec<_>>())
            })
            .collect();
        drawn.sort_by(f64::total_cmp);
        let at = |part: f64| drawn[((drawn.len() - 1) as f64 * part) as usize];
        Some(Estimate {
            value,
            low: at(0.025),
            high: at(0.975),
        })
    }

    /// In words: whether the value is as it must be, and whether the interval leaves doubt.
    pub fn verdict(&self) -> &'static str {
        let Some(Estimate { value, low, high }) = self.estimate() else {
            return "no figure";
        };
        let doubtful = self.bound.holds(low) != self.bound.holds(high);
        match (self.bound.holds(value), doubtful) {
            (true, false) => "met",
            (true, true) => "met, in doubt",
            (false, false) => "MISSED",
            (false, true) => "missed, in doubt",
        }
    }

    fn medians(&self) -> Option<(f64, Option<f64>)> {
        let ours = median(self.samples.iter().map(|s| s.ours).collect())?;
        Some((
            ours,
            median(self.samples.iter().filter_map(|s| s.beside).collect()),
        ))
    }

    fn notes(&self) -> BTreeMap<&str, f64> {
        let names = self.samples.iter().flat_map(|s| s.notes.keys());
        names
            .filter_map(|name| {
                let all = self
                    .samples
                    .iter()
                    .filter_map(|s| s.notes.get(name).copied());
                Some((name.as_str(), median(all.collect())?))
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

fn ratio(samples: &[&Sample]) -> Option<f64> {
    let ours = median(samples.iter().map(|s| s.ours).collect())?;
    match median(samples.iter().filter_map(|s| s.beside).collect()) {
        None => Some(ours),
        Some(beside) => Some(ours / beside),
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
    /// Whether a row has no figure though this machine has what it needs. A target that was
    /// missed is a figure.
    pub fn failed(&self) -> bool {
        self.rows
            .iter()
            .any(|row| !matches!(row.failure, None | Some(ExperimentError::Unavailable(_))))
    }

    /// Writes everything as JSON.
    pub fn save(&self, path: &Path) -> Result<(), ExperimentError> {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        let all = json!({
            "experiment": self.experiment,
            "machine": self.machine,
            "settings": self.settings,
            "rows": rows,
        });
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
                Some(Estimate { value, low, high }) => writeln!(
                    f,
                    "{name:<74}{:>9}{:>18}{:>11}  {}",
                    digits(value),
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
        let Estimate { value, low, high } = row.estimate().unwrap();
        assert!(value == 2.0 && low <= value && value <= high && high > 4.0);
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
