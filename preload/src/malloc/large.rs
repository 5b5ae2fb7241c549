//! Large blocks: each is a mapping of its own, as in the C library's allocator.
//!
//! mimalloc keeps what is freed, and a pager would write it to the store as any other page. A mapping leaves the
//! contract when it is freed, is zero without being written, and grows by `mremap`, which moves its pages' entries and
//! no bytes. Blocks that are freed again and again are mimalloc's: a mapping that is freed raises the size from which
//! on blocks are mapped, up to [`MAX_THRESHOLD`] (glibc's rule, and glibc's bounds).
//!
//! A block begins behind a [`BlockHeader`], on an offset in its first page that is a power of two. Few of mimalloc's blocks
//! do, and none has the header's check before it.

use crate::raw_syscall::{SyscallResult, is_error};
use crate::{map, mremap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use wired::PAGE;

/// Bytes from which on blocks are mapped at first.
pub const MIN_THRESHOLD: usize = 128 << 10;

/// Bytes from which on blocks are mapped however often they are freed.
const MAX_THRESHOLD: usize = 32 << 20;

/// Bytes from which on a block is mapped now.
static THRESHOLD: AtomicUsize = AtomicUsize::new(MIN_THRESHOLD);

/// True once the program has set the threshold, which then stays.
static IS_FIXED: AtomicBool = AtomicBool::new(false);

/// What no program writes before a block by chance.
static KEY: AtomicUsize = AtomicUsize::new(0);

/// The words before a block.
#[derive(Clone, Copy)]
#[repr(C)]
struct BlockHeader {
    /// Bytes of the mapping.
    len: usize,
    /// See [`check`].
    check: usize,
}

fn check(block: usize, len: usize) -> usize {
    KEY.load(Ordering::Relaxed) ^ block ^ len.rotate_left(32)
}

/// A block and its mapping.
#[derive(Clone, Copy)]
pub struct LargeBlock {
    block: *mut c_void,
    len: usize,
}

/// Draws the key.
pub fn init() {
    // SAFETY: the kernel gives every process 16 random bytes; their address, or 0.
    let random = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const u8;
    if !random.is_null() {
        // SAFETY: half of these bytes.
        let key = unsafe { random.add(4).cast::<usize>().read_unaligned() };
        KEY.store(key, Ordering::Relaxed);
    }
}

/// Returns true if a block of `size` bytes is to be mapped.
pub fn is_large(size: usize) -> bool {
    size >= THRESHOLD.load(Ordering::Relaxed)
}

/// Returns true if a block of `from` bytes that grows to `to` is to be mapped, for it is likely to grow further: a program
/// that extends a block by small steps would have it copied at each. One that doubles it copies little. A threshold of
/// the program's counts for these, too.
pub fn is_step(from: usize, to: usize) -> bool {
    from >= MIN_THRESHOLD && to - from < from / 2 && !IS_FIXED.load(Ordering::Relaxed)
}

/// Maps a block of zeros, if one of `size` bytes is to be mapped and can be.
pub fn allocate(size: usize, align: usize) -> Option<*mut c_void> {
    is_large(size).then(|| LargeBlock::map(size, align))?
}

/// The program sets the threshold: `mallopt(M_MMAP_THRESHOLD)`.
pub fn set_threshold(size: usize) {
    IS_FIXED.store(true, Ordering::Relaxed);
    THRESHOLD.store(size, Ordering::Relaxed);
}

impl LargeBlock {
    /// Maps a block of zeros; its alignment is a power of two. None where that is a page or more, or no memory is there.
    pub fn map(size: usize, align: usize) -> Option<*mut c_void> {
        let offset = align.max(size_of::<BlockHeader>());
        if offset >= PAGE {
            return None;
        }
        let len = mapping_len(size, offset)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::begin(map::mmap(0, len, prot, flags, -1, 0), len, offset)
    }

    /// The block at this address, if it is a large one.
    ///
    /// # Safety
    /// A block that an allocator gave, or null.
    pub unsafe fn at(block: *mut c_void) -> Option<Self> {
        let offset = block.addr() % PAGE;
        if offset < size_of::<BlockHeader>() || !offset.is_power_of_two() {
            return None;
        }
        // SAFETY: in the page of the block's first byte. Another thread may write there where it is no header.
        let header = unsafe { block.cast::<BlockHeader>().sub(1).read_volatile() };
        let is_large = header.check == check(block.addr(), header.len);
        is_large.then_some(Self {
            block,
            len: header.len,
        })
    }

    /// Bytes of the block.
    pub fn size(self) -> usize {
        self.len - self.offset()
    }

    fn offset(self) -> usize {
        self.block.addr() % PAGE
    }

    /// Unmaps it.
    pub fn free(self) {
        let is_raised = self.len <= MAX_THRESHOLD && !IS_FIXED.load(Ordering::Relaxed);
        if is_raised {
            THRESHOLD.fetch_max(self.len, Ordering::Relaxed);
        }
        map::munmap(self.block.addr() - self.offset(), self.len);
    }

    /// Changes its size; it may move. None where that is not possible: it is as before.
    pub fn resize(self, size: usize) -> Option<*mut c_void> {
        let offset = self.offset();
        let len = mapping_len(size, offset)?;
        if len == self.len {
            return Some(self.block);
        }
        let start = self.block.addr() - offset;
        let moved = mremap::mremap(start, self.len, len, libc::MREMAP_MAYMOVE, 0);
        Self::begin(moved, len, offset)
    }

    /// Writes the header of a block in a mapping, if that could be made.
    fn begin(mapping: SyscallResult, len: usize, offset: usize) -> Option<*mut c_void> {
        if is_error(mapping) {
            return None;
        }
        let start = std::ptr::with_exposed_provenance_mut::<u8>(mapping as usize);
        // SAFETY: inside the mapping's first page, which no other code uses.
        unsafe {
            let block = start.add(offset);
            let check = check(block.addr(), len);
            block
                .cast::<BlockHeader>()
                .sub(1)
                .write(BlockHeader { len, check });
            Some(block.cast())
        }
    }
}

/// Bytes of the mapping of a block that begins at `offset`.
fn mapping_len(size: usize, offset: usize) -> Option<usize> {
    let len = size.checked_add(offset)?.checked_next_multiple_of(PAGE)?;
    (len <= isize::MAX as usize).then_some(len)
}
