//! Detection of a copy made by fork.
//!
//! A process id does not distinguish a copy from the original: the child of a fork into a new PID
//! namespace may have its parent's. A page that the kernel wipes at fork does.

use crate::{PAGE, WiredMemory};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, Ordering};

/// A mark that is cleared in the child of a fork (`MADV_WIPEONFORK`).
pub struct ForkGuard(WiredMemory);

impl ForkGuard {
    /// Marks the calling process.
    ///
    /// # Errors
    /// The kernel's error, where it cannot map a page or wipe it at fork.
    pub fn new() -> Result<Self, Errno> {
        let guard = Self(WiredMemory::wiped_in_children(PAGE)?);
        guard.mark().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// Returns true in the process that made the guard, false in its children.
    pub fn is_same_process(&self) -> bool {
        self.mark().load(Ordering::Relaxed) == 1
    }

    fn mark(&self) -> &AtomicU32 {
        &self.0.slice::<AtomicU32>(0, 1)[0]
    }
}
