//! Calibration: measures a disk for some seconds before anything is promised of it.
//!
//! *Self-Paging*, section 6.7, charges a transaction its elapsed time. A disk that serves many at
//! once needs the cost of a transaction before it starts ([`crate::cost_model`]), and the depth
//! beyond which more in flight only adds waiting. Both are properties of the disk, so they are
//! measured on it: reads and writes of three sizes, at depths from 1 to 96.
//!
//! | file | what it is |
//! |---|---|
//! | `load_generator` | keeps a fixed number of transactions in flight, and counts |
//! | `sweep` | the loads and their order, within the time allowed |
//! | `knee` | from samples to a model, pure |
//!
//! Rules:
//! - Measuring is apart from analysis: a [`Calibration`] keeps every sample, and another analysis
//!   needs no disk.
//! - Bounded: it ends at about the time allowed, with the samples it has by then, on the slowest
//!   disk too (there, once its I/O in flight has completed).
//! - It reads and writes nothing outside the extents it is given, and overwrites those.

mod error;
mod knee;
mod load_generator;
mod sweep;

pub use error::CalibrateError;
pub use knee::CAPACITY;

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

/// Bytes that transactions are spread over, where there is room: more than a disk's own cache helps
/// with, less than takes long to write.
pub const SCRATCH: u64 = 256 << 20;

/// Default duration. Three rounds of all loads, each as long as a disk needs to show its rate.
pub const TIME: Duration = Duration::from_secs(4);

/// One load and its result.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationSample {
    /// Reads or writes.
    pub op: Op,
    /// Bytes of every transaction.
    pub bytes: u32,
    /// Transactions in flight.
    pub depth: u32,
    /// Transactions a second. The median of several rounds.
    pub rate: f64,
    /// Mean latency of a transaction.
    pub latency: Nanos,
}

/// The calibration of a disk. The owner keeps it, beside the filesystem's id.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The derived model.
    pub model: CostModel,
    /// The samples it was derived from.
    pub samples: Vec<CalibrationSample>,
}

/// Progress of a calibration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CalibrationProgress {
    /// Elapsed time.
    pub done: Duration,
    /// Allowed time.
    pub total: Duration,
    /// The present phase.
    pub phase: CalibrationPhase,
}

/// A phase of a calibration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CalibrationPhase {
    /// Writes the blocks that will be read: reading parts of a file that were never written costs
    /// no disk time.
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
    /// Measures the disk of `fs` on a file of its own, and releases it. The disk is busy meanwhile,
    /// so call this before any contract is admitted.
    pub fn of(
        fs: &mut SwapFs,
        time: Duration,
        progress: &mut dyn FnMut(CalibrationProgress),
    ) -> Result<Self, CalibrateError> {
        let name = FileName::new(b"calibration's scratch").map_err(|_| CalibrateError::Nothing)?;
        // A calibration that was killed left it.
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

    /// Measures the disk that `fd` has open; with direct I/O, else the page cache is measured.
    /// Overwrites all of `scratch`.
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

    /// The least depth at which `op` of so many bytes reaches nine tenths of its highest rate;
    /// `None` for a size that was not measured.
    pub fn knee(&self, op: Op, bytes: u32) -> Option<u32> {
        knee::knee(&knee::class(&self.samples, op, bytes)).map(|knee| knee.depth)
    }
}

/// A table for people: a line for each kind of transaction, then the model.
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
