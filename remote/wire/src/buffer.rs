//! Wired bytes that are filled at one end and taken from the other.

use std::io;
use std::ops::Range;
use wired::WiredBytes;

/// A buffer of a fixed size. What it holds is contiguous; it moves to the front when room is needed.
pub(crate) struct Buffer {
    bytes: WiredBytes,
    held: Range<usize>,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        Ok(Self {
            bytes: WiredBytes::new(len)?,
            held: 0..0,
        })
    }

    /// What it holds.
    pub(crate) fn held(&self) -> &[u8] {
        &self.bytes[self.held.clone()]
    }

    /// Room for at least `len` bytes, if there is as much; all the room behind what it holds.
    pub(crate) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let whole = self.bytes.len();
        if whole - self.held.end < len {
            let held = self.held.clone();
            self.held = 0..held.len();
            self.bytes.copy_within(held, 0);
        }
        let end = self.held.end;
        (whole - end >= len).then(|| &mut self.bytes[end..])
    }

    /// Adds the first bytes of the room, which were written.
    pub(crate) fn add(&mut self, len: usize) {
        self.held.end += len;
        debug_assert!(self.held.end <= self.bytes.len());
    }

    /// Removes the first bytes and returns them.
    pub(crate) fn take(&mut self, len: usize) -> &[u8] {
        let taken = self.held.start..self.held.start + len;
        debug_assert!(taken.end <= self.held.end);
        self.held.start = taken.end;
        if self.held.is_empty() {
            self.held = 0..0;
        }
        &self.bytes[taken]
    }
}
