//! Memory and waiting that never page: what the pager itself stands on.
//!
//! The pager resolves faults. Whatever it touches while it does so must not fault
//! on a stretch, and whatever it waits for must not need the program to run. So its
//! tables come from here and from nowhere else: mappings made by raw system calls (a
//! preloaded library interposes `mmap`, and the pager must not meet its own
//! interposer), locks and waiting built on futexes alone (no thread-local storage:
//! entry threads are raw clones), both usable across processes.
//!
//! Rule: nothing here allocates on the heap after construction.

pub mod adaptive_poll;
pub mod clock;
pub mod fork_guard;
pub mod futex;
pub mod lock;
pub mod memory;
pub mod pi;

pub use adaptive_poll::AdaptivePoll;
pub use fork_guard::ForkGuard;
pub use lock::{Guard, Lock};
pub use memory::{Plain, WiredMemory};
pub use pi::{PiGuard, PiLock};

/// Bytes in a page. Fixed: the pager supports 4 KiB base pages only, and says so at
/// start where the kernel has others.
pub const PAGE: usize = 4096;

/// Bytes in the range that one page table covers, the unit of eviction sweeps.
pub const HUGE_RANGE: usize = 2 << 20;

/// Pages in a [`HUGE_RANGE`].
pub const HUGE_RANGE_PAGES: usize = HUGE_RANGE / PAGE;

/// Writes a word with what it holds: the page becomes this process's own. A write to the same
/// bytes goes before or after it.
///
/// An `or` with zero would do, were it not that the compiler takes one whose result is unused
/// for a mere fence.
///
/// # Safety
/// The word is mapped.
pub unsafe fn rewrite(word: *mut u64) {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    // SAFETY: the caller's; aligned, since it is the page that counts.
    let word = unsafe { AtomicU64::from_ptr(word) };
    let seen = word.load(SeqCst);
    // Where it has changed meanwhile, it has been written.
    let _ = word.compare_exchange(seen, seen, SeqCst, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewritten_word_lies_in_a_page_of_its_own() {
        use rustix::mm::{MapFlags, ProtFlags};
        let file = rustix::fs::memfd_create("page", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, &[1; PAGE], 0).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping, where the kernel chooses.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, access, flags, &file, 0) };
        let word = at.unwrap().cast::<u64>();
        // SAFETY: mapped above; volatile, since the file's writer is not this access.
        let read = || unsafe { word.read_volatile() };
        assert_eq!(read(), u64::from_ne_bytes([1; 8]));
        rustix::io::pwrite(&file, &[2; 8], 0).unwrap();
        assert_eq!(read(), u64::from_ne_bytes([2; 8]), "shared with the file");
        // SAFETY: mapped above.
        unsafe { rewrite(word) };
        rustix::io::pwrite(&file, &[3; 8], 0).unwrap();
        assert_eq!(read(), u64::from_ne_bytes([2; 8]), "not shared any more");
        // SAFETY: mapped above, and used no more.
        unsafe { rustix::mm::munmap(word.cast(), PAGE) }.unwrap();
    }
}
