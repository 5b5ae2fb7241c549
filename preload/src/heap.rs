//! The library's own heap: dlmalloc over raw mappings.
//!
//! The program's allocator hands out paged memory. The library's tables must never be
//! paged, so its Rust code allocates here.

use crate::raw_syscall::{SignalsBlocked, is_error, syscall3, syscall6};
use dlmalloc::{Allocator, Dlmalloc};
use std::alloc::{GlobalAlloc, Layout};
use wired::{Guard, Lock, PAGE};

/// VmaMap by raw system calls: never our own interposers.
struct HeapMapping;

// SAFETY: fresh private mappings, given back as they came.
unsafe impl Allocator for HeapMapping {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
        let hint = wired::address_apart(size).addr();
        // SAFETY: a fresh mapping: the address is a hint.
        let start = unsafe { syscall6(libc::SYS_mmap, [hint, size, prot, flags, usize::MAX, 0]) };
        if is_error(start) {
            return (std::ptr::null_mut(), 0, 0);
        }
        // As `wired::WiredMemory` marks the pager's own memory.
        // SAFETY: the mapping just made; the advice changes no contents.
        let _ = unsafe {
            syscall3(
                libc::SYS_madvise,
                start as usize,
                size,
                libc::MADV_DONTDUMP as usize,
            )
        };
        (start as *mut u8, size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, start: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: dlmalloc gives back the end of what it got above.
        !is_error(unsafe { syscall3(libc::SYS_munmap, start as usize + new, old - new, 0) })
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
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

/// The heap behind the library's `Box`, `Vec` and maps.
pub struct Heap(Lock<Dlmalloc<HeapMapping>>);

impl Heap {
    const fn new() -> Self {
        Self(Lock::new(Dlmalloc::new_with_allocator(HeapMapping)))
    }

    /// Keeps the heap still across a fork. With signals blocked.
    pub fn lock(&'static self) -> HeapGuard {
        HeapGuard(self.0.lock())
    }
}

/// No thread allocates while it lives.
pub struct HeapGuard(
    #[expect(dead_code, reason = "held, not read")] Guard<'static, Dlmalloc<HeapMapping>>,
);

/// The library's heap.
#[cfg_attr(not(test), global_allocator)]
pub static HEAP: Heap = Heap::new();

// The lock is held with signals blocked: a signal handler of the program may come to
// this heap through an interposed call.
// SAFETY: dlmalloc's contract under an exclusive lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _blocked = SignalsBlocked::new();
        // SAFETY: size and alignment are a layout's.
        unsafe { self.0.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _blocked = SignalsBlocked::new();
        // SAFETY: as above.
        unsafe { self.0.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let _blocked = SignalsBlocked::new();
        // SAFETY: allocated above with this layout.
        unsafe { self.0.lock().free(ptr, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _blocked = SignalsBlocked::new();
        // SAFETY: as above.
        unsafe {
            self.0
                .lock()
                .realloc(ptr, layout.size(), layout.align(), size)
        }
    }
}
