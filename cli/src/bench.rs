//! `selfpage bench`: the tables and figures of the papers, and comparisons.

use std::error::Error;
use std::process::ExitCode;

/// Compare with the alternatives in the same run, and print ratios.
#[derive(clap::Args)]
pub struct Args {
    /// Which table or figure.
    name: Option<String>,
}

/// Runs one.
pub fn bench(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let name = args.name.unwrap_or_default();
    Err(format!("no benchmark is called {name:?}: this build has none").into())
}
