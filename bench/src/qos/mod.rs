//! `selfpage bench qos`: programs under contracts beside each other.
//!
//! Nemesis's claim is that a program which pages hard disturbs itself alone. Its figures 7,
//! 8 and 9 (section 7.2, 7.3) are made again here with real processes under the
//! daemon, and judged by figures: shares of charged time, bytes, the scheduler's rules. Then
//! what the paper does not have: a device promised whole, Linux's own answers to the same
//! neighbour and to real programs, adversaries, revocation ten thousand times, and what the daemon costs.

mod adversary;
mod backing;
mod direct_disk;
mod figure;
mod neighbour;
mod overhead;
pub mod pager;
mod pair;
mod plot;
mod progress;
pub mod reader;
mod redis;
mod revocation;
mod saturation;
mod schedule;
mod shares;
pub mod subject;
mod write_only_driver;

pub use adversary::{AdversaryPlan, serve as serve_adversary};
pub use pager::PagerPlan;
pub use reader::ReaderPlan;
pub use subject::SubjectPlan;

use crate::cli_parse::positive;
use crate::daemon_fixture::DaemonDisk;
use crate::launch::LoadPlan;
use crate::prelude::*;
use crate::swap::{preallocated, write_out};
use clap::value_parser;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct QosOptions {
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Experiment>,
    /// Seconds of each of the paper's experiments.
    #[arg(long, default_value_t = 60.0, value_parser = positive)]
    pub seconds: f64,
    /// Seconds between two reports of a watch thread.
    #[arg(long, default_value_t = 5.0, value_parser = positive)]
    pub every: f64,
    /// Requests that the disk is given at a time in the paper's experiments: 1 is the paper's.
    #[arg(long, default_value_t = 1)]
    pub depth: u32,
    /// Microseconds that the disk's thread looks for work before it sleeps, in the paper's
    /// experiments.
    #[arg(long, default_value_t = 1000)]
    pub spin: u64,
    /// Times each arm of a comparison is run; the median counts.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u64).range(1..))]
    pub repeats: u64,
    /// Seconds of each phase of a comparison.
    #[arg(long, default_value_t = 5.0, value_parser = positive)]
    pub phase: f64,
    /// MiB of the victim's data; its memory is an eighth, redis-server's half.
    #[arg(long, default_value_t = 128, value_parser = value_parser!(u64).range(32..))]
    pub victim: u64,
    /// MiB of the neighbour's data; its memory is an eighth. stress-ng has as much memory, and half of the data.
    #[arg(long, default_value_t = 256, value_parser = value_parser!(u64).range(32..))]
    pub neighbour: u64,
    /// Only these arms of the victim's; all where none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub arms: Vec<pair::Arm>,
    /// Has four times as many threads as processors compute all the while; figures 7 and 8 are measured
    /// on the quiet machine first.
    #[arg(long)]
    pub busy: bool,
    /// Accesses of the victim's a second that are due.
    #[arg(long, default_value_t = 500.0, value_parser = positive)]
    pub rate: f64,
    /// Revocations.
    #[arg(long, default_value_t = 10_000)]
    pub rounds: u64,
    /// Holders among them that refuse.
    #[arg(long, default_value_t = 100)]
    pub refusals: u64,
    /// Where it works, and where its figures go.
    #[command(flatten)]
    pub env: EnvOptions,
    /// Draws the paper's figures in this folder, as SVG.
    #[arg(long, value_parser = crate::cli_parse::output_folder)]
    pub svg: Option<PathBuf>,
}

/// An experiment of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Experiment {
    /// Three applications that page in.
    Figure7,
    /// Three applications that page out.
    Figure8,
    /// A client that reads a file, alone and beside two that page.
    Figure9,
    /// A disk that is promised whole.
    Saturation,
    /// A victim beside a neighbour: ours and Linux's answers.
    Neighbour,
    /// redis-server beside stress-ng: ours and Linux's answers.
    Redis,
    /// A victim beside programs that do what they can to harm it.
    Adversary,
    /// Revocations from holders of every kind.
    Revocation,
    /// What the daemon costs.
    Overhead,
}

/// Measures and prints.
pub fn run(options: &QosOptions) -> Result<ExitCode> {
    let mut env = TestEnv::new(&options.env)?;
    env.disk = Some(DaemonDisk::new(&env, swap(options))?);
    let chosen = |one: Experiment| options.only.is_empty() || options.only.contains(&one);
    let machine = Machine::now(&env.folder);
    let mut report = Report::new("qos", machine, settings(options, chosen));
    let json = options.env.json.as_deref();
    for one in Experiment::value_variants()
        .iter()
        .filter(|one| chosen(**one))
    {
        // These two have their figures on a quiet machine, too.
        let both = matches!(one, Experiment::Figure7 | Experiment::Figure8);
        let _computing = (options.busy && !both).then(compute).transpose()?;
        let rows = match one {
            Experiment::Figure7 => lacking("figure 7", figure::paging(&env, options, false)),
            Experiment::Figure8 => lacking("figure 8", figure::paging(&env, options, true)),
            Experiment::Figure9 => lacking("figure 9", figure::file_system(&env, options)),
            Experiment::Saturation => lacking("saturation", saturation::rows(&env, options)),
            Experiment::Neighbour => neighbour::rows(&env, options),
            Experiment::Redis => redis::rows(&env, options),
            Experiment::Adversary => adversary::rows(&env, options),
            Experiment::Revocation => lacking("revocation", revocation::rows(&env, options)),
            Experiment::Overhead => overhead::rows(&env, options),
        };
        progress("");
        report.publish_part(rows, json)?;
    }
    report.conclude(json)
}

/// Programs that only compute, on every processor: the load of `bench launch`, at its highest.
fn compute() -> Result<Worker> {
    let mut worker = WorkerPlan::Load(LoadPlan::endless()).start()?;
    worker.go()?;
    Ok(worker)
}

/// The rows of a part of it, or one with the reason that it has no figures.
fn lacking(what: &str, rows: Result<Vec<Row>>) -> Vec<Row> {
    rows.unwrap_or_else(|failure| vec![Row::lacking(what, failure)])
}

/// MiB of swap for whatever part wants most of it, calibration's own file included.
fn swap(options: &QosOptions) -> u64 {
    let of_neighbours = 2 * (options.victim + options.neighbour);
    of_neighbours.max(revocation::SWAP) + 64
}

/// A file of so many MiB that is all there, to be read: noise, and none of it in the page
/// cache.
fn data(env: &TestEnv, mib: u64) -> Result<OwnedFile> {
    let path = env.file("data")?;
    let file = preallocated(&path, mib << 20)?;
    let mut part = vec![0; 1 << 20];
    for n in 0..mib {
        for (k, word) in part.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&mix(n << 20 | k as u64).to_le_bytes());
        }
        file.write_all_at(&part, n << 20).at("write", &path)?;
    }
    write_out(&file, &path)?;
    Ok(path)
}

fn settings(options: &QosOptions, chosen: impl Fn(Experiment) -> bool) -> Vec<String> {
    let of_paper = format!(
        "figures: {} s each, {} request(s) at a time, the disk's thread spins for {} us; contracts of 250 ms, laxity 10 ms",
        options.seconds, options.depth, options.spin
    );
    let of_neighbours = format!(
        "neighbours: {} and {} MiB over an eighth of memory, {} accesses a second due, phases of {} s, {} repeats",
        options.victim, options.neighbour, options.rate, options.phase, options.repeats
    );
    let of_revocation = format!(
        "revocation: until frames were asked back {} times, {} holders that refuse among them",
        options.rounds, options.refusals
    );
    let of_redis = format!(
        "redis: {} MiB of values in half as much memory, one request in 11 writes; stress-ng --vm 4 of {} MiB in a quarter; otherwise as neighbours",
        options.victim,
        options.neighbour / 2
    );
    use Experiment::{Adversary, Figure7, Figure8, Figure9, Neighbour, Redis, Revocation};
    let of_load = match options.busy {
        true => format!(
            "beside {} threads that compute",
            LoadPlan::endless().threads
        ),
        false => "beside nothing that computes".to_owned(),
    };
    let lines = [
        (Experiment::value_variants().to_vec(), of_load),
        (vec![Figure7, Figure8, Figure9], of_paper),
        (vec![Neighbour, Redis, Adversary], of_neighbours),
        (vec![Redis], of_redis),
        (vec![Revocation], of_revocation),
    ];
    let wanted = lines
        .into_iter()
        .filter(|(of, _)| of.iter().any(|one| chosen(*one)));
    wanted.map(|(_, line)| line).collect()
}
