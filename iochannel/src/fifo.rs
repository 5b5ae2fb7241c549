//! A FIFO of slot numbers: one side puts, the other looks.

use crate::word::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Numbers a FIFO has room for: each slot is in it once, or twice after a server's death.
pub(crate) const ROOM: usize = 256;

/// The shared part: how many were ever put, and the last of them. Where the reader is, only
/// the reader knows.
#[derive(Clone, Copy)]
pub(crate) struct Fifo<'a> {
    tail: &'a AtomicU32,
    numbers: &'a [AtomicU32],
}

impl<'a> Fifo<'a> {
    /// Over these words; the count of `numbers` is a power of two, so that positions may
    /// wrap.
    pub fn new(tail: &'a AtomicU32, numbers: &'a [AtomicU32]) -> Self {
        debug_assert!(numbers.len().is_power_of_two());
        Self { tail, numbers }
    }

    /// The writer's: puts `slot` at position `at`, which is the tail.
    pub fn put(&self, at: u32, slot: usize) {
        self.word(at).store(slot as u32, Relaxed);
        self.tail.store(at.wrapping_add(1), Release);
    }

    /// The position after the last number put.
    pub fn tail(&self) -> u32 {
        self.tail.load(Acquire)
    }

    /// The word of the tail, to sleep on.
    #[cfg(not(all(test, loom)))]
    pub fn tail_word(&self) -> &'a AtomicU32 {
        self.tail
    }

    /// What is at a position: any number at all, for who does not trust the writer.
    pub fn at(&self, at: u32) -> usize {
        self.word(at).load(Relaxed) as usize
    }

    /// Numbers there is room for.
    pub fn room(&self) -> u32 {
        self.numbers.len() as u32
    }

    fn word(&self, at: u32) -> &AtomicU32 {
        &self.numbers[at as usize % self.numbers.len()]
    }
}
