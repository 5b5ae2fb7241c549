//! `selfpage bench remote`: a page from a paging server over loopback, beside what people run today.
//!
//! *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp, 1991), section 4: table 2 has
//! the parts of a remote page fault's time. Here every arm gets pages of 4 KiB, as many, with the same
//! contents, in no order, from a server on this machine that was filled before, and checks them.
//! Arms take turns in one run.
//!
//! What is not the same: memcached, redis and the raw sockets are read by one thread that sleeps in
//! `read`, as their clients do, and in the arms named so by one that polls; the page-in is a fault of
//! an unmodified program, with its pager and the remote client between. So the page-in has two more
//! processes in its way than what it is compared with.
//!
//! The stages of a page-in are differences of the arms' medians: each arm has one stage more than the
//! one before.

mod arm;
mod channel;
mod fixed_reply;
mod page_in;
mod paging_server;
mod rebuild;
mod server_process;
mod source;

use crate::prelude::*;
use crate::repeats::{Repeats, run_each};
use crate::table::digits;
use arm::RemoteArm;
use clap::value_parser;
pub use page_in::RemotePlan;
pub use page_in::serve;
pub use rebuild::RebuildPlan;
pub use rebuild::serve as serve_rebuild;
use serde_json::json;
pub use source::Figures;
use std::process::ExitCode;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct RemoteOptions {
    /// MiB of data.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u64).range(8..=1 << 14))]
    pub data: u64,
    /// Pages read, one at a time, and as many again pipelined.
    #[arg(long, default_value_t = 5_000, value_parser = value_parser!(u64).range(100..))]
    pub accesses: u64,
    /// Requests under way where they are pipelined, and threads of the program that pages.
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u64).range(2..=64))]
    pub depth: u64,
    /// Times each arm is run; the median counts.
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    pub repeats: u64,
    /// Only these arms; without it all but those that have a server killed.
    #[arg(long, value_delimiter = ',')]
    pub arms: Vec<RemoteArm>,
    /// Arms that have a server killed have it stopped instead: it keeps its connections and answers nothing.
    #[arg(long)]
    pub stop: bool,
    /// A quick look: 8 MiB, 1000 pages, 2 runs.
    #[arg(long)]
    pub quick: bool,
    /// Where it works, and where its figures go.
    #[command(flatten)]
    pub env: EnvOptions,
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Pages of data.
    pub pages: u64,
    /// Pages read of each kind.
    pub accesses: u64,
    /// Requests under way.
    pub depth: usize,
    /// Makes the order.
    pub seed: u64,
    /// A server is stopped, where one is killed otherwise.
    pub is_stopped: bool,
}

/// An arm and its runs.
type Series = Repeats<RemoteArm, Figures>;

/// A figure of a run.
type Figure = fn(&Figures) -> Option<f64>;

const P50: Figure = |figures| Some(figures.p50_us);
const P99: Figure = |figures| Some(figures.p99_us);
const PIPELINED: Figure = |figures| figures.pipelined_us;

/// Measures and prints.
pub fn run(options: &RemoteOptions) -> Result<ExitCode> {
    let mut options = options.clone();
    if options.quick {
        (options.data, options.accesses, options.repeats) = (8, 1000, 2);
    }
    let env = TestEnv::new(&options.env)?;
    let machine = Machine::now(&env.folder);
    let mut all: Vec<Series> = Repeats::of(&chosen(&options));
    for repeat in 0..options.repeats {
        let amount = Amount {
            pages: options.data << 8,
            accesses: options.accesses,
            depth: options.depth as usize,
            seed: repeat + 1,
            is_stopped: options.stop,
        };
        run_each(&mut all, repeat, |arm, _| {
            let (turn, of, name) = (repeat + 1, options.repeats, arm.name());
            progress(&format!("repeat {turn} of {of}: {name}"));
            arm::run(&env, arm, amount)
        });
    }
    progress("");
    let mut report = Report::new("remote", machine, vec![settings(&options)]);
    report.rows = rows(&mut all, options.depth);
    report.tables = vec![table(&all), stages(&all)];
    report.tables.extend(rebuild::table(&all));
    let runs: Vec<_> = all
        .iter()
        .map(|one| json!({ "arm": one.arm.name(), "about": one.arm.about(), "runs": one.runs }))
        .collect();
    report.data.extend([
        ("arms".to_owned(), runs.into()),
        ("data_bytes".to_owned(), (options.data << 20).into()),
        ("accesses".to_owned(), options.accesses.into()),
        ("depth".to_owned(), options.depth.into()),
        ("repeats".to_owned(), options.repeats.into()),
    ]);
    report.publish(options.env.json.as_deref())
}

fn chosen(options: &RemoteOptions) -> Vec<RemoteArm> {
    let is_chosen = |arm: &&RemoteArm| match options.arms.is_empty() {
        true => !arm.is_rebuild(),
        false => options.arms.contains(arm),
    };
    let arms = RemoteArm::value_variants().iter().filter(is_chosen);
    arms.copied().collect()
}

fn settings(options: &RemoteOptions) -> String {
    format!(
        "{} MiB in pages of 4 KiB that compress 2:1, over loopback without keys; the program that pages has an eighth of \
         it in frames;\n{} pages in no order, one at a time over one connection, then as many {} deep (by as many threads \
         where\na program pages); server, client and program share the processors; {} interleaved and rotated runs; \
         contents verified",
        options.data, options.accesses, options.depth, options.repeats
    )
}

/// A row of the report: what it is, of which arm, beside which other, by which figure, in which unit.
type Comparison = (
    &'static str,
    RemoteArm,
    RemoteArm,
    Figure,
    &'static str,
    Bound,
);

/// What has to hold, and what it is beside.
fn comparisons() -> [Comparison; 9] {
    use Bound::{AtLeast, AtMost, Open};
    use RemoteArm::{Disk, Echo, Memcached, MemcachedPolled, PageIn, Redis, Server};
    let (page_in, page_in_tail) = ("page-in, p50", "page-in, p99");
    let (read, read_tail) = ("read of the server, p50", "read of the server, p99");
    [
        (page_in, PageIn, Memcached, P50, "us", AtMost(0.6)),
        (page_in_tail, PageIn, Memcached, P99, "us", AtMost(0.8)),
        (read, Server, Memcached, P50, "us", AtMost(0.6)),
        (read_tail, Server, Memcached, P99, "us", AtMost(0.8)),
        (
            "deep",
            Server,
            Memcached,
            PIPELINED,
            "pages/s",
            AtLeast(2.5),
        ),
        (page_in, PageIn, Redis, P50, "us", Open),
        (page_in, PageIn, Disk, P50, "us", Open),
        (page_in, PageIn, Echo, P50, "us", Open),
        (read, Server, MemcachedPolled, P50, "us", Open),
    ]
}

/// The rows of the report; those of arms that did not run say why.
fn rows(all: &mut [Series], depth: u64) -> Vec<Row> {
    let rows = comparisons()
        .into_iter()
        .map(|(what, ours, beside, figure, unit, bound)| {
            let of = |arm: RemoteArm| {
                let series = all.iter().find(|one| one.arm == arm);
                series.map_or(Vec::new(), |one| {
                    one.runs.iter().filter_map(figure).collect()
                })
            };
            let what = match unit {
                "pages/s" => format!("{}, {depth} {what}", ours.name()),
                _ => what.to_owned(),
            };
            let row = Row::new(what, unit, bound).beside(beside.name());
            Row {
                rate: (unit == "pages/s").then_some(1e6),
                ..row.pairs(of(ours), of(beside))
            }
        });
    let mut rows: Vec<Row> = rows.filter(|row| !row.samples.is_empty()).collect();
    let failed = all.iter_mut().filter_map(|one| {
        let failure = one.failure.take()?;
        Some(Row::lacking(one.arm.name(), failure))
    });
    rows.extend(failed);
    rows
}

fn median_of(all: &[Series], arm: RemoteArm, figure: Figure) -> Option<f64> {
    let one = all.iter().find(|one| one.arm == arm)?;
    median(&one.runs.iter().filter_map(figure).collect::<Vec<_>>())
}

fn table(all: &[Series]) -> Table {
    let mut table = Table::new("medians of the runs", ["p50 us", "p99 us", "pages/s, deep"]);
    for one in all {
        let of = |figure| median_of(all, one.arm, figure);
        let cells = [of(P50), of(P99), of(PIPELINED).map(|us| 1e6 / us)];
        let cells = cells.map(|cell| cell.map_or("-".to_owned(), digits));
        table.row(one.arm.name(), cells, &one.arm.about());
    }
    table
}

/// Where the time of a page-in goes: the paper's table 2.
fn stages(all: &[Series]) -> Table {
    let mut table = Table::new("stages of a page-in, p50", ["us"]);
    let arms = [
        ("wire: both sockets, both ways", RemoteArm::EchoPolled),
        (
            "server: schedule, look-up, checksum, and the reader's",
            RemoteArm::Server,
        ),
        (
            "channel and client: schedule, checks, copy, wake-ups",
            RemoteArm::Channel,
        ),
        (
            "dispatch and placing: fault, pager, store, copy",
            RemoteArm::PageIn,
        ),
    ];
    let mut before = 0.0;
    for (stage, arm) in arms {
        let Some(until) = median_of(all, arm, P50) else {
            table.row::<&str>(stage, [], "not measured");
            continue;
        };
        table.row(stage, [digits(until - before)], "");
        before = until;
    }
    table
}
