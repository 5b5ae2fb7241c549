//! CPython at a pure computation whose heap grows while it runs.

use super::goal::Bound;
use super::ground::{Grounds, Medium, found};
use super::launch::{self, Done, Start};
use super::{Case, FITS, Side};
use crate::ExperimentError;
use std::path::PathBuf;
use std::process::Command;

/// Steps in a second here, of processor time.
const PACE: u64 = 450_000;

/// More than the table of four million entries takes: 1.1 GB.
const FRAMES: u64 = 2 << 30;

/// An interpreter and how many steps it takes.
pub struct Python {
    program: PathBuf,
    steps: u64,
}

impl Python {
    /// As many steps as take about so long.
    pub fn new(seconds: u64) -> Result<Self, ExperimentError> {
        Ok(Self {
            program: found("python3", "python3")?,
            steps: seconds * PACE,
        })
    }
}

impl Case for Python {
    fn about(&self) -> (String, String, Bound) {
        ("CPython within frames".into(), "without us".into(), FITS)
    }

    fn run(&self, grounds: &Grounds<'_>, side: Side) -> Result<Done, ExperimentError> {
        let mut program = Command::new(&self.program);
        program.args(["-I", "-c", include_str!("compute.py")]);
        program.arg(self.steps.to_string());
        let ours = grounds.ours(Medium::Ram, FRAMES / 8)?;
        let command = match side {
            Side::Ours => grounds.paged(FRAMES, &ours.store, &program)?,
            Side::Beside => grounds.alone(program)?,
        };
        Ok(launch::run(
            command,
            Start::Now,
            grounds.limit,
            &mut |_| (),
        )?)
    }
}
