//! Memory and waiting that never page: the base that the pager itself stands on.
//!
//! The pager resolves faults. Memory that it touches meanwhile must not fault on a stretch, and its
//! waits must not depend on the program's running. So its tables come from this crate only: mappings
//! made by raw system calls (a preloaded library interposes `mmap`, and the pager must not call
//! its own interposer), locks and waiting built on futexes alone (handler threads are raw clones
//! without thread-local storage), both usable across processes.
//!
//! Rule: nothing here allocates on the heap after construction.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("selfpage runs on Linux on x86-64 only");

pub mod adaptive_poll;
pub mod bytes;
pub mod clock;
pub mod counter;
mod discard_request;
pub mod fork_guard;
pub mod futex;
pub mod lock;
pub mod log_line;
mod mailbox;
pub mod memory;
mod memory_pool;
pub mod pi;
pub mod sched_class;
pub mod stage;
pub mod syscall;
pub mod units;

pub use adaptive_poll::AdaptivePoll;
pub use bytes::WiredBytes;
pub use counter::{Aggregation, Counter};
pub use discard_request::DiscardRequest;
pub use fork_guard::ForkGuard;
pub use lock::{Guard, Lock};
pub use log_line::LogLine;
pub use mailbox::Mailbox;
pub use memory::{Plain, WiredMemory, address_apart, check_file_size, sealed_memory};
pub use memory_pool::private_bytes_mapped;
pub use pi::{PiGuard, PiLock};
pub use stage::{Stage, StageHistogram};
pub use units::{Bytes, SizeError, Time, TimeError, parse_time};

/// Bytes in a page. Fixed: the pager supports 4 KiB base pages only, and refuses to start on a
/// kernel with others.
pub const PAGE: usize = 4096;

/// Bytes that one page table of the kernel covers, or one huge page: the most that one eviction takes.
pub const HUGE_RANGE: usize = 2 << 20;

/// Pages in a [`HUGE_RANGE`].
pub const HUGE_RANGE_PAGES: usize = HUGE_RANGE / PAGE;

/// An argument that the kernel ignores and that marks a pager's calls, so that the tree's filter
/// (`host::seccomp`) lets them pass: the sixth of io_uring_setup, whose rings do I/O of the store and
/// never of the program's memory, and the fourth of `madvise`, whose pages the pager accounts for. A
/// program that passes the same value harms only itself.
pub const PAGER_TAG: u64 = u64::from_le_bytes(*b"selfpage");

/// Writes a word's own value back, which gives this process a private copy of the page. Atomic
/// against other writes of the word.
///
/// An `or` with zero would do, but the compiler turns one whose result is unused into a fence.
///
/// # Safety
/// The word is mapped and aligned.
pub unsafe fn rewrite(word: *mut u64) {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    // SAFETY: mapped, by the caller's promise, and a `u64` pointer is aligned.
    let word = unsafe { AtomicU64::from_ptr(word) };
    let seen = word.load(SeqCst);
    // A failed exchange means that another thread has written the word.
    let _ = word.compare_exchange(seen, seen, SeqCst, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewriting_a_word_makes_its_page_private() {
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
        // SAFETY: mapped above, and no longer used.
        unsafe { rustix::mm::munmap(word.cast(), PAGE) }.unwrap();
    }
}
