//! The first words of the memory that outlives the processes of a client.

use std::sync::atomic::{AtomicU64, Ordering};

/// The words: how many processes have served, and how many were started.
#[derive(Clone, Copy, Debug)]
pub struct KeptHeader<'a> {
    served: &'a AtomicU64,
    starts: &'a AtomicU64,
}

impl<'a> KeptHeader<'a> {
    /// How many words it takes.
    pub const WORDS: usize = 2;

    /// That at the beginning of a memory.
    pub fn at(words: &'a [AtomicU64]) -> Self {
        Self {
            served: &words[0],
            starts: &words[1],
        }
    }

    /// How many processes of the client have served: another one goes on with this where one has.
    pub fn served(self) -> u64 {
        self.served.load(Ordering::Acquire)
    }

    /// A process of the client serves. Returns how many have, which names this one: its generation.
    pub fn count_served(self) -> u64 {
        self.served.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Counts a start of the client, and returns how many there were.
    pub fn count_start(self) -> u64 {
        self.starts.fetch_add(1, Ordering::AcqRel)
    }
}
