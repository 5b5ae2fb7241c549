//! fault_unit: the processor time that handling one fault takes (section 4.1), measured of
//! real faults all the time.
//!
//! The paper takes it for constant. It is not: a page of zeros, one that is decompressed and
//! one that is read from a disk differ by an order of magnitude, and so do machines. What a
//! limit needs is the mean over the faults that really come, since it bounds their sum. So
//! each class has its mean, and all have one, into which the classes enter as often as they
//! are sampled.
//!
//! A sample may be spoiled (by an interrupt that is charged to whom it hits, a processor just
//! woken, a hypervisor): it counts as at most [`OUTLIER`] times the class's mean. So one bad
//! sample moves a mean by a half of it at the most, and a cost that has really changed is
//! followed within some tens of samples.

use crate::quantities::Nanos;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a fault takes to be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Class {
    /// A page of zeros.
    ZeroFill = 0,
    /// A page that was still in memory, or was read ahead.
    Memory = 1,
    /// A page of compressed RAM.
    Compressed = 2,
    /// A page read from a disk.
    Disk = 3,
    /// A page of a file.
    File = 4,
}

impl Class {
    /// All.
    pub const ALL: [Class; 5] = [
        Class::ZeroFill,
        Class::Memory,
        Class::Compressed,
        Class::Disk,
        Class::File,
    ];

    /// Its name in data.
    pub fn name(self) -> &'static str {
        match self {
            Class::ZeroFill => "zero_fill",
            Class::Memory => "memory",
            Class::Compressed => "compressed",
            Class::Disk => "disk",
            Class::File => "file",
        }
    }
}

/// How often a fault's class mean a sample counts at most.
pub const OUTLIER: u64 = 8;

/// A sample's part in the mean of its class, and in that of all.
const OF_CLASS: u64 = 16;
const OF_ALL: u64 = 64;

/// Means are kept in this part of a nanosecond, so that small ones move.
const FINE: u64 = 256;

/// Words that the means take: of each class, of all, and how many samples.
pub const WORDS: usize = Class::ALL.len() + 2;
const ALL: usize = Class::ALL.len();
const SAMPLES: usize = ALL + 1;

/// The means, in words that processes share.
#[derive(Clone, Copy)]
pub struct Units<'a>(&'a [AtomicU64]);

impl<'a> Units<'a> {
    /// Means in [`WORDS`] words, all zero at first.
    ///
    /// # Panics
    /// Where there are fewer words.
    pub fn new(words: &'a [AtomicU64]) -> Self {
        assert!(words.len() >= WORDS, "words for the fault units");
        Self(words)
    }

    /// What to take until there are samples. Those that there are stay.
    pub fn begin_with(&self, unit: Nanos) {
        let fine = unit.saturating_mul(FINE);
        let _ = self.0[ALL].compare_exchange(0, fine, Relaxed, Relaxed);
    }

    /// A fault took so much processor time. Two that come at once may count as one.
    pub fn sample(&self, class: Class, time: Nanos) {
        let of_class = &self.0[class as usize];
        let mean = of_class.load(Relaxed);
        // The first of its class stands beside the mean of all, if that is known.
        let known = if mean == 0 {
            self.0[ALL].load(Relaxed)
        } else {
            mean
        };
        let fine = time.max(1).saturating_mul(FINE);
        let fine = match known {
            0 => fine,
            known => fine.min(known.saturating_mul(OUTLIER)),
        };
        of_class.store(
            match mean {
                0 => fine,
                mean => toward(mean, fine, OF_CLASS),
            },
            Relaxed,
        );
        let all = self.0[ALL].load(Relaxed);
        self.0[ALL].store(
            match all {
                0 => fine,
                all => toward(all, fine, OF_ALL),
            },
            Relaxed,
        );
        self.0[SAMPLES].fetch_add(1, Relaxed);
    }

    /// fault_unit: the mean of all classes, as often as they come. Zero before the first
    /// sample where nothing was given to begin with.
    pub fn fault_unit(&self) -> Nanos {
        self.0[ALL].load(Relaxed).div_ceil(FINE)
    }

    /// The mean of a class; zero where there was none of it.
    pub fn of(&self, class: Class) -> Nanos {
        self.0[class as usize].load(Relaxed).div_ceil(FINE)
    }

    /// Samples so far.
    pub fn samples(&self) -> u64 {
        self.0[SAMPLES].load(Relaxed)
    }
}

/// A mean after another sample, which has a part in it of one to `part`. It never stands
/// still short of what is sampled for want of precision.
fn toward(mean: u64, sample: u64, part: u64) -> u64 {
    match sample >= mean {
        true => mean + (sample - mean).div_ceil(part),
        false => mean - (mean - sample).div_ceil(part),
    }
}
