//! Reports: figures with their intervals, what each must be, and whether it is.
//!
//! Each row is one figure: ours over what stands beside it, or ours alone, with the interval
//! it lies in ([`crate::statistics`]). Taking data is apart from judging it.

pub use crate::bound::Bound;
use crate::error::{in_words, is_unavailable};
use crate::prelude::*;
use crate::statistics::{self, Estimate};
use crate::table::digits;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// One repeat of a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Of ours.
    pub ours: f64,
    /// Of what stands beside it, where something does.
    pub beside: Option<f64>,
    /// What else was seen, by name.
    pub notes: BTreeMap<String, f64>,
}

impl Sample {
    /// Of ours and of what stands beside it.
    pub fn new(ours: f64, beside: impl Into<Option<f64>>) -> Self {
        Self {
            ours,
            beside: beside.into(),
            notes: BTreeMap::new(),
        }
    }

    /// With more that was seen.
    pub fn notes<N: Into<String>>(mut self, notes: impl IntoIterator<Item = (N, f64)>) -> Self {
        let notes = notes.into_iter();
        self.notes.extend(notes.map(|(n, value)| (n.into(), value)));
        self
    }
}

/// A figure with its repeats.
#[derive(Debug, Default)]
pub struct Row {
    /// What is measured.
    pub what: String,
    /// What stands beside it.
    pub beside: Option<String>,
    /// The unit of a sample, or of a rate.
    pub unit: &'static str,
    /// What the value must be.
    pub bound: Bound,
    /// The samples are times, and the value is a rate: this many over a time.
    pub rate: Option<f64>,
    /// What else describes the figure, for the data.
    pub details: Map<String, Value>,
    /// The repeats.
    pub samples: Vec<Sample>,
    /// The failure that ended the repeats.
    pub failure: Option<Error>,
}

impl Row {
    /// Without a figure yet.
    pub fn new(what: impl Into<String>, unit: &'static str, bound: Bound) -> Self {
        Self {
            what: what.into(),
            unit,
            bound,
            ..Self::default()
        }
    }

    /// Of one figure alone, without a unit.
    pub fn fact(what: impl Into<String>, bound: Bound, value: f64) -> Self {
        Self::new(what, "", bound).samples([Sample::new(value, None)])
    }

    /// Without a figure, for a reason.
    pub fn lacking(what: impl Into<String>, failure: Error) -> Self {
        Self::new(what, "", Bound::Open).failure(Some(failure))
    }

    /// Over something else.
    pub fn beside(mut self, beside: impl Into<String>) -> Self {
        self.beside = Some(beside.into());
        self
    }

    /// With repeats.
    pub fn samples(mut self, samples: impl IntoIterator<Item = Sample>) -> Self {
        self.samples.extend(samples);
        self
    }

    /// With repeats of ours and of what stands beside it.
    pub fn pairs(self, ours: Vec<f64>, beside: Vec<f64>) -> Self {
        let pairs = ours.into_iter().zip(beside);
        self.samples(pairs.map(|(ours, beside)| Sample::new(ours, beside)))
    }

    /// With the failure that ended the repeats.
    pub fn failure(self, failure: Option<Error>) -> Self {
        Self { failure, ..self }
    }

    /// With notes in the first repeat.
    pub fn notes<N: Into<String>>(mut self, notes: impl IntoIterator<Item = (N, f64)>) -> Self {
        if let Some(first) = self.samples.first_mut() {
            *first = std::mem::take(first).notes(notes);
        }
        self
    }

    /// The estimate over the repeats.
    pub fn estimate(&self) -> Option<Estimate> {
        let (ours, beside) = self.figures();
        let (estimate, over) = match beside.is_empty() {
            true => (statistics::of_median(&ours)?, self.rate),
            false => (
                statistics::of_ratio(&ours, &beside)?,
                self.rate.and(Some(1.0)),
            ),
        };
        Some(over.map_or(estimate, |over| estimate.inverted(over)))
    }

    fn figures(&self) -> (Vec<f64>, Vec<f64>) {
        (
            self.samples.iter().map(|s| s.ours).collect(),
            self.samples.iter().filter_map(|s| s.beside).collect(),
        )
    }

    /// In words: whether the value is as it must be, and whether the interval leaves doubt.
    pub fn verdict(&self) -> &'static str {
        self.estimate()
            .map_or("no figure", |estimate| self.bound.verdict(estimate))
    }

    fn medians(&self) -> Option<(f64, Option<f64>)> {
        let (ours, beside) = self.figures();
        let shown = |median: f64| self.rate.map_or(median, |over| over / median);
        Some((shown(median(&ours)?), median(&beside).map(shown)))
    }

    fn median_notes(&self) -> BTreeMap<&str, f64> {
        let names = self.samples.iter().flat_map(|s| s.notes.keys());
        names
            .filter_map(|name| {
                let of_name = |s: &Sample| s.notes.get(name).copied();
                let all: Vec<_> = self.samples.iter().filter_map(of_name).collect();
                Some((name.as_str(), median(&all)?))
            })
            .collect()
    }

    fn must_be(&self) -> String {
        let rate = self.rate.map_or("", |_| "rate ");
        format!("{rate}{}", self.bound)
    }

    /// As data.
    pub fn json(&self) -> Value {
        let medians = self.medians();
        let mut value = json!({
            "what": self.what,
            "beside": self.beside,
            "unit": self.unit,
            "must_be": self.must_be(),
            "estimate": self.estimate(),
            "verdict": self.verdict(),
            "median_ours": medians.map(|m| m.0),
            "median_beside": medians.and_then(|m| m.1),
            "samples": self.samples,
            "failure": self.failure.as_ref().map(in_words),
        });
        if let Value::Object(value) = &mut value {
            value.extend(self.details.clone());
        }
        value
    }

    /// The figures behind the value.
    fn behind(&self) -> String {
        let mut line = String::new();
        if let Some((ours, beside)) = self.medians() {
            line += &format!("{} {}", digits(ours), self.unit);
            if let Some(beside) = beside {
                line += &format!(", beside it {} {}", digits(beside), self.unit);
            }
            for (name, value) in self.median_notes() {
                line += &format!("; {name} {}", digits(value));
            }
        }
        if let Some(failure) = &self.failure {
            line += &format!("  cannot: {failure:#}");
        }
        line
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
    /// What follows them.
    pub tables: Vec<Table>,
    /// Data beside the rows.
    pub data: Map<String, Value>,
}

impl Report {
    /// Without figures yet.
    pub fn new(experiment: &'static str, machine: Machine, settings: Vec<String>) -> Self {
        Self {
            experiment,
            machine,
            settings,
            rows: Vec::new(),
            tables: Vec::new(),
            data: Map::new(),
        }
    }

    /// Returns true if a row has no figure though this machine has what it needs. A target that was
    /// missed is a figure.
    fn failed(&self) -> bool {
        let failures = self.rows.iter().filter_map(|row| row.failure.as_ref());
        failures.into_iter().any(|why| !is_unavailable(why))
    }

    /// Prints it, writes it as JSON on request, and returns the exit status.
    pub fn publish(&self, json: Option<&Path>) -> Result<ExitCode> {
        print!("{self}");
        self.conclude(json)
    }

    /// Adds the rows of a part that is done, prints them, and writes all there is so far as JSON
    /// on request: a report that is interrupted keeps them. The first part comes with the machine
    /// and the settings; [`Report::conclude`] follows the last.
    pub fn publish_part(&mut self, rows: Vec<Row>, json: Option<&Path>) -> Result<()> {
        let before = self.rows.len();
        self.rows.extend(rows);
        match before {
            0 if self.tables.is_empty() => print!("{self}"),
            _ => print!("{}", Rows(&self.rows[before..])),
        }
        std::io::stdout().flush()?;
        json.map_or(Ok(()), |path| write_json(&self.json(), path))
    }

    /// Adds the tables of a part that is done, prints them, and writes all there is so far as JSON
    /// on request. The first come with the machine and the settings; the rows of all parts follow the
    /// last, by [`Report::publish_part`].
    pub fn publish_tables(
        &mut self,
        tables: impl IntoIterator<Item = Table>,
        json: Option<&Path>,
    ) -> Result<()> {
        let before = self.tables.len();
        self.tables.extend(tables);
        match before {
            0 => print!("{self}"),
            _ => self.tables[before..]
                .iter()
                .for_each(|table| print!("\n{table}")),
        }
        std::io::stdout().flush()?;
        json.map_or(Ok(()), |path| write_json(&self.json(), path))
    }

    /// Writes it as JSON on request, and returns the exit status.
    pub fn conclude(&self, json: Option<&Path>) -> Result<ExitCode> {
        if let Some(path) = json {
            write_json(&self.json(), path)?;
            println!("all figures: {}", path.display());
        }
        Ok(match self.failed() {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }

    /// Everything, as data.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        let mut all = json!({
            "experiment": self.experiment,
            "machine": self.machine,
            "settings": self.settings,
            "rows": rows,
        });
        if let Value::Object(all) = &mut all {
            all.extend(self.data.clone());
        }
        all
    }
}

/// Writes data to a file.
pub fn write_json(value: &Value, path: &Path) -> Result<()> {
    std::fs::write(path, format!("{value:#}\n")).at("write", path)
}

/// The tables of some rows.
struct Rows<'a>(&'a [Row]);

impl fmt::Display for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["value", "95 % interval", "must be"];
        let mut values = Table::new("ours / beside it", columns);
        let mut medians = Table::new::<&str>("medians", []);
        for row in self.0 {
            let beside = row.beside.as_ref().map(|b| format!(" / {b}"));
            let name = format!("{}{}", row.what, beside.unwrap_or_default());
            match row.estimate() {
                Some(Estimate { median, low, high }) => {
                    let interval = format!("{} - {}", digits(low), digits(high));
                    let cells = [digits(median), interval, row.must_be()];
                    values.row(name, cells, row.verdict());
                }
                None => values.row(name, ["-", "-", &row.must_be()], row.verdict()),
            }
            medians.row::<&str>(&row.what, [], &row.behind());
        }
        write!(f, "\n{values}\n{medians}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.machine.lines().iter().chain(&self.settings) {
            writeln!(f, "{line}")?;
        }
        if !self.rows.is_empty() {
            Rows(&self.rows).fmt(f)?;
        }
        self.tables
            .iter()
            .try_for_each(|table| write!(f, "\n{table}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bound: Bound, pairs: &[(f64, Option<f64>)]) -> Row {
        let samples = pairs
            .iter()
            .map(|(ours, beside)| Sample::new(*ours, *beside));
        Row::new("fault", "us", bound).samples(samples)
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

    #[test]
    fn a_rate_is_judged_upside_down() {
        let mut row = row(Bound::AtLeast(1.5), &[(5.0, Some(10.0))]);
        row.rate = Some(1e3);
        assert_eq!(row.estimate().map(|e| e.median), Some(2.0));
        assert_eq!(
            (row.verdict(), row.medians()),
            ("met", Some((200.0, Some(100.0))))
        );
        row.bound = Bound::AtLeast(3.0);
        assert_eq!(row.verdict(), "MISSED");
    }
}
