//! Tables of plain values in wired memory, for one thread.

use std::io;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut, Range};
use wired::WiredMemory;

/// Types whose value may be all zeros, which is what a new table holds.
///
/// # Safety
/// All-zero bytes are a value of the type.
pub(crate) unsafe trait Zeroed: Copy {}

// SAFETY: zero is a number.
unsafe impl Zeroed for u32 {}

/// A table of a fixed length. What was never written takes no memory.
pub(crate) struct WiredTable<T> {
    memory: WiredMemory,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Zeroed> WiredTable<T> {
    /// A table of `len` zeros.
    pub fn new(len: usize) -> io::Result<Self> {
        let bytes = len.max(1).checked_mul(size_of::<T>());
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            memory: WiredMemory::private(bytes)?,
            len,
            of: PhantomData,
        })
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Some of its entries.
    pub fn slice_mut(&mut self, range: Range<u32>) -> &mut [T] {
        let (start, end) = (range.start as usize, range.end as usize);
        assert!(start <= end && end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the mapping, entries are zero or written as a `T`, and borrowed with the table.
        unsafe {
            let first = self.memory.as_ptr().cast::<T>().add(start);
            std::slice::from_raw_parts_mut(first, end - start)
        }
    }
}

impl<T: Zeroed> Index<u32> for WiredTable<T> {
    type Output = T;
    fn index(&self, at: u32) -> &T {
        assert!((at as usize) < self.len, "entry {at} of {}", self.len);
        // SAFETY: inside the mapping, page-aligned at its start, and zero or written as a `T`.
        unsafe { &*self.memory.as_ptr().cast::<T>().add(at as usize) }
    }
}

impl<T: Zeroed> IndexMut<u32> for WiredTable<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        assert!((at as usize) < self.len, "entry {at} of {}", self.len);
        // SAFETY: as in `index`, and borrowed mutably with the table.
        unsafe { &mut *self.memory.as_ptr().cast::<T>().add(at as usize) }
    }
}
