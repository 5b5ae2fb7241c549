//! `selfpage bench paging`: more data than memory, ours beside the alternatives.

use crate::arm::{self, Arm, Bench};
use crate::keeper::Keeper;
use crate::machine::Machine;
use crate::report::{Report, Row};
use crate::{ExperimentError, Myself};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// MiB of data.
    #[arg(long, default_value_t = 512)]
    pub data: u64,
    /// MiB of memory for it.
    #[arg(long, default_value_t = 64)]
    pub frames: u64,
    /// Random accesses in each pass.
    #[arg(long, default_value_t = 20_000)]
    pub accesses: u64,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    pub threads: u64,
    /// Times each arm is run; the median counts.
    #[arg(long, default_value_t = 3)]
    pub repeats: u64,
    /// Only these arms, by name.
    #[arg(long, value_delimiter = ',')]
    pub arms: Vec<Arm>,
    /// Folder for swap files and stores, on the disk to be measured.
    #[arg(long, default_value = "/var/tmp")]
    pub folder: PathBuf,
    /// The `selfpage` command, where this is not it.
    #[arg(long)]
    pub selfpage: Option<PathBuf>,
    /// Writes all figures here.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Measures and prints. The status is a failure only where an arm of ours gave wrong data
/// or none though it could have.
pub fn run(options: &Options, myself: &Myself) -> Result<ExitCode, ExperimentError> {
    check(options)?;
    let arms = if options.arms.is_empty() {
        Arm::ALL.to_vec()
    } else {
        options.arms.clone()
    };
    let bench = Bench {
        myself,
        keeper: Keeper::start(myself)?,
        selfpage: arm::selfpage(options.selfpage.as_deref()),
        folder: options.folder.clone(),
        bytes: options.data << 20,
        frames: options.frames << 20,
        accesses: options.accesses,
        threads: options.threads,
    };
    let mut report = Report {
        machine: Machine::now(&options.folder),
        data_bytes: bench.bytes,
        frames_bytes: bench.frames,
        accesses: options.accesses,
        threads: options.threads,
        repeats: options.repeats,
        rows: arms.iter().map(|arm| Row::new(*arm)).collect(),
    };
    for repeat in 0..options.repeats {
        // Rotated, so that no arm always follows the same one.
        for k in 0..arms.len() {
            let at = (k + repeat as usize) % arms.len();
            let row = &mut report.rows[at];
            if row.failure.is_some() {
                continue;
            }
            say(&format!(
                "{} of {}: {}",
                repeat + 1,
                options.repeats,
                row.arm.about()
            ));
            match bench.run(row.arm, repeat + 1) {
                Ok(figures) => row.runs.push(figures),
                Err(failure) => row.failure = Some(failure),
            }
        }
    }
    say("");
    print!("{report}");
    if let Some(path) = &options.json {
        report.save(path)?;
        println!("all figures: {}", path.display());
    }
    Ok(if report.failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn check(options: &Options) -> Result<(), ExperimentError> {
    let absurd = |what: &str| Err(ExperimentError::Options(what.to_owned()));
    if options.frames == 0 || options.data < options.frames {
        return absurd("there must be more data than memory: --data and --frames are in MiB");
    }
    if options.data > 1 << 20 {
        return absurd("more than 1 TiB of data is not measured here");
    }
    if options.threads == 0
        || options.threads > 256
        || options.repeats == 0
        || options.accesses < options.threads
    {
        return absurd("there must be 1 to 256 threads, a repeat, and an access for each thread");
    }
    if !options.folder.is_dir() {
        return absurd(&format!("{} is not a folder", options.folder.display()));
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
