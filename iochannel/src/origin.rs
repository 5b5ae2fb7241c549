//! Whether this process made a thing, or got a copy of it by fork.
//!
//! A process number does not say: the child of a fork into a new namespace may have its
//! parent's. A page that the kernel wipes at fork does.

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use std::sync::atomic::{AtomicU32, Ordering};
use wired::{PAGE, WiredMemory};

/// A mark that a fork's child does not see.
pub struct Origin(WiredMemory);

impl Origin {
    /// Made here.
    pub fn here() -> Result<Self, Errno> {
        let page = WiredMemory::private(PAGE)?;
        // SAFETY: memory of ours that nothing else uses.
        unsafe { madvise(page.as_ptr().cast(), PAGE, Advice::LinuxWipeOnFork)? };
        let origin = Self(page);
        origin.mark().store(1, Ordering::Relaxed);
        Ok(origin)
    }

    /// Whether this is the process it was made in.
    pub fn is_here(&self) -> bool {
        self.mark().load(Ordering::Relaxed) == 1
    }

    fn mark(&self) -> &AtomicU32 {
        &self.0.slice::<AtomicU32>(0, 1)[0]
    }
}
