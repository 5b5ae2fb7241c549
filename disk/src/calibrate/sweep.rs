//! The loads of a calibration and their order, within the time allowed.
//!
//! Runs rounds of all loads, so that a short disturbance of the machine affects one sample of each
//! and the median of none. A class goes to greater depths only as long as its rate grows: on a disk
//! that serves one at a time, 64 in flight are a second of waiting.

use super::load_generator::{LoadGenerator, LoadResult};
use super::{
    CalibrateError, CalibrationPhase, CalibrationProgress, CalibrationSample, DEPTHS, SCRATCH,
    SIZES,
};
use crate::cost_model::Op;
use crate::swapfs::Extent;
use crate::time::Nanos;
use rustix::fd::BorrowedFd;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 3;

/// Fraction of the time for writing the blocks that will be read.
const FILL_FRACTION: u32 = 4;

/// Growth of the rate that makes a greater depth worthwhile; two depths in a row without it end the
/// class.
const MIN_GAIN: f64 = 1.05;

/// Results of one load, one a round.
struct LoadSamples {
    phase: (Op, u32, u32),
    counted: Vec<LoadResult>,
}

pub(super) struct Sweep<'a> {
    load: LoadGenerator<'a>,
    begun: Instant,
    total: Duration,
    progress: &'a mut dyn FnMut(CalibrationProgress),
    counts: Vec<LoadSamples>,
}

impl<'a> Sweep<'a> {
    pub fn new(
        fd: BorrowedFd<'a>,
        scratch: &[Extent],
        total: Duration,
        progress: &'a mut dyn FnMut(CalibrationProgress),
    ) -> Result<Self, CalibrateError> {
        let begun = Instant::now();
        let mut left = SCRATCH;
        let mut extents = scratch.to_vec();
        for extent in &mut extents {
            extent.len = extent.len.min(left);
            left -= extent.len;
        }
        Ok(Self {
            load: LoadGenerator::new(fd, &extents)?,
            begun,
            total,
            progress,
            counts: Vec::new(),
        })
    }

    /// The median of every load that ran.
    pub fn run(mut self) -> Result<Vec<CalibrationSample>, CalibrateError> {
        self.report(CalibrationPhase::Filling);
        self.load.fill(self.total / FILL_FRACTION)?;
        let loads = (2 * SIZES.len() * DEPTHS.len()) as u32;
        let each = self.total.saturating_sub(self.begun.elapsed()) / (loads * ROUNDS);
        for op in [Op::Read, Op::Write] {
            for bytes in SIZES {
                self.deepen(op, bytes, each)?;
            }
        }
        for _ in 1..ROUNDS {
            for at in 0..self.counts.len() {
                if self.begun.elapsed() >= self.total {
                    break;
                }
                self.again(at, each)?;
            }
        }
        Ok(self.counts.iter_mut().map(median).collect())
    }

    /// The first round of a class. Depth 1 runs even when the time is over.
    fn deepen(&mut self, op: Op, bytes: u32, each: Duration) -> Result<(), CalibrateError> {
        let (mut best, mut in_vain) = (0.0, 0);
        for depth in DEPTHS {
            if in_vain == 2 || (depth > 1 && self.begun.elapsed() >= self.total) {
                break;
            }
            self.counts.push(LoadSamples {
                phase: (op, bytes, depth),
                counted: Vec::new(),
            });
            let rate = self.again(self.counts.len() - 1, each)?;
            in_vain = if rate < MIN_GAIN * best {
                in_vain + 1
            } else {
                0
            };
            best = f64::max(best, rate);
        }
        Ok(())
    }

    fn again(&mut self, at: usize, each: Duration) -> Result<f64, CalibrateError> {
        let (op, bytes, depth) = self.counts[at].phase;
        self.report(CalibrationPhase::Loading { op, bytes, depth });
        let counted = self.load.run(op, bytes, depth, each)?;
        self.counts[at].counted.push(counted);
        Ok(counted.rate)
    }

    fn report(&mut self, phase: CalibrationPhase) {
        (self.progress)(CalibrationProgress {
            done: self.begun.elapsed(),
            total: self.total,
            phase,
        });
    }
}

/// The median, as a sample.
fn median(counts: &mut LoadSamples) -> CalibrationSample {
    let (op, bytes, depth) = counts.phase;
    counts.counted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let middle = counts.counted.get(counts.counted.len() / 2);
    CalibrationSample {
        op,
        bytes,
        depth,
        rate: middle.map_or(0.0, |counted| counted.rate),
        latency: middle.map_or(Nanos::ZERO, |counted| counted.latency.into()),
    }
}
