//! Detects the end of a dead process's last writes.
//!
//! A process that is killed may have writes to the swap file in flight, and the kernel
//! lets them finish after the process has ended and its descriptors are closed. If its bloks
//! were given to another process before that, these writes would overwrite the other process's
//! pages, and its checksums could only detect the loss.
//!
//! So each process gets an open file description of its own, with a lock on a byte of
//! its own, far past the end of the file. The lock belongs to the description, and ends
//! with the last reference to it; a request in flight has a reference.
//!
//! Rule: the pages that a process held in the store are reclaimed only when its byte is unlocked.

use host::procfs::is_shortage;
use link::handshake::SlotIndex;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, fcntl_getfl, open};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The offset of the lock bytes, past the end of any swap file.
const LOCK_OFFSET: i64 = 1 << 60;

/// The supervisor's description of the swap file.
pub(crate) struct Fence {
    swap: OwnedFd,
    /// False once a process uses the common description.
    is_complete: AtomicBool,
}

impl Fence {
    /// A fence for the swap file behind this descriptor.
    pub fn around(swap: &OwnedFd) -> io::Result<Self> {
        Ok(Self {
            swap: swap.try_clone()?,
            is_complete: AtomicBool::new(true),
        })
    }

    /// A description of its own for the process in `slot`. `None` where the system offers none (no /proc, a file system
    /// without locks): the process then uses the common one.
    ///
    /// # Errors
    /// Where a later attempt may succeed: no descriptor is free (EMFILE), or writes of the slot's last process are
    /// still in flight (EAGAIN).
    pub fn description(&self, slot: SlotIndex) -> io::Result<Option<OwnedFd>> {
        match self.try_description(slot) {
            Ok(own) => Ok(Some(own)),
            Err(why) if is_shortage(&why) || why.kind() == io::ErrorKind::WouldBlock => Err(why),
            Err(_) => {
                self.is_complete.store(false, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    fn try_description(&self, slot: SlotIndex) -> io::Result<OwnedFd> {
        let flags = fcntl_getfl(&self.swap)? & (OFlags::RDWR | OFlags::DIRECT);
        let path = format!("/proc/self/fd/{}", self.swap.as_raw_fd());
        let own = open(path, flags | OFlags::CLOEXEC, Mode::empty())?;
        let mut byte = byte(slot);
        // SAFETY: takes the lock that the structure describes.
        match unsafe { libc::fcntl(own.as_raw_fd(), libc::F_OFD_SETLK, &raw mut byte) } {
            0 => Ok(own),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns true if each process has a description of its own, so that [`Fence::is_quiet`] is reliable.
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    /// Returns true if no write of the process that was in `slot` is in flight.
    pub fn is_quiet(&self, slot: SlotIndex) -> bool {
        let mut byte = byte(slot);
        // SAFETY: queries the lock that the structure describes, and fills the structure.
        let failed =
            unsafe { libc::fcntl(self.swap.as_raw_fd(), libc::F_OFD_GETLK, &raw mut byte) };
        failed != 0 || byte.l_type == libc::F_UNLCK as libc::c_short
    }
}

fn byte(slot: SlotIndex) -> libc::flock {
    // SAFETY: plain numbers, for which zeros are a value; the kernel wants l_pid 0.
    let mut it: libc::flock = unsafe { std::mem::zeroed() };
    it.l_type = libc::F_WRLCK as libc::c_short;
    it.l_whence = libc::SEEK_SET as libc::c_short;
    it.l_start = LOCK_OFFSET + i64::from(slot);
    it.l_len = 1;
    it
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_quiet_once_the_last_reference_to_its_description_is_closed() {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let fence = Fence::around(&file).unwrap();
        let own = fence.description(5).unwrap().unwrap();
        assert!(!fence.is_quiet(5) && fence.is_quiet(4));
        let copy = own.try_clone().unwrap();
        drop(own);
        assert!(!fence.is_quiet(5), "a copy is the same description");
        let refused = fence.description(5).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(copy);
        assert!(fence.is_quiet(5));
        assert!(
            fence.description(5).unwrap().is_some(),
            "the slot's next process has it"
        );
    }
}
