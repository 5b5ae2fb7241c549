//! Memory whose pager has ended and that a process still uses: a child of `vfork` whose parent was
//! killed, or of `clone` with the parent's memory.
//!
//! A missing page must not read as zeros there, and nothing can bring it. So the supervisor keeps
//! the userfaultfd for as long as the memory is in use, and an access to a missing page gets
//! SIGBUS. (On a kernel without `UFFDIO_POISON`, before Linux 6.6, it waits until the process is
//! killed.)

use rustix::fd::OwnedFd;
use translation::{Capabilities, EntryKind, Fault, Feature, Userfault, UserfaultOptions};

/// The userfaultfd of one such memory.
pub(crate) struct OrphanedMemory(Userfault);

impl OrphanedMemory {
    /// None where no process uses the memory, as is usual when a program ends.
    pub fn of(userfaultfd: OwnedFd) -> Option<Self> {
        let poisons = Capabilities::NONE.with(Feature::Poison);
        let options = UserfaultOptions::default();
        let it = Userfault::from_owned(userfaultfd, EntryKind::Thread, &poisons, options);
        it.is_orphan_in_use().then_some(Self(it))
    }

    /// Makes the faults that wait fail. Returns true if the memory is still in use.
    pub fn fail_faults(&self) -> bool {
        let mut faults = [Fault::default(); 16];
        let count = self.0.read_faults(&mut faults).unwrap_or(0);
        for fault in &faults[..count] {
            if self.0.poison(fault.addr, wired::PAGE).is_err() {
                // The page is there by now.
                let _ = self.0.wake(fault.addr, wired::PAGE);
            }
        }
        self.0.is_orphan_in_use()
    }
}
