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

pub mod clock;
pub mod futex;
pub mod lock;
pub mod pi;
pub mod region;

pub use lock::{Guard, Lock};
pub use pi::{PiGuard, PiLock};
pub use region::{Plain, Region};

/// Bytes in a page. Fixed: the pager supports 4 KiB base pages only, and says so at
/// start where the kernel has others.
pub const PAGE: usize = 4096;

/// Bytes in the range that one page table covers, the unit of eviction sweeps.
pub const RANGE: usize = 2 << 20;

/// Pages in a [`RANGE`].
pub const RANGE_PAGES: usize = RANGE / PAGE;
