//! One workload (or all), bare and under a contract, with progress and figures.

use clap::Parser;
use e2e::contract::{Contract, MIB, Size};
use e2e::verdict::Halt;
use e2e::workload::{self, Comparison, Workload};
use indicatif::{ProgressBar, ProgressStyle};
use std::process::ExitCode;
use std::time::Duration;

/// Runs real programs without the pager and with it, and compares their results.
#[derive(Parser)]
struct WorkloadOptions {
    /// Which: a name, or `all`.
    #[arg(default_value = "sort")]
    name: String,
    /// An eighth of the full size.
    #[arg(long)]
    quick: bool,
    /// MiB of frames; 64, or 16 when quick.
    #[arg(long)]
    frames: Option<u64>,
}

fn main() -> ExitCode {
    let options = WorkloadOptions::parse();
    let size = if options.quick {
        Size::Quick
    } else {
        Size::Full
    };
    let chosen: Vec<_> = workload::ALL
        .iter()
        .filter(|w| options.name == "all" || w.name == options.name)
        .collect();
    if chosen.is_empty() {
        let names: Vec<_> = workload::ALL.iter().map(|w| w.name).collect();
        eprintln!(
            "there is no workload {:?}: there are {}, and all",
            options.name,
            names.join(", ")
        );
        return ExitCode::from(2);
    }
    let contract = options
        .frames
        .map_or_else(|| size.contract(), |mib| Contract::new(mib * MIB));
    let failures = chosen
        .iter()
        .filter(|w| !report(w, size, &contract))
        .count();
    ExitCode::from(u8::from(failures > 0))
}

/// Runs a workload and prints its figures. Returns true if it did not fail.
fn report(workload: &Workload, size: Size, contract: &Contract) -> bool {
    let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}");
    let bar = ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(100));
    println!("{}", (workload.about)(size));
    let say = |what: &str| {
        if bar.is_hidden() {
            println!("  {what} ...");
        }
        bar.set_message(what.to_owned());
    };
    let ended = workload::compare(workload, size, contract.clone(), &say);
    bar.finish_and_clear();
    match ended {
        Ok(comparison) => {
            figures(&comparison, contract.frames);
            true
        }
        Err(Halt::Skipped(reason)) => {
            println!("  SKIPPED: {reason}");
            true
        }
        Err(halt) => {
            println!("  FAILED: {halt}");
            false
        }
    }
}

fn figures(comparison: &Comparison, frames: u64) {
    let line = |name: &str, product: &workload::Product| {
        let (wall, footprint) = (
            product.outcome.wall.as_secs_f64(),
            product.outcome.footprint,
        );
        println!(
            "  {name:<22} {wall:8.1} s {:>8} MiB anonymous at its peak",
            footprint.peak / MIB
        );
    };
    line("without the pager", &comparison.bare);
    let Some(paged) = &comparison.paged else {
        println!("  (only without the pager, on request)");
        return;
    };
    line("under the contract", paged);
    let (bare, with) = (&comparison.bare.outcome, &paged.outcome);
    println!(
        "  ratio                  {:8.2} x {:>8.2} x; the results are the same",
        with.wall.as_secs_f64() / bare.wall.as_secs_f64(),
        with.footprint.peak as f64 / bare.footprint.peak as f64,
    );
    println!(
        "  The program has {} MiB of frames, and {:.1} times that of data: the time is what paging the rest costs (`--store` \
         chooses where to).\n  Memory beyond the frames is the pagers' own and what is not paged (`pagers` and `unpaged` in \
         `--stats`).",
        frames / MIB,
        bare.footprint.peak as f64 / frames as f64
    );
    for line in with.stderr.lines().filter(|l| l.contains("selfpage")) {
        println!("  {line}");
    }
}
