//! The figures at the end: one model, from which the line, the table and the JSON come.

use super::Format;
use super::plan::ReportOutput;
use link::stats_page::Metric;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;
use store::{Occupancy, Store};
use supervisor::Supervisor;
use supervisor::run::FinishedRun;
use wired::PAGE;

/// Above this share of unpaged memory `run` warns.
const UNPAGED_WARNING: f64 = 0.10;

/// No warning below this size: most of a small program is its data, stacks and loader, which
/// are not worth paging.
const UNPAGED_LEAST: u64 = 4 << 20;

/// All figures at the end. Sizes are in bytes, times in seconds.
#[derive(Serialize)]
pub struct Report {
    /// The command line.
    program: Vec<String>,
    /// Its exit status, or 128 and the signal that ended it.
    status: i32,
    seconds: f64,
    /// The contract.
    frames: u64,
    frames_bytes: u64,
    /// The most frames held at one moment, counted.
    frames_peak_bytes: u64,
    store: String,
    /// True for a run within another, which has the contract and the figures.
    nested: bool,
    /// Processes that paged; each image of a process counts as one.
    processes: u64,
    memory: Memory,
    /// Sums of the counters of the tree's domains: see `figures_mean`.
    figures: BTreeMap<&'static str, u64>,
    store_usage: BTreeMap<&'static str, u64>,
    store_peak: StorePeak,
    /// The limits of the fault rate, where there were any.
    fault_rate: Option<FaultRate>,
    /// True if a process could do direct I/O, so that pages were checked for pins.
    direct_io: bool,
}

/// The limits in force at the end, in faults a period (0 is none), and what a fault cost.
#[derive(Serialize)]
struct FaultRate {
    period_ns: u64,
    task_limit: u32,
    tree_limit: u32,
    system_limit: u32,
    /// Processor time of a fault, measured: the mean, and that of each class that came.
    fault_unit_ns: u64,
    fault_unit_ns_of: BTreeMap<&'static str, u64>,
    samples: u64,
}

impl FaultRate {
    fn gather(limits: rate::SharedLimits<'_>) -> Option<Self> {
        let setting = limits.snapshot().limits;
        let units = limits.units();
        let of = |class: &rate::FaultClass| (class.name(), units.of(*class));
        setting.is_limited().then(|| Self {
            period_ns: setting.fault_period,
            task_limit: setting.task_limit,
            tree_limit: setting.tree_limit,
            system_limit: setting.system_limit,
            fault_unit_ns: units.fault_unit(),
            fault_unit_ns_of: rate::FaultClass::ALL
                .iter()
                .map(of)
                .filter(|(_, unit)| *unit > 0)
                .collect(),
            samples: units.samples(),
        })
    }

    fn describe(&self) -> String {
        let limit = |limit: u32| match limit {
            0 => "no limit".to_owned(),
            limit => limit.to_string(),
        };
        format!(
            "{} for each thread, {} for all, in {:?}; {} ns a fault ({} measured).",
            limit(self.task_limit),
            limit(self.tree_limit),
            Duration::from_nanos(self.period_ns),
            self.fault_unit_ns,
            self.samples
        )
    }
}

/// Peak usage of the store. Its usage at the end is that of pages without an owner.
#[derive(Serialize)]
struct StorePeak {
    /// The peak of each tier.
    ram_bytes: u64,
    disk_bytes: u64,
    /// Bytes of the pages put into compressed RAM, by what they took there; of all of them.
    /// None where there were none.
    compression_ratio: Option<f64>,
}

impl StorePeak {
    fn gather(system: &Supervisor, seen: Occupancy) -> Self {
        let most = system.store_peak().max(seen);
        let usage = system.store().map(Store::usage).unwrap_or_default();
        let packed = usage.to_ram_bytes as f64;
        Self {
            ram_bytes: most.ram,
            disk_bytes: most.disk,
            compression_ratio: (usage.to_ram > 0)
                .then(|| (usage.to_ram * PAGE as u64) as f64 / packed),
        }
    }
}

/// The tree's memory by the kernel's count.
#[derive(Serialize)]
struct Memory {
    /// Highest sampled sum of Pss_Anon.
    peak_anonymous: u64,
    /// Shared memory (tables and compressed RAM) at that moment.
    shared_at_peak: u64,
    processes_at_peak: u64,
    /// Most anonymous memory outside all pagers.
    unpaged: u64,
    /// The pagers' own memory, the most seen: tables, buffers, stacks.
    pagers: u64,
    /// Its share of all anonymous memory in use then, resident or stored.
    unpaged_share: f64,
    /// Number of samples, and their time.
    samples: u64,
    sampling_seconds: f64,
}

impl Report {
    /// Takes every figure.
    pub fn gather(
        FinishedRun {
            spec,
            supervisor: system,
            sampler,
            time,
            status,
        }: &FinishedRun<'_>,
    ) -> Self {
        let status = *status;
        let nested = spec.store.is_none();
        let samples = *sampler.samples();
        // Its processes page in the outer run, which alone knows the unpaged memory.
        let (peak, worst) = match nested {
            true => Default::default(),
            false => (samples.peak, samples.worst),
        };
        let lossy = |s: &std::ffi::CString| s.to_string_lossy().into_owned();
        Self {
            program: spec.program.arguments.iter().map(lossy).collect(),
            status: match libc::WIFSIGNALED(status) {
                true => 128 + libc::WTERMSIG(status),
                false => libc::WEXITSTATUS(status),
            },
            seconds: time.as_secs_f64(),
            frames: spec.frames.into(),
            frames_bytes: u64::from(spec.frames) * PAGE as u64,
            frames_peak_bytes: u64::from(system.ledger().peak_owned()) * PAGE as u64,
            store: system
                .store()
                .map_or_else(|| "none".into(), |store| store.describe()),
            nested,
            processes: system.processes(),
            memory: Memory {
                peak_anonymous: peak.anonymous,
                shared_at_peak: peak.shared,
                processes_at_peak: peak.processes,
                unpaged: worst.unpaged,
                pagers: worst.pagers,
                unpaged_share: worst.unpaged_share(),
                samples: samples.taken,
                sampling_seconds: samples.spent.as_secs_f64(),
            },
            figures: Metric::ALL
                .iter()
                .map(|figure| (figure.key(), system.figure(*figure)))
                .collect(),
            store_usage: system.store().map(usage).unwrap_or_default(),
            store_peak: StorePeak::gather(system, samples.store),
            fault_rate: FaultRate::gather(system.board().limits()),
            direct_io: system
                .board()
                .careful()
                .load(std::sync::atomic::Ordering::Relaxed)
                != 0,
        }
    }

    /// Prints and writes the requested figures.
    pub fn give(&self, output: &ReportOutput) {
        match output.stats {
            None => supervisor::say!("{}", self.line()),
            Some(Format::Table) => supervisor::say!("{}\n{}", self.line(), self.table().trim_end()),
            Some(Format::Json) => supervisor::say!("{}", self.json()),
        }
        if let Some(warning) = self.warning() {
            supervisor::say!("selfpage: warning: {warning}");
        }
        if let Some(mut file) = output.json.as_ref()
            && let Err(why) = file.write_all((self.json() + "\n").as_bytes())
        {
            supervisor::say!("selfpage: cannot write the figures: {why}");
        }
    }

    fn figure(&self, figure: Metric) -> u64 {
        self.figures.get(figure.key()).copied().unwrap_or(0)
    }

    /// The summary in one line.
    pub fn line(&self) -> String {
        if self.nested {
            return format!(
                "selfpage: ran in the contract of the `selfpage run` around it, which has the figures; {:.2} s",
                self.seconds
            );
        }
        let frames = size(self.frames_bytes);
        let mut line = match self.processes {
            0 => format!("selfpage: {frames} of frames; nothing was paged"),
            _ => self.paged(&frames),
        };
        // Sampled, so a short program has no figure; and most memory of a small one is never
        // paged, which needs no warning.
        if self.memory.unpaged > UNPAGED_LEAST {
            let _ = write!(line, "; not paged {}", size(self.memory.unpaged));
        }
        let _ = write!(line, "; {:.2} s", self.seconds);
        line
    }

    /// What the paging took.
    fn paged(&self, frames: &str) -> String {
        let figure = |figure| self.figure(figure);
        let (processes, faults) = (self.processes, figure(Metric::Faults));
        let mut line = format!(
            "selfpage: {frames} of frames, peak {}; {processes} {}, {faults} page faults",
            size(self.frames_peak_bytes),
            if processes == 1 {
                "process"
            } else {
                "processes"
            },
        );
        let kinds = [
            (Metric::FromRam, "from compressed RAM"),
            (Metric::FromDisk, "from disk"),
            (Metric::FromAhead, "read ahead"),
        ];
        let parts: Vec<_> = kinds
            .iter()
            .filter(|(kind, _)| figure(*kind) > 0)
            .map(|(kind, name)| format!("{} {name}", figure(*kind)))
            .collect();
        if !parts.is_empty() {
            let _ = write!(line, " ({})", parts.join(", "));
        }
        if figure(Metric::Written) > 0 {
            let _ = write!(line, "; {} pages written", figure(Metric::Written));
        }
        let throttled = figure(Metric::ThrottledFaults);
        if throttled > 0 {
            let seconds = figure(Metric::ThrottledUs) as f64 / 1e6;
            let _ = write!(
                line,
                "; {throttled} faults throttled, {seconds:.2} s asleep in them"
            );
        }
        line
    }

    /// Warnings for the user.
    fn warning(&self) -> Option<String> {
        let lost = self.figure(Metric::Lost);
        if lost > 0 {
            return Some(format!(
                "{lost} {} could not be read back from the store, or found no room; the program got an error (SIGBUS) \
                 at each",
                if lost == 1 { "page" } else { "pages" }
            ));
        }
        let much = !self.nested
            && self.memory.unpaged_share > UNPAGED_WARNING
            && self.memory.unpaged > UNPAGED_LEAST;
        much.then(|| {
            format!(
                "{} of anonymous memory ({:.0} %) was not paged and is outside the contract: static programs, \
                 thread stacks, or memory from before the pager came in",
                size(self.memory.unpaged),
                self.memory.unpaged_share * 100.0
            )
        })
    }

    /// All figures, a line each.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mut row = |name: &str, value: String, what: &str| {
            let _ = writeln!(out, "  {name:<22}{value:>16}  {what}");
        };
        let m = &self.memory;
        row(
            "frames",
            self.frames.to_string(),
            &format!("The contract: {}.", size(self.frames_bytes)),
        );
        row(
            "frames_peak",
            size(self.frames_peak_bytes),
            "The most held at one moment, counted.",
        );
        row("processes", self.processes.to_string(), "That paged.");
        row(
            "peak_anonymous",
            size(m.peak_anonymous),
            &format!("Of the tree, {} processes.", m.processes_at_peak),
        );
        row(
            "shared_at_peak",
            size(m.shared_at_peak),
            "Tables and compressed RAM then.",
        );
        row(
            "unpaged",
            size(m.unpaged),
            &format!("{:.1} % of what was in use then.", m.unpaged_share * 100.0),
        );
        row("pagers", size(m.pagers), "The pagers' own, the most seen.");
        row(
            "samples",
            m.samples.to_string(),
            &format!("Taken of memory, in {:.3} s.", m.sampling_seconds),
        );
        row(
            "seconds",
            format!("{:.3}", self.seconds),
            "From exec to the last process's end.",
        );
        row(
            "direct_io",
            self.direct_io.to_string(),
            "Pages were checked for pins.",
        );
        if let Some(rate) = &self.fault_rate {
            row("fault_rate", String::new(), &rate.describe());
        }
        for figure in Metric::ALL {
            let value = self.figure(*figure);
            let shown = if figure.key().ends_with("_bytes") {
                size(value)
            } else {
                value.to_string()
            };
            row(figure.key(), shown, figure.describe());
        }
        row("store", String::new(), &self.store);
        let peak = &self.store_peak;
        row(
            "store_peak_ram",
            size(peak.ram_bytes),
            "The most seen in compressed RAM.",
        );
        row(
            "store_peak_disk",
            size(peak.disk_bytes),
            "The most seen on disk.",
        );
        if let Some(ratio) = peak.compression_ratio {
            row(
                "compression_ratio",
                format!("{ratio:.2}"),
                "Of all pages put into compressed RAM.",
            );
        }
        row("  at the end", String::new(), "");
        for (name, value) in &self.store_usage {
            row(&format!("  {name}"), value.to_string(), "");
        }
        out
    }

    /// All figures, as JSON.
    pub fn json(&self) -> String {
        // Plain numbers and strings always serialize.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn usage(store: &impl Store) -> BTreeMap<&'static str, u64> {
    let u = store.usage();
    BTreeMap::from([
        ("pages_ram", u.pages_ram),
        ("pages_filled", u.pages_filled),
        ("pages_disk", u.pages_disk),
        ("ram_compressed", u.ram_compressed),
        ("ram_used", u.ram_used),
        ("ram_limit", u.ram_limit),
        ("disk_used", u.disk_used),
        ("disk_limit", u.disk_limit),
        ("tables", u.tables),
        ("holds", u.holds),
        ("written", u.written),
        ("read", u.read),
        ("read_disk", u.read_disk),
        ("demoted", u.demoted),
        ("compacted", u.compacted),
        ("mismatches", u.mismatches),
        ("io_errors", u.io_errors),
        ("ios", u.ios),
    ])
}

/// Formats bytes with a unit.
pub fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_say_them() {
        let cases = [
            (0, "0 B"),
            (4096, "4 KiB"),
            (64 << 20, "64 MiB"),
            ((64 << 20) + 300_000, "64.3 MiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }
}
