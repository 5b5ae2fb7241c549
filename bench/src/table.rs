//! Tables as text: names on the left, figures on the right, each column as wide as its cells.

use std::fmt::{self, Display, Formatter};

/// A table; its first line is its head.
pub struct Table(Vec<TableRow>);

struct TableRow {
    name: String,
    cells: Vec<String>,
    /// Follows the cells, in no column.
    remark: String,
}

impl Table {
    /// With the title above the names and the heads of the other columns.
    pub fn new<T: ToString>(title: &str, columns: impl IntoIterator<Item = T>) -> Self {
        let mut table = Self(Vec::new());
        table.row(title, columns, "");
        table
    }

    /// Adds a row; a remark needs no cells.
    pub fn row<T: ToString>(
        &mut self,
        name: impl Into<String>,
        cells: impl IntoIterator<Item = T>,
        remark: &str,
    ) {
        self.0.push(TableRow {
            name: name.into(),
            cells: cells.into_iter().map(|cell| cell.to_string()).collect(),
            remark: remark.to_owned(),
        });
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|row| row.name.len());
        let first = names.max().unwrap_or(0);
        let count = self.0.first().map_or(0, |head| head.cells.len());
        let width = |k: usize| {
            let cells = self.0.iter().filter_map(|row| row.cells.get(k));
            cells.map(|cell| cell.len()).max().unwrap_or(0) + 2
        };
        let widths: Vec<usize> = (0..count).map(width).collect();
        for row in &self.0 {
            let mut line = format!("{:<first$}", row.name);
            for (cell, width) in row.cells.iter().zip(&widths) {
                line.push_str(&format!("{cell:>width$}"));
            }
            if !row.remark.is_empty() {
                line.push_str(&format!("  {}", row.remark));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Three digits, or more before the point; four decimals below a tenth.
pub fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        v if v >= 0.1 || v == 0.0 => 2,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let shown: Vec<_> = [0.0123, 0.123, 1.234, 12.34, 123.4, 12_345.6, 0.0]
            .map(digits)
            .into();
        let expected = ["0.0123", "0.12", "1.23", "12.3", "123", "12346", "0.00"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new("times", ["us", "interval"]);
        table.row("a longer name", ["1.5", "1 - 2"], "met");
        table.row::<&str>("none", [], "cannot: no root");
        let expected = "times           us  interval\n\
                        a longer name  1.5     1 - 2  met\n\
                        none           cannot: no root\n";
        assert_eq!(table.to_string(), expected);
    }
}
