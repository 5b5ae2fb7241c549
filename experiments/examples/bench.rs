//! The benchmarks without the `selfpage` command around them: `SELFPAGE` names one for
//! the arms that need it.

use clap::Parser;
use experiments::{Bench, Myself};
use std::process::ExitCode;

#[derive(Parser)]
struct Command {
    #[command(subcommand)]
    bench: Bench,
}

fn main() -> ExitCode {
    let done =
        Myself::new(&[]).and_then(|myself| experiments::run(&Command::parse().bench, &myself));
    done.unwrap_or_else(|failure| {
        eprintln!("bench: {failure}");
        ExitCode::from(125)
    })
}
