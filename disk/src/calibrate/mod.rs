//! What a disk can do, measured in seconds before anything is promised of it.
//!
//! *Self-Paging*, section 6.7, charges a transaction the time that it took. A disk that serves
//! many at once needs to be told what one costs before it is done ([`crate::cost_model`]), and how
//! much may be in flight before more only makes everybody wait. Both are the disk's own, so
//! they are measured on it: reads and writes of three sizes, at depths from 1 to 96.
//!
//! | file | what it is |
//! |---|---|
//! | `load` | keeps so many transactions in flight, and counts |
//! | `sweep` | which loads, in which order, in the time there is |
//! | `judge` | from counts to a model, pure |
//!
//! Rules:
//! - Taking data is apart from judging it: a [`Calibration`] keeps every sample, and a program
//!   that judges otherwise needs no disk for it.
//! - Bounded: it ends about when it was told to, with what it has by then, on the slowest disk
//!   too (there, once what is in flight has ended).
//! - It reads and writes nothing outside the extents it is given, and overwrites those.

mod error;
mod knee;
mod load_generator;
mod sweep;

pub use error::CalibrateError;

use crate::cost_model::{CostModel, Op};
use crate::swapfs::{Extent, FileName, SwapFs, UNIT};
use crate::time::Nanos;
use rustix::fd::{AsFd, BorrowedFd};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use sweep::Sweep;

/// Sizes measured, in bytes: a page, a window of a stream, the largest request.
pub const SIZES: [u32; 3] = [4 << 10, 32 << 10, 128 << 10];

/// Depths measured.
pub const DEPTHS: [u32; 9] = [1, 2, 4, 8, 16, 32, 48, 64, 96];

/// Bytes that transactions are spread over, where there is room: more than a disk's own cache
/// is worth, less than takes long to write.
pub const SCRATCH: u64 = 256 << 20;

/// How long it takes unless told otherwise. Three rounds of all loads, each as long as a disk
/// needs to show its rate.
pub const TIME: Duration = Duration::from_secs(4);

/// One load and what came of it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Reads or writes.
    pub op: Op,
    /// Bytes of every transaction.
    pub bytes: u32,
    /// Transactions in flight.
    pub depth: u32,
    /// Transactions a second. The median, where it was tried several times.
    pub rate: f64,
    /// How long one took, on average.
    pub latency: Nanos,
}

/// A disk, measured. The owner keeps it, beside the filesystem's id.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// What may be charged and promised.
    pub model: CostModel,
    /// What that was judged by.
    pub samples: Vec<Sample>,
}

/// How far a calibration is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CalibrationProgress {
    /// Time spent.
    pub done: Duration,
    /// Time it may take.
    pub total: Duration,
    /// What is being done.
    pub phase: CalibrationPhase,
}

/// What a calibration is phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CalibrationPhase {
    /// Writing what will be read: a file's parts that were never written cost no disk.
    Filling,
    /// One load.
    Loading {
        /// Reads or writes.
        op: Op,
        /// Bytes of every transaction.
        bytes: u32,
        /// Transactions in flight.
        depth: u32,
    },
}

impl Calibration {
    /// Measures the disk of `fs` on a file of its own, which is released again. The disk is
    /// busy meanwhile, so before anybody holds a contract.
    pub fn of(
        fs: &mut SwapFs,
        time: Duration,
        progress: &mut dyn FnMut(CalibrationProgress),
    ) -> Result<Self, CalibrateError> {
        let name = FileName::new(b"calibration's scratch").map_err(|_| CalibrateError::Nothing)?;
        // One that was killed left it.
        if let Some(left) = fs.find(&name).map(|file| file.id()) {
            fs.release(left)?;
        }
        let size = fs.usage().free.clamp(UNIT, SCRATCH);
        let scratch = fs.create(name, size, &[])?;
        let extents = fs.unscrubbed(scratch)?;
        let device = fs.medium().clone();
        let measured = Self::on(device.as_fd(), &extents, time, progress);
        fs.release(scratch)?;
        measured
    }

    /// Measures the disk that `fd` has open, direct if it is to be the disk and not memory that
    /// is measured. All of `scratch` is overwritten.
    pub fn on(
        fd: BorrowedFd<'_>,
        scratch: &[Extent],
        time: Duration,
        progress: &mut dyn FnMut(CalibrationProgress),
    ) -> Result<Self, CalibrateError> {
        let samples = Sweep::new(fd, scratch, time, progress)?.run()?;
        let model = knee::model(&samples).ok_or(CalibrateError::Nothing)?;
        Ok(Self { model, samples })
    }

    /// The least depth at which `op` of so many bytes has nine tenths of the rate it has at any;
    /// nothing for a size that was not measured.
    pub fn knee(&self, op: Op, bytes: u32) -> Option<u32> {
        knee::knee(&knee::class(&self.samples, op, bytes)).map(|knee| knee.depth)
    }
}

/// A table for people: a line for each kind of transaction, then what follows from it.
impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for op in [Op::Read, Op::Write] {
            for bytes in SIZES {
                let class = knee::class(&self.samples, op, bytes);
                let Some(knee) = knee::knee(&class) else {
                    continue;
                };
                let verb = match op {
                    Op::Read => "read",
                    Op::Write => "write",
                };
                writeln!(
                    f,
                    "{verb:5} {:4} KiB: {:.0}/s alone ({}), {:.0}/s at most, from depth {} on",
                    bytes >> 10,
                    class.first().map_or(0.0, |alone| alone.rate),
                    class.first().map_or(Nanos::ZERO, |alone| alone.latency),
                    knee.saturated,
                    knee.depth,
                )?;
            }
        }
        let CostModel {
            read,
            write,
            bound,
            capacity,
        } = self.model;
        writeln!(f, "a read costs {} and {} a KiB", read.base, read.per_kib)?;
        writeln!(
            f,
            "a write costs {} and {} a KiB",
            write.base, write.per_kib
        )?;
        write!(f, "in flight at once: {bound}; to be promised: {capacity}")
    }
}
