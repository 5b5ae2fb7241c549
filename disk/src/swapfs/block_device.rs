//! What the filesystem writes to: a device, or in tests one that loses power.
//!
//! Rule: all that the filesystem supposes of a device is here. What was written may reach it
//! in any order, sector by sector, or not at all, until a flush returns.

use rustix::io::Errno;

/// Bytes that survive.
///
/// Offsets, lengths and memory are multiples of 4 KiB, as direct I/O wants them.
pub trait BlockDevice: Send + Sync {
    /// What to call it in messages.
    fn name(&self) -> &str;

    /// Bytes it has.
    fn size(&self) -> u64;

    /// Reads all of `to` from byte `at`.
    fn read(&self, to: &mut [u8], at: u64) -> Result<(), Errno>;

    /// Writes all of `from` to byte `at`.
    fn write(&self, from: &[u8], at: u64) -> Result<(), Errno>;

    /// Makes the `len` bytes at `at` read as zeros.
    fn zero(&self, at: u64, len: u64) -> Result<(), Errno>;

    /// Returns when everything written before it will survive.
    fn flush(&self) -> Result<(), Errno>;
}

/// Memory that direct I/O takes.
#[derive(Debug)]
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros at a page's start.
    pub fn zeros(len: usize) -> Self {
        let bytes = vec![0; len + wired::PAGE];
        let start = bytes.as_ptr().align_offset(wired::PAGE);
        Self { bytes, start, len }
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
