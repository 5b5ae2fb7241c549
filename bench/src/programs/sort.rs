//! GNU sort of a file that it holds in memory whole.

use super::child::{self, Done, Start};
use super::medium::Medium;
use super::{Benchmark, FITS, System, lines};
use crate::env::find_program;
use crate::prelude::*;
use crate::process::gated;

/// What sort holds of a line besides its bytes, at most.
const A_LINE: u64 = 64;

/// MiB of short lines that one thread sorts in a second of processor time here.
const PACE: u64 = 55;

/// A file of lines, and memory for it.
pub struct Sort {
    program: PathBuf,
    input: OwnedFile,
    /// Bytes that sort needs.
    buffer: u64,
    frames: u64,
    /// None where it fits.
    medium: Option<Medium>,
}

impl Sort {
    /// Long lines, more of them than memory holds.
    pub fn larger(env: &TestEnv, bytes: u64, frames: u64, medium: Medium) -> Result<Self> {
        let mut sort = Self::of(env, bytes, 100..401)?;
        (sort.frames, sort.medium) = (frames, Some(medium));
        Ok(sort)
    }

    /// Short lines that fit: sorting them is work for the processor.
    pub fn fitting(env: &TestEnv, seconds: u64) -> Result<Self> {
        Self::of(env, (seconds * PACE) << 20, 20..60)
    }

    fn of(env: &TestEnv, bytes: u64, lengths: std::ops::Range<u64>) -> Result<Self> {
        let program = find_program("sort", "coreutils")?;
        let input = env.file("lines")?;
        let lines = lines::write(&input, bytes, lengths)?;
        let buffer = bytes + lines * A_LINE + (16 << 20);
        Ok(Self {
            program,
            input,
            buffer,
            frames: buffer * 5 / 4,
            medium: None,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LC_ALL", "C");
        // One buffer for all: no temporary files.
        let buffer = format!("--buffer-size={}K", self.buffer >> 10);
        command.args(["--parallel=1", &buffer]).arg(&*self.input);
        command
    }

    /// Reads the input once: both sides find it in the page cache.
    fn warm(&self) -> Result<()> {
        let file = std::fs::File::open(&self.input);
        let read = file.and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
        read.map(drop).at("read", &self.input)
    }
}

impl Benchmark for Sort {
    fn about(&self) -> (String, &'static str, Bound) {
        match self.medium {
            None => ("sort within frames".into(), "without us", FITS),
            Some(medium) => {
                let [ours, kernels] = medium.names();
                (
                    format!("sort under run, {ours}"),
                    kernels,
                    Bound::AtMost(1.0),
                )
            }
        }
    }

    fn run(&self, env: &TestEnv, side: System) -> Result<Done> {
        self.warm()?;
        let medium = self.medium.unwrap_or(Medium::Ram);
        let program = self.command();
        let mut ignore = |_: &[u8]| ();
        let (store, _guard);
        let command = match side {
            System::Ours => {
                (store, _guard) = medium.store(env, self.buffer)?;
                env.paged(self.frames, &store, &program)?
            }
            System::Beside if self.medium.is_none() => env.alone(program)?,
            System::Beside => {
                let gated = || Ok(gated(&program));
                let (bytes, memory) = (self.buffer, self.frames);
                return medium.run_in_cgroup(env, bytes, memory, gated, &mut ignore);
            }
        };
        child::run(command, Start::Now, env.limit, &mut ignore)
    }
}
