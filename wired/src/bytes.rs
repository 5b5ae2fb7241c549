//! A byte slice in wired memory, with one owner.

use crate::memory::WiredMemory;
use rustix::io;
use std::ops::{Deref, DerefMut};

/// A byte slice of fixed length in wired memory.
pub struct WiredBytes(WiredMemory);

impl WiredBytes {
    /// At least `len` bytes, all zero.
    ///
    /// # Errors
    /// Where the kernel has no memory, or `len` is zero.
    pub fn new(len: usize) -> io::Result<Self> {
        WiredMemory::private(len).map(Self)
    }
}

impl Deref for WiredBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is this owner's alone, initialized by the kernel, of that length.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

impl DerefMut for WiredBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and borrowed mutably with the owner.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}
