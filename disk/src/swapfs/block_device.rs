//! The filesystem's block device: a [`super::Device`], or in tests one that loses power.
//!
//! Rule: this trait states all that the filesystem assumes of a device. Written sectors may reach
//! it in any order, or not at all, until a flush returns.

use rustix::io::Errno;

/// Durable storage.
///
/// Offsets, lengths and memory addresses are multiples of 4 KiB, as direct I/O requires.
pub trait BlockDevice: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &str;

    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Reads all of `to` from byte `at`.
    fn read(&self, to: &mut [u8], at: u64) -> Result<(), Errno>;

    /// Writes all of `from` to byte `at`.
    fn write(&self, from: &[u8], at: u64) -> Result<(), Errno>;

    /// Makes the `len` bytes at `at` read as zeros.
    fn zero(&self, at: u64, len: u64) -> Result<(), Errno>;

    /// Returns when all earlier writes are durable.
    fn flush(&self) -> Result<(), Errno>;
}

/// Memory aligned for direct I/O.
#[derive(Debug)]
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros at a page boundary.
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
