//! `selfpage bench qos`: programs under contracts beside each other.
//!
//! Nemesis's claim is that a program which pages hard disturbs itself alone. Its figures 7,
//! 8 and 9 (section 7.2, 7.3) are made again here with real processes under the system
//! domain, and judged by figures: shares of charged time, bytes, the scheduler's rules. Then
//! what the paper does not have: a device promised whole, Linux's own answers to the same
//! neighbour, revocation ten thousand times, and what the daemon costs.

mod backing;
mod figure;
mod forgetful;
pub mod guest;
pub mod neighbour;
mod overhead;
pub mod pager;
pub mod picture;
pub mod progress;
pub mod reader;
mod revocation;
mod saturation;
pub mod schedule;
pub mod shares;

mod unscheduled;

use crate::contents::mix;
use crate::error::while_doing;
use crate::ground::{Ground, GroundOptions};
use crate::keeper::Owed;
use crate::machine::Machine;
use crate::real::goal::{Bound, Report, Row, Sample};
use crate::swap::preallocated;
use crate::system::Disk;
use crate::{ExperimentError, Myself};
use clap::ValueEnum;
use rustix::fs::{Advice, fadvise};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Seconds of each of the paper's experiments.
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,
    /// Seconds between two reports of a watch thread.
    #[arg(long, default_value_t = 5.0)]
    pub every: f64,
    /// Requests that the disk is given at a time in the paper's experiments: 1 is the paper's.
    #[arg(long, default_value_t = 1)]
    pub depth: u32,
    /// Microseconds that the disk's thread looks for work before it sleeps, in the paper's
    /// experiments.
    #[arg(long, default_value_t = 1000)]
    pub spin: u64,
    /// Times each arm of a comparison is run; the median counts.
    #[arg(long, default_value_t = 3)]
    pub repeats: u64,
    /// Seconds of each phase of a comparison.
    #[arg(long, default_value_t = 5.0)]
    pub phase: f64,
    /// MiB of the victim's data; its memory is an eighth.
    #[arg(long, default_value_t = 128)]
    pub victim: u64,
    /// MiB of the neighbour's data; its memory is an eighth.
    #[arg(long, default_value_t = 256)]
    pub neighbour: u64,
    /// Accesses of the victim's a second that are due.
    #[arg(long, default_value_t = 500.0)]
    pub rate: f64,
    /// Revocations.
    #[arg(long, default_value_t = 10_000)]
    pub rounds: u64,
    /// Holders among them that refuse.
    #[arg(long, default_value_t = 100)]
    pub refusals: u64,
    /// Where it works, and where its figures go.
    #[command(flatten)]
    pub ground: GroundOptions,
    /// Draws the paper's figures in this folder, as SVG.
    #[arg(long, value_parser = crate::output::folder)]
    pub svg: Option<PathBuf>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
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
    /// Revocations from holders of every kind.
    Revocation,
    /// What the system domain costs.
    Overhead,
}

/// What all parts share.
pub struct Grounds<'a> {
    base: Ground<'a>,
    disk: Disk,
}

/// Measures and prints.
pub fn run(options: &Options, myself: &Myself) -> Result<ExitCode, ExperimentError> {
    check(options)?;
    let base = Ground::new(myself, &options.ground)?;
    let disk = Disk::new(&base, swap(options))?;
    let grounds = Grounds { base, disk };
    let machine = Machine::now(&grounds.base.folder);
    let asked = |part: Part| options.only.is_empty() || options.only.contains(&part);
    let mut rows = Vec::new();
    for part in Part::value_variants().iter().filter(|part| asked(**part)) {
        rows.extend(match part {
            Part::Figure7 => figure::paging(&grounds, options, false),
            Part::Figure8 => figure::paging(&grounds, options, true),
            Part::Figure9 => figure::file_system(&grounds, options),
            Part::Saturation => saturation::rows(&grounds, options),
            Part::Neighbour => neighbour::rows(&grounds, options),
            Part::Revocation => revocation::rows(&grounds, options),
            Part::Overhead => overhead::rows(&grounds, options),
        });
    }
    say("");
    Report {
        experiment: "qos",
        machine,
        settings: settings(options, asked),
        rows,
    }
    .publish(options.ground.json.as_deref())
}

/// MiB of swap for whatever part wants most of it, calibration's own file included.
fn swap(options: &Options) -> u64 {
    let of_neighbours = 2 * (options.victim + options.neighbour);
    of_neighbours.max(revocation::SWAP) + 64
}

/// A file of so many MiB that is all there, to be read: noise, and none of it in the page
/// cache.
fn data(grounds: &Grounds<'_>, mib: u64) -> Result<(PathBuf, Owed), ExperimentError> {
    let (path, owed) = grounds.base.file("data")?;
    let file = preallocated(&path, mib << 20)?;
    let mut part = vec![0; 1 << 20];
    for n in 0..mib {
        for (k, word) in part.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&mix(n << 20 | k as u64).to_le_bytes());
        }
        file.write_all_at(&part, n << 20)
            .map_err(while_doing(format!("write {}", path.display())))?;
    }
    file.sync_all()
        .and_then(|()| Ok(fadvise(&file, 0, None, Advice::DontNeed)?))
        .map_err(while_doing(format!("write out {}", path.display())))?;
    Ok((path, owed))
}

/// A row of one figure alone.
fn fact(what: String, bound: Bound, value: f64) -> Row {
    Row {
        what,
        beside: None,
        unit: "",
        bound,
        samples: vec![sample(value, None, &[])],
        failure: None,
    }
}

/// A row of one figure over another.
fn ratio(
    what: &str,
    beside: &str,
    unit: &'static str,
    bound: Bound,
    (ours, theirs): (f64, f64),
) -> Row {
    Row {
        what: what.to_owned(),
        beside: Some(beside.to_owned()),
        unit,
        bound,
        samples: vec![sample(ours, Some(theirs), &[])],
        failure: None,
    }
}

/// A row without a figure.
fn lacking(what: String, failure: ExperimentError) -> Row {
    Row {
        what,
        beside: None,
        unit: "",
        bound: Bound::Open,
        samples: Vec::new(),
        failure: Some(failure),
    }
}

fn sample(ours: f64, beside: Option<f64>, notes: &[(&str, f64)]) -> Sample {
    let notes = notes
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    Sample {
        ours,
        beside,
        notes: notes.collect(),
    }
}

fn settings(options: &Options, asked: impl Fn(Part) -> bool) -> Vec<String> {
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
    let figures = [Part::Figure7, Part::Figure8, Part::Figure9]
        .map(&asked)
        .contains(&true);
    [
        (figures, of_paper),
        (asked(Part::Neighbour), of_neighbours),
        (asked(Part::Revocation), of_revocation),
    ]
    .into_iter()
    .filter_map(|(asked, line)| asked.then_some(line))
    .collect()
}

fn check(options: &Options) -> Result<(), ExperimentError> {
    let absurd = |what: &str| Err(ExperimentError::Options(what.to_owned()));
    if options.victim < 32 || options.neighbour < 32 {
        return absurd("--victim and --neighbour are at least 32 MiB: an eighth is their memory");
    }
    let positive = [options.rate, options.phase]
        .iter()
        .all(|x| *x > 0.0 && x.is_finite());
    if !positive || options.repeats == 0 {
        return absurd("--rate, --phase, --seconds, --every and --repeats must be more than 0");
    }
    Ok(())
}

/// Prints the progress on one line of a terminal; nothing where stderr is no terminal.
fn say(what: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{what}");
        let _ = err.flush();
    }
}
