//! The frames that the program has taken and not mapped.
//!
//! The ledger has one state for these and for frames of resident pages; a number that the
//! program got from [`Stretch::trans`](super::Stretch::trans) or has used already must not pass for one of them.

use frames::Frame;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use wired::WiredMemory;

/// A bit for each frame of the ledger.
pub(super) struct TakenFrames {
    bits: WiredMemory,
    frames: u32,
}

impl TakenFrames {
    /// For frames with numbers below `frames`.
    pub(super) fn new(frames: u32) -> Result<Self, Errno> {
        let words = frames.div_ceil(u64::BITS) as usize;
        let bits = WiredMemory::private(words * size_of::<u64>())?;
        Ok(Self { bits, frames })
    }

    /// The program has the frame from now on.
    pub(super) fn insert(&self, frame: Frame) {
        if let Some((word, bit)) = self.bit(frame) {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// The program gives the frame up. Returns false if it does not have it.
    pub(super) fn remove(&self, frame: Frame) -> bool {
        self.bit(frame)
            .is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::AcqRel) & bit != 0)
    }

    fn bit(&self, frame: Frame) -> Option<(&AtomicU64, u64)> {
        let (word, bit) = (frame.0 / u64::BITS, frame.0 % u64::BITS);
        let word = || &self.bits.slice(word as usize * size_of::<u64>(), 1)[0];
        (frame.0 < self.frames).then(|| (word(), 1 << bit))
    }
}
