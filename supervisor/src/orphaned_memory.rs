//! Memory whose pager has ended and that a process still uses: a child of `vfork` whose parent was
//! killed, or of `clone` with the parent's memory.
//!
//! A missing page must not read as zeros there, and no pager can bring it in. So the supervisor keeps
//! the userfaultfd for as long as the memory is in use, and an access to a missing page gets
//! SIGBUS. (On a kernel without `UFFDIO_POISON`, before Linux 6.6, the access waits until the process is
//! killed.)

use host::fd_reaper::PeerFd;
use translation::{Capabilities, EntryKind, Fault, Feature, Userfault, UserfaultOptions};

/// Orphaned memory, by its userfaultfd.
pub(crate) struct OrphanedMemory {
    userfault: Userfault,
    /// The received descriptor, closed last, outside the loop.
    _received: Option<PeerFd>,
}

impl OrphanedMemory {
    /// `None` where no process uses the memory, as is usual when a program ends.
    pub fn of(received: PeerFd) -> Option<Self> {
        let (fd, received) = match received.try_clone() {
            Ok(copy) => (copy, Some(received)),
            Err(_) => (received, None),
        };
        let poisons = Capabilities::NONE.with(Feature::Poison);
        let options = UserfaultOptions::default();
        let it = Self {
            userfault: Userfault::from_owned(fd.into_owned(), EntryKind::Thread, &poisons, options),
            _received: received,
        };
        it.userfault.is_orphan_in_use().then_some(it)
    }

    /// Fails the pending faults. Returns true if the memory is still in use.
    pub fn fail_faults(&self) -> bool {
        let mut faults = [Fault::default(); 16];
        let count = self.userfault.read_faults(&mut faults).unwrap_or(0);
        for fault in &faults[..count] {
            // SAFETY: by UFFDIO_POISON, which `of` chooses; it marks missing pages only.
            if unsafe { self.userfault.poison(fault.addr, wired::PAGE) }.is_err() {
                // The page is present by now.
                let _ = self.userfault.wake(fault.addr, wired::PAGE);
            }
        }
        self.userfault.is_orphan_in_use()
    }
}
