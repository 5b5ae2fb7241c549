//! `selfpage bench`: starts `selfpage-bench`, a program of its own, with the same arguments.

use std::error::Error;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The program's file name.
const NAME: &str = "selfpage-bench";

/// Names the program where it is not beside this one.
const VARIABLE: &str = "SELFPAGE_BENCH";

/// Compare with the alternatives in the same run, and print ratios.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// A benchmark and its options: `selfpage bench --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process.
pub fn bench(args: BenchArgs) -> Result<ExitCode, Box<dyn Error>> {
    let paths = candidates();
    let Some(program) = paths.iter().find(|path| path.is_file()) else {
        let paths: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
        return Err(format!(
            "{NAME} is not installed: looked for {}; build it (cargo build), install it beside `selfpage`, or name \
             it in {VARIABLE}",
            paths.join(", ")
        )
        .into());
    };
    let failure = Command::new(program).args(args.arguments).exec();
    Err(format!("cannot start {}: {failure}", program.display()).into())
}

/// Where the program may be: named, beside this one (a build), or in the installation.
fn candidates() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return vec![named.into()];
    }
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new("."));
    ["", "../lib/selfpage"]
        .map(|folder| beside.join(folder).join(NAME))
        .into()
}
