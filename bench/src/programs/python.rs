//! CPython at a pure computation whose heap grows while it runs.

use super::child::{self, Done, Start};
use super::medium::Medium;
use super::{Benchmark, FITS, System};
use crate::env::find_program;
use crate::prelude::*;

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
    pub fn new(seconds: u64) -> Result<Self> {
        Ok(Self {
            program: find_program("python3", "python3")?,
            steps: seconds * PACE,
        })
    }
}

impl Benchmark for Python {
    fn about(&self) -> (String, &'static str, Bound) {
        ("CPython within frames".into(), "without us", FITS)
    }

    fn run(&self, env: &TestEnv, side: System) -> Result<Done> {
        let mut program = Command::new(&self.program);
        program.args(["-I", "-c", include_str!("compute.py")]);
        program.arg(self.steps.to_string());
        let (store, _guard) = Medium::Ram.store(env, FRAMES / 8)?;
        let command = match side {
            System::Ours => env.paged(FRAMES, &store, &program)?,
            System::Beside => env.alone(program)?,
        };
        child::run(command, Start::Now, env.limit, &mut |_| ())
    }
}
