//! fault_unit: the processor time that one fault takes (section 4.1), measured continuously on
//! real faults.
//!
//! The paper takes it as constant. It is not: a zero page, a decompressed one and one read from
//! a disk differ by an order of magnitude, and so do machines. A limit needs the mean over the
//! faults that really happen, since it bounds their sum. So each class has a mean, and there is
//! one mean of all faults, in which a class counts as often as it is sampled.
//!
//! A sample may be an outlier (an interrupt charged to the thread it hits, a processor just
//! woken, a hypervisor): it counts as at most [`OUTLIER_FACTOR`] times the class's mean. So one
//! outlier moves a mean by at most half of it, and a real change of the cost is followed within
//! some tens of samples.

use crate::units::TimeNs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a fault gets its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum FaultClass {
    /// A zero page.
    ZeroFill = 0,
    /// A page still in memory, or read ahead.
    Memory = 1,
    /// A page from compressed RAM.
    Compressed = 2,
    /// A page read from a disk.
    Disk = 3,
    /// A page of a file.
    File = 4,
}

impl FaultClass {
    /// All classes.
    pub const ALL: [FaultClass; 5] = [
        FaultClass::ZeroFill,
        FaultClass::Memory,
        FaultClass::Compressed,
        FaultClass::Disk,
        FaultClass::File,
    ];

    /// Its name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            FaultClass::ZeroFill => "zero_fill",
            FaultClass::Memory => "memory",
            FaultClass::Compressed => "compressed",
            FaultClass::Disk => "disk",
            FaultClass::File => "file",
        }
    }
}

/// A sample counts as at most this multiple of the mean of its class.
pub const OUTLIER_FACTOR: u64 = 8;

/// A sample moves the mean of its class by one part in `CLASS_WEIGHT`, and the mean of all by one in `TOTAL_WEIGHT`.
const CLASS_WEIGHT: u64 = 16;
const TOTAL_WEIGHT: u64 = 64;

/// Fractions of a nanosecond in which means are kept, so that small means can move.
const FRACTION: u64 = 256;

/// Number of words: a mean for each class, one of all, and the number of samples.
pub const WORDS: usize = FaultClass::ALL.len() + 2;
const ALL: usize = FaultClass::ALL.len();
const SAMPLES: usize = ALL + 1;

/// The means, in words that processes share.
#[derive(Clone, Copy)]
pub struct FaultUnits<'a>(&'a [AtomicU64]);

impl<'a> FaultUnits<'a> {
    /// Means in [`WORDS`] words, all zero at first.
    ///
    /// # Panics
    /// Where there are fewer words.
    pub fn new(words: &'a [AtomicU64]) -> Self {
        assert!(words.len() >= WORDS, "words for the fault units");
        Self(words)
    }

    /// Sets the mean of all until the first sample; an existing mean stays.
    pub fn set_initial(&self, unit: TimeNs) {
        let fine = unit.saturating_mul(FRACTION);
        let _ = self.0[ALL].compare_exchange(0, fine, Relaxed, Relaxed);
    }

    /// Adds the processor time of one fault. Two concurrent samples may count as one.
    pub fn sample(&self, class: FaultClass, time: TimeNs) {
        let of_class = &self.0[class as usize];
        let mean = of_class.load(Relaxed);
        // The first sample of a class is bounded by the mean of all, if that is known.
        let known = if mean == 0 {
            self.0[ALL].load(Relaxed)
        } else {
            mean
        };
        let fine = time.max(1).saturating_mul(FRACTION);
        let fine = match known {
            0 => fine,
            known => fine.min(known.saturating_mul(OUTLIER_FACTOR)),
        };
        of_class.store(
            match mean {
                0 => fine,
                mean => toward(mean, fine, CLASS_WEIGHT),
            },
            Relaxed,
        );
        let all = self.0[ALL].load(Relaxed);
        self.0[ALL].store(
            match all {
                0 => fine,
                all => toward(all, fine, TOTAL_WEIGHT),
            },
            Relaxed,
        );
        self.0[SAMPLES].fetch_add(1, Relaxed);
    }

    /// fault_unit: the mean of all faults. Zero before the first sample where no initial value
    /// was set.
    pub fn fault_unit(&self) -> TimeNs {
        self.0[ALL].load(Relaxed).div_ceil(FRACTION)
    }

    /// The mean of a class; zero without samples of it.
    pub fn of(&self, class: FaultClass) -> TimeNs {
        self.0[class as usize].load(Relaxed).div_ceil(FRACTION)
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.0[SAMPLES].load(Relaxed)
    }
}

/// Moves a mean by one part in `part` towards a sample, by at least 1, so that rounding never
/// stops it short of the samples.
fn toward(mean: u64, sample: u64, part: u64) -> u64 {
    if sample >= mean {
        mean + (sample - mean).div_ceil(part)
    } else {
        mean - (mean - sample).div_ceil(part)
    }
}
