//! GNU sort of a file that it holds in memory whole.

use super::goal::Bound;
use super::ground::{Grounds, Medium, found};
use super::launch::{self, Done, Start};
use super::{Case, FITS, Side, lines};
use crate::ExperimentError;
use crate::error::while_doing;
use crate::keeper::Owed;
use std::path::PathBuf;
use std::process::Command;

/// What sort holds of a line besides its bytes, at most.
const A_LINE: u64 = 64;

/// MiB of short lines that one thread sorts in a second of processor time here.
const PACE: u64 = 55;

/// A file of lines, and memory for it.
pub struct Sort {
    program: PathBuf,
    input: PathBuf,
    /// Bytes that sort needs.
    buffer: u64,
    frames: u64,
    /// None where it fits.
    medium: Option<Medium>,
    _input: Owed,
}

impl Sort {
    /// Long lines, more of them than memory holds.
    pub fn larger(
        grounds: &Grounds<'_>,
        bytes: u64,
        frames: u64,
        medium: Medium,
    ) -> Result<Self, ExperimentError> {
        let mut sort = Self::of(grounds, bytes, 100..401)?;
        (sort.frames, sort.medium) = (frames, Some(medium));
        Ok(sort)
    }

    /// Short lines that fit: sorting them is work for the processor.
    pub fn fitting(grounds: &Grounds<'_>, seconds: u64) -> Result<Self, ExperimentError> {
        Self::of(grounds, (seconds * PACE) << 20, 20..60)
    }

    fn of(
        grounds: &Grounds<'_>,
        bytes: u64,
        lengths: std::ops::Range<u64>,
    ) -> Result<Self, ExperimentError> {
        let program = found("sort", "coreutils")?;
        let (input, owed) = grounds.base.file("lines")?;
        let lines = lines::write(&input, bytes, lengths)?;
        let buffer = bytes + lines * A_LINE + (16 << 20);
        Ok(Self {
            program,
            input,
            buffer,
            frames: buffer * 5 / 4,
            medium: None,
            _input: owed,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LC_ALL", "C");
        // One buffer for all: no temporary files.
        command.args([
            "--parallel=1",
            &format!("--buffer-size={}K", self.buffer >> 10),
        ]);
        command.arg(&self.input);
        command
    }

    /// Reads the input once: both sides find it in the page cache.
    fn warm(&self) -> Result<(), ExperimentError> {
        let reading = || format!("read {}", self.input.display());
        let mut file = std::fs::File::open(&self.input).map_err(while_doing(reading()))?;
        std::io::copy(&mut file, &mut std::io::sink())
            .map(drop)
            .map_err(while_doing(reading()))
    }
}

impl Case for Sort {
    fn about(&self) -> (String, String, Bound) {
        match self.medium {
            None => ("sort within frames".into(), "without us".into(), FITS),
            Some(medium) => {
                let [ours, kernels] = medium.names();
                (
                    format!("sort under run, {ours}"),
                    kernels.into(),
                    Bound::AtMost(1.0),
                )
            }
        }
    }

    fn run(&self, grounds: &Grounds<'_>, side: Side) -> Result<Done, ExperimentError> {
        self.warm()?;
        let medium = self.medium.unwrap_or(Medium::Ram);
        let program = self.command();
        let mut ignore = |_: &[u8]| ();
        let command = match side {
            Side::Ours => {
                let ours = grounds.ours(medium, self.buffer)?;
                let command = grounds.paged(self.frames, &ours.store, &program)?;
                return Ok(launch::run(
                    command,
                    Start::Now,
                    grounds.limit,
                    &mut ignore,
                )?);
            }
            Side::Beside if self.medium.is_none() => grounds.alone(program)?,
            Side::Beside => {
                let mut gated = || launch::gated(&program);
                return grounds.in_cgroup(
                    medium,
                    self.buffer,
                    self.frames,
                    &mut gated,
                    &mut ignore,
                );
            }
        };
        Ok(launch::run(
            command,
            Start::Now,
            grounds.limit,
            &mut ignore,
        )?)
    }
}
