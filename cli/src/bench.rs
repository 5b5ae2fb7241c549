//! `selfpage bench`: the tables and figures of the papers, and comparisons.

use experiments::{Bench, Myself};
use std::error::Error;
use std::process::ExitCode;

/// Compare with the alternatives in the same run, and print ratios.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Bench,
}

/// Runs one.
pub fn bench(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let myself = Myself::new(&["bench"])?;
    Ok(experiments::run(&args.what, &myself)?)
}
