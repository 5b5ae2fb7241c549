//! The figures at the end: one model, from which the line, the table and the JSON come.

mod summary;
mod table;

use super::Format;
use super::figures_file::FiguresError;
use super::plan::ReportOutput;
use crate::machine;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use store::{Occupancy, Store, Usage};
use supervisor::Supervisor;
use supervisor::run::FinishedRun;
use wired::{Counter, PAGE, Stage, StageHistogram};

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
    /// True for a run under a contract with the daemon, which covers memory that is not paged, too.
    #[serde(skip)]
    has_daemon: bool,
    /// Processes that paged; each image of a process counts as one.
    processes: u64,
    memory: Memory,
    /// The counters of the tree's domains, each added up as its `aggregation` says.
    counters: BTreeMap<&'static str, u64>,
    /// Where the time of the tree's faults went, by stage.
    stages: BTreeMap<&'static str, StageFigures>,
    /// The store's figures at the end, by the keys of [`Usage::FIGURES`].
    store_usage: BTreeMap<&'static str, u64>,
    store_peak: StorePeak,
    /// The limits of the fault rate, where there were any.
    fault_rate: Option<FaultRate>,
    /// True if a process could do direct I/O, so that pages were checked for pins.
    direct_io: bool,
}

/// The samples of a stage, and what so many of them took at most.
#[derive(Serialize)]
struct StageFigures {
    count: u64,
    p50_us: u64,
    p99_us: u64,
    p999_us: u64,
}

impl StageFigures {
    /// None of a stage without samples.
    fn of(histogram: &StageHistogram) -> Option<Self> {
        let us = |thousandths| Some(histogram.at_most(thousandths)?.as_micros() as u64);
        Some(Self {
            count: histogram.count(),
            p50_us: us(500)?,
            p99_us: us(990)?,
            p999_us: us(999)?,
        })
    }
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
    /// The most pages stored at one moment, copies of resident pages included.
    pages: u64,
    /// Bytes of the pages put into compressed RAM, by what they took there; of all of them.
    /// None where there were none.
    compression_ratio: Option<f64>,
}

impl StorePeak {
    fn gather(supervisor: &Supervisor, seen: Occupancy) -> Self {
        let most = supervisor.store_peak().max(seen);
        let usage = supervisor.store().map(Store::usage).unwrap_or_default();
        let packed = usage.to_ram_bytes as f64;
        Self {
            ram_bytes: most.ram,
            disk_bytes: most.disk,
            pages: most.pages,
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
    /// Its share of that and the most memory that was paged.
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
            supervisor,
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
        let store_peak = StorePeak::gather(supervisor, samples.store);
        let frames_peak = u64::from(supervisor.ledger().peak_owned());
        // Most resident pages have a stored copy, so the stored ones are nearly all.
        let paged = frames_peak.max(store_peak.pages) * PAGE as u64;
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
            frames_peak_bytes: frames_peak * PAGE as u64,
            store: supervisor
                .store()
                .map_or_else(|| "none".into(), |store| store.describe()),
            nested,
            has_daemon: spec.daemon.is_some(),
            processes: supervisor.processes(),
            memory: Memory {
                peak_anonymous: peak.anonymous,
                shared_at_peak: peak.shared,
                processes_at_peak: peak.processes,
                unpaged: worst.unpaged,
                pagers: worst.pagers,
                unpaged_share: share(worst.unpaged, paged),
                samples: samples.taken,
                sampling_seconds: samples.spent.as_secs_f64(),
            },
            counters: Counter::ALL
                .iter()
                .map(|counter| (counter.key(), supervisor.counter(*counter)))
                .collect(),
            stages: Stage::ALL
                .iter()
                .filter_map(|stage| {
                    let figures = StageFigures::of(&supervisor.stage(*stage))?;
                    Some((stage.key(), figures))
                })
                .collect(),
            store_usage: supervisor.store().map(usage).unwrap_or_default(),
            store_peak,
            fault_rate: FaultRate::gather(supervisor.stats_page().limits()),
            direct_io: supervisor
                .stats_page()
                .careful()
                .load(std::sync::atomic::Ordering::Relaxed)
                != 0,
        }
    }

    /// Prints and writes the requested figures.
    pub fn give(&self, output: &ReportOutput) -> Result<(), FiguresError> {
        match output.stats {
            None => print_error!("{}", self.line()),
            Some(Format::Table) => print_error!("{}\n{}", self.line(), self.table().trim_end()),
            Some(Format::Json) => print_error!("{}", self.json()),
        }
        if let Some(why) = self.cause_of_kill(output.oom_kills) {
            print_error!("selfpage: {why}");
        }
        if let Some(warning) = self.warning() {
            print_error!("selfpage: warning: {warning}");
        }
        match &output.json {
            Some(file) => file.write(&(self.json() + "\n")),
            None => Ok(()),
        }
    }

    /// What may have killed the program.
    fn cause_of_kill(&self, oom_kills: u64) -> Option<String> {
        if self.status != 128 + libc::SIGKILL {
            return None;
        }
        let who = match machine::oom_kills() > oom_kills {
            true => {
                "most likely the kernel, which killed processes for want of memory meanwhile (`dmesg` names them)"
            }
            false => {
                "a user, its limit of processor time, or the end of its pager process, which a user killed; or it \
                 returned that status itself"
            }
        };
        Some(format!(
            "status 137 is that of a program that was killed (SIGKILL): by {who}"
        ))
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter.key()).copied().unwrap_or(0)
    }

    /// All figures, as JSON.
    pub fn json(&self) -> String {
        // Plain numbers and strings always serialize.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn usage(store: &impl Store) -> BTreeMap<&'static str, u64> {
    let usage = store.usage();
    let figures = Usage::FIGURES.iter();
    figures
        .map(|figure| (figure.key, (figure.value)(&usage)))
        .collect()
}

/// `part` of itself and the `rest`.
fn share(part: u64, rest: u64) -> f64 {
    part as f64 / (part + rest).max(1) as f64
}
