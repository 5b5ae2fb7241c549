//! Cost of the disk's thread on a real disk, and whether contracts for all of it are kept.
//!
//!     cargo run --release -p disk --example usd_cost -- DIRECTORY [PART]...
//!
//! | part | what it measures |
//! |---|---|
//! | `latency` | one page at a time by a channel, beside the same without one |
//! | `shares` | contracts of 1:2:4 for all of the disk, beside the disk unscheduled; a newcomer's wait |
//! | `flood` | the same, with a client that rings its doorbell in a loop |
//! | `thread` | processor time of the thread a transaction, beside that of a bare ring; idle contracts |
//!
//! The disk is calibrated first. The variants run in turn, several times over, and medians are
//! printed. All run in one process: client processes would add their own cost.

mod asker;
mod ground;
mod latency;
mod shares;
mod thread;
mod unscheduled;

use ground::Ground;
use std::error::Error;
use std::path::{Path, PathBuf};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let mut args = std::env::args_os().skip(1);
    let directory = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let parts: Vec<_> = args.filter_map(|part| part.into_string().ok()).collect();
    let path = directory.join(format!("usd_cost.{}", std::process::id()));
    let result = run(&path, &parts);
    std::fs::remove_file(&path)?;
    result
}

fn run(path: &Path, parts: &[String]) -> Outcome {
    let ground = Ground::new(path)?;
    println!("{}", ground.calibration);
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    if wanted("latency") {
        latency::print(&ground)?;
    }
    if wanted("shares") {
        shares::print(&ground, 16, false)?;
        shares::print(&ground, 32, false)?;
    }
    if wanted("flood") {
        shares::print(&ground, 32, true)?;
    }
    if wanted("thread") {
        thread::print(&ground)?;
    }
    Ok(())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}
