//! `selfpage-fuzz`: random programs over their address space, with the pager and without.

use clap::{Args, Parser, Subcommand};
use fuzz::campaign::{Campaign, processor_hours};
use fuzz::execution::{Setup, compare};
use fuzz::program::Program;
use fuzz::{emit, generate, interpreter};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs random programs over their address space with the pager and without it, and
/// compares what they see.
#[derive(Debug, Parser)]
struct FuzzOptions {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Place {
    /// The binary under test [default: beside this one].
    #[arg(long, global = true)]
    selfpage: Option<PathBuf>,
    /// Seconds without progress after which a program is watched, and hangs after as many again
    /// in which none of its threads waits for a processor.
    #[arg(long, global = true, default_value_t = 30)]
    patience: u64,
    /// A folder on a disk, for working folders.
    #[arg(long, global = true, default_value = "/var/tmp")]
    folder: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs programs of one seed after the other.
    Run {
        /// For how long: 90s, 10m, 8h.
        #[arg(long = "for", default_value = "1m", value_parser = duration)]
        time: Duration,
        /// The first seed [default: by the clock].
        #[arg(long)]
        seed: Option<u64>,
        /// Programs at a time.
        #[arg(long, default_value_t = 1)]
        jobs: usize,
        /// Where programs that fail are kept.
        #[arg(long, default_value = "target/fuzz")]
        findings: PathBuf,
    },
    /// Runs the programs in files, each as often as asked.
    Replay {
        /// The files.
        files: Vec<PathBuf>,
        /// How often.
        #[arg(long, default_value_t = 1)]
        times: u32,
    },
    /// Prints the program of a seed.
    Show {
        /// The seed.
        seed: u64,
    },
    /// Prints the program in a file as C.
    Emit {
        /// The file.
        file: PathBuf,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("expected a number and s, m or h".into()),
    };
    let number: u64 = digits.parse().map_err(|e| format!("{digits}: {e}"))?;
    Ok(Duration::from_secs(number * unit))
}

fn main() -> ExitCode {
    match run(FuzzOptions::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("selfpage-fuzz: {error}");
            ExitCode::from(125)
        }
    }
}

/// Returns true if this machine has protection keys.
fn has_protection_keys() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" ospke"))
}

/// Returns true if nothing differed.
fn run(options: FuzzOptions) -> Result<bool, Box<dyn Error>> {
    let setup = |folder: &Path| -> Result<Setup, Box<dyn Error>> {
        Ok(Setup {
            interpreter: interpreter::build(folder)?,
            selfpage: match &options.place.selfpage {
                Some(path) => path.canonicalize()?,
                None => std::env::current_exe()?.with_file_name("selfpage"),
            },
            patience: Duration::from_secs(options.place.patience),
            folder: options.place.folder.clone(),
            written_pages: Arc::default(),
        })
    };
    let build_in = || tempfile::tempdir_in(&options.place.folder);
    match options.command {
        Command::Run {
            time,
            seed,
            jobs,
            findings,
        } => {
            let by_clock = || {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                now.map_or(1, |t| t.as_secs() * 1000)
            };
            let built = build_in()?;
            run_campaign(&Campaign {
                setup: setup(built.path())?,
                seed: seed.unwrap_or_else(by_clock),
                time,
                jobs,
                findings,
            })
        }
        Command::Replay { files, times } => {
            let built = build_in()?;
            let setup = setup(built.path())?;
            let mut same = true;
            for file in files {
                let program = Program::parse(&std::fs::read_to_string(&file)?)?;
                for _ in 0..times {
                    if let Some(difference) = compare(&setup, &program)? {
                        println!("{}:\n{difference}", file.display());
                        same = false;
                    }
                }
            }
            Ok(same)
        }
        Command::Show { seed } => {
            print!("{}", generate::program(seed));
            Ok(true)
        }
        Command::Emit { file } => {
            let program = Program::parse(&std::fs::read_to_string(file)?)?;
            print!("{}", emit::source(&program));
            Ok(true)
        }
    }
}

/// Returns true if nothing differed.
fn run_campaign(campaign: &Campaign) -> Result<bool, Box<dyn Error>> {
    println!("seeds from {} on", campaign.seed);
    if !has_protection_keys() {
        println!("SKIPPED: protection keys, which this processor does not have");
    }
    let results = campaign.run()?;
    for (kind, times) in &results.differences {
        println!("{times} times: {kind}");
    }
    for wrong in &results.wrong {
        println!("wrong by itself: {wrong}");
    }
    let differing: u64 = results.differences.values().sum();
    let written = campaign.setup.written_pages.load(Ordering::Relaxed);
    println!(
        "{} seeds, {:.2} hours of processor time, {written} pages written to stores, {differing} differences of {} kinds; those \
         kept are in {}",
        results.seeds,
        processor_hours(),
        results.differences.len(),
        campaign.findings.display()
    );
    if written == 0 {
        return Err("no page was written to a store: the runs have not exercised paging".into());
    }
    Ok(differing == 0 && results.wrong.is_empty())
}
