//! The library's own heaps: dlmalloc over raw mappings.
//!
//! The program's allocator hands out paged memory. The library's tables must never be
//! paged, so its Rust code allocates here.
//!
//! Rule: a pager thread never waits for a lock that a thread of the program holds. That thread
//! runs on a stack of the program's: it may fault while it holds the lock, and the fault waits
//! for the pager thread. So the pager's threads have a heap of their own. A block that the other
//! side frees goes to a list without a lock, which its own side empties.
//!
//! A block of [`MAPPED`] bytes or more is a mapping of its own: most are tables for a whole
//! contract, of which a process uses little, and dlmalloc writes all of a block of zeros.

mod reserve;

use crate::pager_process::is_pager;
use crate::raw_syscall::{SignalsBlocked, is_error, syscall3};
use dlmalloc::{Allocator, Dlmalloc};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicPtr, Ordering};
use wired::{Guard, Lock, PAGE, WiredMemory};

use reserve::RESERVE;
pub use reserve::init;

/// Memory by raw system calls: never our own interposers.
struct HeapMapping;

// SAFETY: fresh private mappings, given back as they came.
unsafe impl Allocator for HeapMapping {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match WiredMemory::private(size) {
            Ok(memory) => (memory.leak(), size, 0),
            Err(_) => match RESERVE.take(size) {
                Some(start) => (std::ptr::with_exposed_provenance_mut(start), size, 0),
                None => (std::ptr::null_mut(), 0, 0),
            },
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, start: *mut u8, old: usize, new: usize) -> bool {
        if RESERVE.has(start) {
            return false;
        }
        // SAFETY: dlmalloc gives back the end of what it got above.
        !is_error(unsafe { syscall3(libc::SYS_munmap, start as usize + new, old - new, 0) })
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        if RESERVE.has(start) {
            return false;
        }
        // SAFETY: dlmalloc gives back what it got above.
        !is_error(unsafe { syscall3(libc::SYS_munmap, start as usize, size, 0) })
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

/// Bytes from which on a block is a mapping of its own.
const MAPPED: usize = 32 << 10;

/// A block on a list of blocks to free: its first word is the next block's address.
type FreedBlock = *mut u8;

/// The heap of one side.
struct Heap {
    blocks: Lock<Dlmalloc<HeapMapping>>,
    /// Blocks that the other side has freed.
    freed: AtomicPtr<u8>,
}

impl Heap {
    const fn new() -> Self {
        Self {
            blocks: Lock::new(Dlmalloc::new_with_allocator(HeapMapping)),
            freed: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Works on the heap, on a thread of its own side with signals blocked.
    fn with<T>(&self, work: impl FnOnce(&mut Dlmalloc<HeapMapping>) -> T) -> T {
        let mut blocks = self.blocks.lock();
        self.free_returned(&mut blocks);
        work(&mut blocks)
    }

    fn free_returned(&self, blocks: &mut Dlmalloc<HeapMapping>) {
        if self.freed.load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut next = self.freed.swap(std::ptr::null_mut(), Ordering::Acquire);
        while !next.is_null() {
            let block = next;
            // SAFETY: a block that `give_back` was given, which no other code refers to.
            unsafe {
                next = block.cast::<FreedBlock>().read();
                blocks.c_free(block);
            }
        }
    }

    /// Returns a block of this heap from the other side.
    ///
    /// # Safety
    /// The block is of this heap, and not used any more.
    unsafe fn give_back(&self, block: *mut u8) {
        let mut first = self.freed.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller's promise; a block has room for a word.
            unsafe { block.cast::<FreedBlock>().write(first) };
            let pushed = self.freed.compare_exchange_weak(
                first,
                block,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match pushed {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

/// The heaps behind the library's `Box`, `Vec` and maps.
pub struct Heaps {
    program: Heap,
    pager: Heap,
}

/// The library's heaps.
#[cfg_attr(not(test), global_allocator)]
pub static HEAPS: Heaps = Heaps {
    program: Heap::new(),
    pager: Heap::new(),
};

/// No thread allocates while it lives.
pub struct HeapGuard {
    _program: Guard<'static, Dlmalloc<HeapMapping>>,
    _pager: Guard<'static, Dlmalloc<HeapMapping>>,
}

impl Heaps {
    /// Keeps the heaps still for a fork, once the pager has stopped; with signals blocked.
    /// Returns None if another thread of the program allocates: it may wait for a page, and the
    /// pager has to go on first.
    pub fn try_lock(&'static self) -> Option<HeapGuard> {
        let program = self.program.blocks.try_lock()?;
        Some(HeapGuard {
            _program: program,
            _pager: self.pager.blocks.lock(),
        })
    }

    /// Waits until no thread of the program allocates.
    pub fn wait(&self) {
        drop(self.program.blocks.lock());
    }

    /// A block with its header from the calling thread's heap, by `get` of so many bytes.
    fn allocate(
        &self,
        layout: &Layout,
        get: impl FnOnce(&mut Dlmalloc<HeapMapping>, usize) -> *mut u8,
    ) -> *mut u8 {
        let (heap, side) = self.own();
        let _blocked = side.block_signals();
        let header = header(layout);
        let Some(size) = layout.size().checked_add(header) else {
            return std::ptr::null_mut();
        };
        let (start, side) = match is_mapped(layout) {
            true => {
                let (start, ..) = HeapMapping.alloc(mapped_len(size));
                (start, Side::Mapping)
            }
            false => (heap.with(|blocks| get(blocks, size)), side),
        };
        if start.is_null() {
            return start;
        }
        // SAFETY: what `get` gave is as long as the header and the block.
        unsafe {
            let block = start.add(header);
            block.cast::<Side>().sub(1).write(side);
            block
        }
    }

    /// The calling thread's heap.
    fn own(&self) -> (&Heap, Side) {
        match is_pager() {
            true => (&self.pager, Side::Pager),
            false => (&self.program, Side::Program),
        }
    }
}

/// Whose heap a block is of. Zero, which blocks start with, is neither.
#[derive(Clone, Copy, PartialEq)]
#[repr(usize)]
enum Side {
    Program = 1,
    Pager = 2,
    /// No heap's: a mapping of its own.
    Mapping = 3,
}

impl Side {
    /// Keeps handlers of the program's signals out while it lives. The pager's threads have every
    /// signal blocked always.
    fn block_signals(self) -> Option<SignalsBlocked> {
        (self == Self::Program).then(SignalsBlocked::new)
    }
}

/// Returns true if a block is a mapping of its own. Its alignment is that of its header, which
/// starts a page.
fn is_mapped(layout: &Layout) -> bool {
    layout.size() >= MAPPED && layout.align() <= PAGE
}

/// Bytes of the mapping of a block with its header.
fn mapped_len(size: usize) -> usize {
    size.next_multiple_of(PAGE)
}

/// Bytes before a block, whose last word is the block's [`Side`].
fn header(layout: &Layout) -> usize {
    layout.align().max(2 * size_of::<usize>())
}

// A heap's lock is held with signals blocked: a signal handler of the program may come to
// the heap through an interposed call.
// SAFETY: dlmalloc's contract under an exclusive lock; a block begins a header behind what
// dlmalloc gives, which keeps the alignment.
unsafe impl GlobalAlloc for Heaps {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: size and alignment are a layout's.
        self.allocate(&layout, |blocks, size| unsafe {
            blocks.malloc(size, layout.align())
        })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.allocate(&layout, |blocks, size| unsafe {
            blocks.calloc(size, layout.align())
        })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (own, side) = self.own();
        let _blocked = side.block_signals();
        // SAFETY: allocated above with this layout.
        unsafe {
            let start = block.sub(header(&layout));
            match block.cast::<Side>().sub(1).read() {
                owner if owner == side => own.with(|blocks| blocks.c_free(start)),
                Side::Program => self.program.give_back(start),
                Side::Pager => self.pager.give_back(start),
                Side::Mapping => {
                    HeapMapping.free(start, mapped_len(layout.size() + header(&layout)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TEST: Heaps = Heaps {
        program: Heap::new(),
        pager: Heap::new(),
    };

    /// A block as the pager's side would allocate it.
    fn pager_block(layout: Layout) -> *mut u8 {
        let header = header(&layout);
        TEST.pager.with(|blocks| {
            // SAFETY: the layout's size and alignment, and a header.
            unsafe {
                let start = blocks.malloc(layout.size() + header, layout.align());
                let block = start.add(header);
                block.cast::<Side>().sub(1).write(Side::Pager);
                block
            }
        })
    }

    #[test]
    fn a_block_that_the_other_side_frees_waits_for_its_own_side() {
        let layout = Layout::from_size_align(1000, 64).unwrap();
        let blocks: Vec<*mut u8> = (0..100).map(|_| pager_block(layout)).collect();
        let held = TEST.pager.blocks.lock();
        for block in &blocks {
            assert_eq!(block.addr() % 64, 0);
            // SAFETY: allocated above; this thread is the program's.
            unsafe { TEST.dealloc(*block, layout) };
        }
        drop(held);
        assert!(!TEST.pager.freed.load(Ordering::Relaxed).is_null());
        let again = pager_block(layout);
        assert!(TEST.pager.freed.load(Ordering::Relaxed).is_null());
        assert!(blocks.contains(&again), "no freed block is used again");
    }

    #[test]
    fn a_large_block_of_zeros_is_not_written() {
        let layout = Layout::from_size_align(64 * PAGE, 64).unwrap();
        // SAFETY: the layout's; inside the block.
        unsafe {
            let block = TEST.alloc_zeroed(layout);
            assert_eq!(block.addr() % 64, 0);
            let mut resident = [0u8; 65];
            let start = block.map_addr(|addr| addr & !(PAGE - 1));
            let counted = libc::mincore(start.cast(), 65 * PAGE, resident.as_mut_ptr());
            assert_eq!(
                (
                    counted,
                    resident.iter().filter(|page| **page & 1 != 0).count()
                ),
                (0, 1)
            );
            assert_eq!((*block, *block.add(64 * PAGE - 1)), (0, 0));
            TEST.dealloc(block, layout);
        }
    }

    #[test]
    fn a_block_keeps_its_contents_as_it_grows() {
        let layout = Layout::from_size_align(10, 1).unwrap();
        // SAFETY: layouts as they were allocated, and bytes inside the blocks.
        unsafe {
            let block = TEST.alloc_zeroed(layout);
            assert!((0..10).all(|at| *block.add(at) == 0));
            block.write_bytes(7, 10);
            let grown = TEST.realloc(block, layout, 100_000);
            assert!((0..10).all(|at| *grown.add(at) == 7));
            TEST.dealloc(grown, Layout::from_size_align(100_000, 1).unwrap());
        }
    }

    #[test]
    fn the_heaps_are_not_locked_while_a_thread_of_the_program_allocates() {
        static BUSY: Heaps = Heaps {
            program: Heap::new(),
            pager: Heap::new(),
        };
        let held = BUSY.program.blocks.lock();
        assert!(BUSY.try_lock().is_none());
        drop(held);
        BUSY.wait();
        assert!(BUSY.try_lock().is_some());
        assert!(BUSY.try_lock().is_some(), "the guard gave a lock back");
    }
}
