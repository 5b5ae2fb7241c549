//! Faults read from a descriptor of [`crate::EntryKind::Thread`].
//!
//! Rule: nothing but faults ever comes: `EVENT_*` features stay off. The same fault may
//! come twice (after a signal to its thread), so answering one twice must be harmless.

use crate::uapi;
use crate::userfault::Userfault;
use linux_raw_sys::general as sys;
use rustix::fd::AsFd;
use rustix::io::{Errno, read};

/// A fault that a thread waits in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// The page's first byte.
    pub addr: usize,
    /// The access was a store.
    pub write: bool,
    /// The page is there and write-protected.
    pub write_protected: bool,
    /// The page is in the page cache and only not mapped.
    pub minor: bool,
    /// Who faulted, as a thread id of the reader's; 0 without
    /// [`crate::Feature::ThreadId`].
    pub thread: u32,
}

/// Messages read in one call.
const BATCH: usize = 16;

impl Userfault {
    /// Reads the faults that wait, as many as `out` holds (16 at most a call). None waiting
    /// is `Ok(0)`: wait with poll.
    pub fn read_faults(&self, out: &mut [Fault]) -> std::io::Result<usize> {
        // SAFETY: the messages are plain old data; all zeros is a value.
        let mut messages: [uapi::uffd_msg; BATCH] = unsafe { std::mem::zeroed() };
        let wanted = out.len().min(BATCH);
        if wanted == 0 {
            return Ok(0);
        }
        // SAFETY: plain bytes of the array; any the kernel writes are values.
        let buffer = unsafe {
            std::slice::from_raw_parts_mut(
                messages.as_mut_ptr().cast::<u8>(),
                wanted * size_of::<uapi::uffd_msg>(),
            )
        };
        let bytes = match read(self.as_fd(), buffer) {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(errno) => return Err(errno.into()),
        };
        let mut count = 0;
        for message in &messages[..bytes / size_of::<uapi::uffd_msg>()] {
            if let Some(fault) = decode(message) {
                out[count] = fault;
                count += 1;
            }
        }
        Ok(count)
    }
}

fn decode(message: &uapi::uffd_msg) -> Option<Fault> {
    if u32::from(message.event) != sys::UFFD_EVENT_PAGEFAULT {
        return None;
    }
    // SAFETY: the event says which member of the union is in use.
    let fault = unsafe { message.arg.pagefault };
    let flag = |bit: u32| fault.flags & u64::from(bit) != 0;
    Some(Fault {
        addr: fault.address as usize & !(wired::PAGE - 1),
        write: flag(sys::UFFD_PAGEFAULT_FLAG_WRITE),
        write_protected: flag(sys::UFFD_PAGEFAULT_FLAG_WP),
        minor: flag(sys::UFFD_PAGEFAULT_FLAG_MINOR),
        // SAFETY: the only member; zero where the feature is off.
        thread: unsafe { fault.feat.ptid },
    })
}
