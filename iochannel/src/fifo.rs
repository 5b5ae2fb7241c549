//! A FIFO of slot numbers with one writer and one reader.

use crate::atomics::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Capacity in slot numbers: a FIFO holds each slot once, or twice after a server's death.
pub(crate) const CAPACITY: usize = 256;

/// The number that the client puts last, in place of a slot's: it no longer uses the channel.
pub(crate) const END: usize = u32::MAX as usize;

/// The shared part: the count of all numbers ever put, and the last [`CAPACITY`] of them. Only the reader
/// knows its own position.
#[derive(Clone, Copy)]
pub(crate) struct Fifo<'a> {
    tail: &'a AtomicU32,
    numbers: &'a [AtomicU32],
}

impl<'a> Fifo<'a> {
    /// A FIFO over these words; the length of `numbers` is a power of two, so that positions may
    /// wrap.
    pub fn new(tail: &'a AtomicU32, numbers: &'a [AtomicU32]) -> Self {
        debug_assert!(numbers.len().is_power_of_two());
        Self { tail, numbers }
    }

    /// Writer: puts `slot` at position `at`, which is the tail.
    pub fn put(&self, at: u32, slot: usize) {
        self.word(at).store(slot as u32, Relaxed);
        self.tail.store(at.wrapping_add(1), Release);
    }

    /// The position after the last number put.
    pub fn tail(&self) -> u32 {
        self.tail.load(Acquire)
    }

    /// The tail's word, for use as a futex.
    #[cfg(not(all(test, loom)))]
    pub fn tail_word(&self) -> &'a AtomicU32 {
        self.tail
    }

    /// The number at a position; not validated, since the writer may be untrusted.
    pub fn at(&self, at: u32) -> usize {
        self.word(at).load(Relaxed) as usize
    }

    /// Capacity in numbers.
    pub fn capacity(&self) -> u32 {
        self.numbers.len() as u32
    }

    fn word(&self, at: u32) -> &AtomicU32 {
        &self.numbers[at as usize % self.numbers.len()]
    }
}
