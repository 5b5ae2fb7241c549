//! Fault messages read from a descriptor of [`crate::EntryKind::Thread`].
//!
//! Rule: a descriptor delivers faults only: `EVENT_*` features stay off. The kernel may deliver the
//! same fault twice (after a signal to its thread), so resolving one twice must be harmless.

use crate::uapi;
use linux_raw_sys::general as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, preadv2, read};

/// A fault whose thread sleeps until the fault is resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// The page's first byte.
    pub addr: usize,
    /// The access was a store.
    pub write: bool,
    /// The page is present and write-protected.
    pub write_protected: bool,
    /// The page is in the page cache and not mapped.
    pub minor: bool,
    /// Thread id of the faulting thread, in the reader's pid namespace; 0 without
    /// [`crate::Feature::ThreadId`].
    pub thread: u32,
}

impl Fault {
    /// The fault of a message; none where it reports another event.
    pub(crate) fn decode(message: &uapi::uffd_msg) -> Option<Self> {
        if u32::from(message.event) != sys::UFFD_EVENT_PAGEFAULT {
            return None;
        }
        // SAFETY: the event selects the union's member.
        let fault = unsafe { message.arg.pagefault };
        let flag = |bit: u32| fault.flags & u64::from(bit) != 0;
        Some(Self {
            addr: fault.address as usize & !(wired::PAGE - 1),
            write: flag(sys::UFFD_PAGEFAULT_FLAG_WRITE),
            write_protected: flag(sys::UFFD_PAGEFAULT_FLAG_WP),
            minor: flag(sys::UFFD_PAGEFAULT_FLAG_MINOR),
            // SAFETY: the only member; zero where the feature is off.
            thread: unsafe { fault.feat.ptid },
        })
    }
}

/// Reads pending messages, at most `most` and `BATCH`, and passes them to `each`. None is passed
/// where none is pending: wait with poll.
pub(crate) fn read_messages<const BATCH: usize>(
    fd: BorrowedFd<'_>,
    most: usize,
    each: impl FnMut(&uapi::uffd_msg),
) -> Result<(), Errno> {
    // SAFETY: the messages are plain old data; all zeros is a valid value.
    let mut messages: [uapi::uffd_msg; BATCH] = unsafe { std::mem::zeroed() };
    let wanted = most.min(BATCH);
    if wanted == 0 {
        return Ok(());
    }
    // SAFETY: the bytes of the array; any bytes the kernel writes are valid.
    let buffer = unsafe {
        std::slice::from_raw_parts_mut(
            messages.as_mut_ptr().cast::<u8>(),
            wanted * size_of::<uapi::uffd_msg>(),
        )
    };
    // Within a process that is paged: a filter of system calls permits this call, and may refuse others.
    let bytes = match read(fd, buffer) {
        Ok(bytes) => bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let count = bytes / size_of::<uapi::uffd_msg>();
    messages[..count].iter().for_each(each);
    Ok(())
}

/// Reads pending messages of another process, and never waits for one: 0 bytes where none is pending. O_NONBLOCK is the open file's, which another
/// process may have, too, and clear.
pub(crate) fn read_now(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    // The file's own position.
    const POSITION: u64 = u64::MAX;
    let mut into = [IoSliceMut::new(buffer)];
    let read = match preadv2(fd, &mut into, POSITION, ReadWriteFlags::NOWAIT) {
        // Before Linux 6.10, or where a filter of system calls refuses it.
        Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSYS) => read_reported(fd, buffer),
        read => read,
    };
    match read {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        read => read,
    }
}

/// Reads where poll reports a message.
fn read_reported(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut ready = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    if poll(&mut ready, Some(&Timespec::default()))? == 0 {
        return Ok(0);
    }
    // Its thread may have ended since.
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
    read(fd, buffer)
}
