//! `selfpage bench qos`: programs under contracts beside each other.
//!
//! Nemesis's claim is that a program which pages hard disturbs itself alone. Its figures 7,
//! 8 and 9 (section 7.2, 7.3) are made again here with real processes under the system
//! domain, and judged by figures: shares of charged time, bytes, the scheduler's rules. Then
//! what the paper does not have: a device promised whole, Linux's own answers to the same
//! neighbour, revocation ten thousand times, and what the daemon costs.

mod backing;
mod forgetful;
pub mod guest;
pub mod neighbour;
pub mod pager;
pub mod picture;
pub mod progress;
pub mod schedule;
pub mod shares;
mod system;

use crate::error::while_doing;
use crate::keeper::{Debt, Keeper, Owed};
use crate::machine::Machine;
use crate::real::goal::Report;
use crate::{ExperimentError, Myself, trial};
use clap::ValueEnum;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
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
    #[arg(long, default_value_t = 1000.0)]
    pub rate: f64,
    /// Folder for swap files, on the disk to be measured.
    #[arg(long, default_value = "/var/tmp")]
    pub folder: PathBuf,
    /// The `selfpage` command, where this is not it.
    #[arg(long)]
    pub selfpage: Option<PathBuf>,
    /// Writes all figures here, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// A victim beside a neighbour: ours and Linux's answers.
    Neighbour,
}

/// What all parts share.
pub struct Grounds<'a> {
    myself: &'a Myself,
    keeper: Keeper,
    selfpage: Option<PathBuf>,
    folder: PathBuf,
    calibration: PathBuf,
}

impl Grounds<'_> {
    /// The `selfpage` command.
    fn selfpage(&self) -> Result<&Path, ExperimentError> {
        self.selfpage.as_deref().ok_or_else(|| {
            ExperimentError::Unavailable(
                "there is no `selfpage` command here: name it with --selfpage or SELFPAGE".into(),
            )
        })
    }

    /// A file of the benchmark's; the name is free again when the debt is settled.
    fn file(&self, name: &str) -> Result<(PathBuf, Owed), ExperimentError> {
        let path = place(&self.folder, name);
        let owed = self.keeper.owe(Debt::File(path.clone()))?;
        Ok((path, owed))
    }
}

fn place(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("selfpage-bench-{}.{name}", std::process::id()))
}

/// Measures and prints.
pub fn run(options: &Options, myself: &Myself) -> Result<ExitCode, ExperimentError> {
    check(options)?;
    let keeper = Keeper::start(myself)?;
    let folder = options
        .folder
        .canonicalize()
        .map_err(while_doing(format!("find {}", options.folder.display())))?;
    let calibration = place(&folder, "calibration");
    let _calibrated = keeper.owe(Debt::File(calibration.clone()))?;
    let grounds = Grounds {
        myself,
        keeper,
        selfpage: trial::selfpage(options.selfpage.as_deref()),
        folder,
        calibration,
    };
    let machine = Machine::now(&grounds.folder);
    let asked = |part| options.only.is_empty() || options.only.contains(&part);
    let mut rows = Vec::new();
    if asked(Part::Neighbour) {
        rows.extend(neighbour::rows(&grounds, options));
    }
    say("");
    Report {
        experiment: "qos",
        machine,
        settings: settings(options),
        rows,
    }
    .publish(options.json.as_deref())
}

fn settings(options: &Options) -> Vec<String> {
    vec![format!(
        "neighbours: {} and {} MiB over an eighth of memory, {} accesses a second due, phases of {} s, {} repeats",
        options.victim, options.neighbour, options.rate, options.phase, options.repeats
    )]
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
        return absurd("--rate, --phase and --repeats must be more than 0");
    }
    Ok(())
}

/// What is being done, on one line of a terminal; nothing where nobody watches.
fn say(what: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{what}");
        let _ = err.flush();
    }
}
