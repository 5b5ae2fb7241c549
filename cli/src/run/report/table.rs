//! All figures, a line each: `--stats`.

use super::{Report, StageFigures};
use std::fmt::Write as _;
use store::Usage;
use wired::units::size;
use wired::{Counter, Stage};

/// Rows of a name, a value and what it means.
struct Table(String);

impl Table {
    fn row(&mut self, name: &str, value: String, meaning: &str) {
        let _ = writeln!(self.0, "  {name:<22}{value:>16}  {meaning}");
    }
}

impl Report {
    /// All figures, a line each.
    pub fn table(&self) -> String {
        let mut table = Table(String::new());
        self.tree_rows(&mut table);
        self.counter_rows(&mut table);
        self.stage_rows(&mut table);
        self.store_rows(&mut table);
        table.0
    }

    /// The contract, the processes and their memory.
    fn tree_rows(&self, table: &mut Table) {
        let m = &self.memory;
        table.row(
            "frames",
            self.frames.to_string(),
            &format!("The contract: {}.", size(self.frames_bytes)),
        );
        table.row(
            "frames_peak",
            size(self.frames_peak_bytes),
            "The most held at one moment, counted.",
        );
        table.row("processes", self.processes.to_string(), "That paged.");
        table.row(
            "peak_anonymous",
            size(m.peak_anonymous),
            &format!("Of the tree; processes then: {}.", m.processes_at_peak),
        );
        table.row(
            "shared_at_peak",
            size(m.shared_at_peak),
            "Tables and compressed RAM then.",
        );
        table.row(
            "unpaged",
            size(m.unpaged),
            &format!(
                "Anonymous, not paged: {:.1} % of it and the most that was paged.",
                m.unpaged_share * 100.0
            ),
        );
        table.row("pagers", size(m.pagers), "The pagers' own, the most seen.");
        table.row(
            "samples",
            m.samples.to_string(),
            &format!("Taken of memory, in {:.3} s.", m.sampling_seconds),
        );
        table.row(
            "seconds",
            format!("{:.3}", self.seconds),
            "From exec to the last process's end.",
        );
        table.row(
            "direct_io",
            self.direct_io.to_string(),
            "True if pages were checked for pins by devices.",
        );
        if let Some(rate) = &self.fault_rate {
            table.row("fault_rate", String::new(), &rate.describe());
        }
    }

    fn counter_rows(&self, table: &mut Table) {
        for counter in Counter::ALL {
            let value = self.counter(*counter);
            let shown = match counter.key().ends_with("_bytes") {
                true => size(value),
                false => value.to_string(),
            };
            table.row(counter.key(), shown, counter.description());
        }
    }

    /// A row for each stage that has samples, in microseconds.
    fn stage_rows(&self, table: &mut Table) {
        for stage in Stage::ALL {
            let Some(figures) = self.stages.get(stage.key()) else {
                continue;
            };
            let StageFigures {
                count,
                p50_us,
                p99_us,
                p999_us,
            } = figures;
            let name = format!("{}_us", stage.key());
            let shown = format!("{p50_us} {p99_us} {p999_us}");
            let what = format!(
                "{} p50, p99 and p99.9 at most, of {count} samples.",
                stage.description().trim_end_matches('.')
            );
            table.row(&name, shown, &what);
        }
    }

    fn store_rows(&self, table: &mut Table) {
        table.row("store", String::new(), &self.store);
        let peak = &self.store_peak;
        table.row(
            "store_peak_ram",
            size(peak.ram_bytes),
            "The most seen in compressed RAM.",
        );
        table.row(
            "store_peak_disk",
            size(peak.disk_bytes),
            "The most seen on disk.",
        );
        table.row(
            "store_peak_pages",
            peak.pages.to_string(),
            "The most pages stored at one moment, copies of resident pages included.",
        );
        if let Some(ratio) = peak.compression_ratio {
            table.row(
                "compression_ratio",
                format!("{ratio:.2}"),
                "Of all pages put into compressed RAM.",
            );
        }
        table.row("  at the end", String::new(), "");
        for figure in Usage::FIGURES {
            if let Some(value) = self.store_usage.get(figure.key) {
                let name = format!("  {}", figure.key);
                table.row(&name, value.to_string(), figure.description);
            }
        }
    }
}
