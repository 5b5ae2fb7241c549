//! A userfaultfd of another process: the page table of memory that cannot carry its own pager.
//!
//! Mach's external pager answered the faults of memory that it had not mapped (*Moving the Default
//! Memory Manager out of the Mach Kernel*). On Linux the owner of an address space opens a
//! userfaultfd and sends it over a socket; every operation then acts on the owner's memory.
//!
//! What a handler may do to memory of another process (`cargo run -p translation --example
//! foreign_modes` prints the table for the running kernel):
//!
//! - It may register further modes itself, whatever features the owner requested.
//! - It may map (`UFFDIO_COPY`, `ZEROPAGE`, `CONTINUE`) and write-protect, but not unmap: the kernel
//!   refuses `process_madvise(MADV_DONTNEED)` on another process. Shared memory is unmapped by
//!   punching a hole in its memfd; private anonymous memory cannot be evicted from outside.
//! - The owner decides which events arrive. [`UffdMessage`] has them all: one that is not read blocks
//!   the owner, and every mapping operation fails with [`MapError::Again`] until it is. Once it is read the owner's
//!   thread has to run before that ends. So each operation here is repeated for a moment: an owner that changes
//!   memory in a loop is between two changes then, and not any more when its next event is read.

use crate::capability::Capabilities;
use crate::map::{MapError, Wake};
use crate::message_slot::MessageSlot;
use crate::register::{TranslationError, UNMAPPED, failed, is_memory_in_use, range};
use crate::uapi;
use crate::uffd_msg::{Fault, read_now};
use crate::userfault::{EntryKind, Userfault, UserfaultOptions};
use linux_raw_sys::general as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Why a descriptor is no userfaultfd to serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUserfault {
    /// Another kind of file.
    #[error("the descriptor is {0}; a userfaultfd (anon_inode:[userfaultfd]) is needed")]
    OtherFile(String),
    /// The descriptor could not be inspected or set up.
    #[error("the descriptor cannot be used as a userfaultfd: {0}")]
    Refused(Errno),
}

/// Which accesses a range's registration reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Accesses to pages without contents.
    pub missing: bool,
    /// Stores to write-protected pages.
    pub write_protect: bool,
    /// Accesses to pages that are in the page cache and not mapped.
    pub minor: bool,
}

/// What the kernel reports of the owner's memory.
#[derive(Debug)]
pub enum UffdMessage {
    /// A thread waits for a page.
    Fault(Fault),
    /// The owner discards contents (`MADV_DONTNEED`, `MADV_REMOVE`): the pages read zero from now on.
    Removed {
        /// First byte.
        addr: usize,
        /// Bytes.
        len: usize,
    },
    /// The owner unmapped the range.
    Unmapped {
        /// First byte.
        addr: usize,
        /// Bytes.
        len: usize,
    },
    /// The owner moved the range by `mremap`.
    Moved {
        /// The former first byte.
        from: usize,
        /// The present first byte.
        to: usize,
        /// Bytes.
        len: usize,
    },
    /// The owner forked: the child's userfaultfd. The child reads zeros once it is closed.
    Forked(OwnedFd),
    /// An event that this version does not know.
    Unknown(u8),
}

/// A userfaultfd that its owner handed over.
#[derive(Debug)]
pub struct ForeignUserfault {
    userfault: Userfault,
    /// What repeated operations do next: see [`ForeignUserfault::settle`].
    sleeps: AtomicBool,
    /// The thread that changes memory did not go on in time: operations are made once until it has, or another message is read.
    is_late: AtomicBool,
    /// Another process has cleared O_NONBLOCK.
    was_blocking: AtomicBool,
}

/// The name of a userfaultfd in `/proc/self/fd`.
const NAME: &str = "anon_inode:[userfaultfd]";

impl ForeignUserfault {
    /// Checks that a descriptor is a userfaultfd. Its close never waits for a peer, so any thread may close it.
    pub fn check(fd: impl AsFd) -> Result<(), NotUserfault> {
        let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let name = rustix::fs::readlink(link, Vec::new()).map_err(NotUserfault::Refused)?;
        let name = name.to_string_lossy();
        match name == NAME {
            true => Ok(()),
            false => Err(NotUserfault::OtherFile(name.into_owned())),
        }
    }

    /// Takes a received descriptor over, and makes reads of it return at once.
    pub fn adopt(fd: OwnedFd) -> Result<Self, NotUserfault> {
        Self::check(&fd)?;
        let flags = fcntl_getfl(&fd).map_err(NotUserfault::Refused)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(NotUserfault::Refused)?;
        let options = UserfaultOptions::default();
        Ok(Self {
            userfault: Userfault::from_owned(fd, EntryKind::Thread, &Capabilities::NONE, options),
            sleeps: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            was_blocking: AtomicBool::new(false),
        })
    }

    /// The operations that are the same on one's own memory, made once.
    pub fn userfault(&self) -> &Userfault {
        &self.userfault
    }

    /// See [`Userfault::zero`].
    pub fn zero(&self, addr: usize, len: usize, wake: Wake) -> Result<(), MapError> {
        self.settle(|| self.userfault.zero(addr, len, wake))
    }

    /// See [`Userfault::copy`].
    pub fn copy(&self, to: usize, from: *const u8, len: usize, wake: Wake) -> Result<(), MapError> {
        self.settle(|| self.userfault.copy(to, from, len, wake))
    }

    /// See [`Userfault::write_protect`].
    pub fn write_protect(&self, addr: usize, len: usize, on: bool) -> Result<(), TranslationError> {
        self.settle(|| self.userfault.write_protect(addr, len, on))
    }

    /// See [`Userfault::wake`].
    pub fn wake(&self, addr: usize, len: usize) -> Result<(), TranslationError> {
        self.userfault.wake(addr, len)
    }

    /// Returns true if all that the owner has changed before is read: no change is under way.
    pub fn has_settled(&self) -> bool {
        // The kernel looks for changes before it refuses the empty range.
        let outcome = self.settle(|| self.userfault.zero(UNMAPPED, 0, Wake::No));
        !matches!(outcome, Err(MapError::Again { .. }))
    }

    /// Registers the range in further modes; those it has stay.
    pub fn register(&self, addr: usize, len: usize, modes: Modes) -> Result<(), TranslationError> {
        let bit = |on: bool, mode: u32| if on { u64::from(mode) } else { 0 };
        let mut argument = uapi::uffdio_register {
            range: range(addr, len),
            mode: bit(modes.missing, sys::UFFDIO_REGISTER_MODE_MISSING)
                | bit(modes.write_protect, sys::UFFDIO_REGISTER_MODE_WP)
                | bit(modes.minor, sys::UFFDIO_REGISTER_MODE_MINOR),
            ioctls: 0,
        };
        // SAFETY: the argument of UFFDIO_REGISTER; contents stay as they are.
        unsafe { uapi::call::<{ uapi::REGISTER }, _>(self.as_fd(), &mut argument) }
            .map(drop)
            .map_err(failed("registering", addr, len))
    }

    /// Maps pages that are in the page cache of the mapped file, and wakes the threads that wait
    /// for them.
    pub fn map_cached(&self, addr: usize, len: usize) -> Result<(), MapError> {
        let map = |done| {
            let mut argument = uapi::uffdio_continue {
                range: range(addr + done, len - done),
                mode: 0,
                mapped: 0,
            };
            // SAFETY: maps pages of the owner's own file, in registered memory only.
            let result =
                unsafe { uapi::call::<{ uapi::CONTINUE }, _>(self.as_fd(), &mut argument) };
            (result, argument.mapped)
        };
        self.settle(|| crate::map::all(len, map))
    }

    /// Makes accesses to missing pages fail, and wakes the threads that wait for them.
    pub fn poison(&self, addr: usize, len: usize) -> Result<(), MapError> {
        let mark = |done| {
            let mut argument = uapi::uffdio_poison {
                range: range(addr + done, len - done),
                mode: 0,
                updated: 0,
            };
            // SAFETY: marks missing pages of registered memory only.
            let result = unsafe { uapi::call::<{ uapi::POISON }, _>(self.as_fd(), &mut argument) };
            (result, argument.updated)
        };
        self.settle(|| crate::map::all(len, mark))
    }

    /// Reads pending messages into `out`, a batch at most, and returns how many there are. Zero: none
    /// is pending, wait with poll.
    ///
    /// # Errors
    /// As for [`ForeignUserfault::read_into`].
    pub fn read(&self, out: &mut [Option<UffdMessage>]) -> Result<usize, Errno> {
        let slots: [_; BATCH] = std::array::from_fn(|_| MessageSlot::default());
        let count = self.read_into(&slots[..out.len().min(BATCH)])?;
        for (out, slot) in out.iter_mut().zip(&slots[..count]) {
            *out = slot.message();
        }
        Ok(count)
    }

    /// Reads pending messages into `slots`, which are empty, and returns how many there are. Where the slots' memory
    /// outlives this process and stays in RAM, so does what was read: the kernel writes a message before it can end
    /// the reader.
    ///
    /// # Errors
    /// The kernel's, and `EBADFD` for a descriptor whose O_NONBLOCK another process has cleared twice.
    pub fn read_into(&self, slots: &[MessageSlot]) -> Result<usize, Errno> {
        let bytes = size_of_val(slots);
        let at = slots.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: the slots' own memory, of any bytes; their owner, the caller, does not access them meanwhile.
        let buffer = unsafe { std::slice::from_raw_parts_mut(at, bytes) };
        let count = read_now(self.as_fd(), buffer)? / size_of::<MessageSlot>();
        match count {
            0 => self.keep_nonblocking()?,
            // The thread whose event was read may go on now.
            _ => self.is_late.store(false, Ordering::Relaxed),
        }
        Ok(count)
    }

    /// Sets O_NONBLOCK, which the owner's descriptor shares, where it is clear: poll reports such a userfaultfd at all
    /// times. An owner that clears it again and again would have its reader run without a pause.
    fn keep_nonblocking(&self) -> Result<(), Errno> {
        let flags = fcntl_getfl(self)?;
        if flags.contains(OFlags::NONBLOCK) {
            return Ok(());
        }
        if self.was_blocking.swap(true, Ordering::Relaxed) {
            return Err(Errno::BADFD);
        }
        fcntl_setfl(self, flags | OFlags::NONBLOCK)
    }

    /// Returns true if the owner requested events of discarded pages: the kernel then discards no page
    /// before the event is read.
    pub fn reports_discards(&self) -> bool {
        let path = format!("/proc/self/fdinfo/{}", self.as_fd().as_raw_fd());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // API: version:features in use:features of the kernel, in hexadecimal.
        let api = text.lines().find_map(|line| line.strip_prefix("API:"));
        let features = api.and_then(|api| api.split(':').nth(1));
        let features = features.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
        features.is_some_and(|it| it & u64::from(sys::UFFD_FEATURE_EVENT_REMOVE) != 0)
    }

    /// Makes a call again while the owner's memory changes, until an event is unread: the thread that changes it goes on between
    /// the read of one event and the next, for a microsecond where it discards page by page. On a processor of its own it
    /// is met there by attempts without a pause; on this thread's it runs only while this one sleeps. Which it is cannot
    /// be known: each time one has failed the other is tried.
    ///
    /// First touches in 6 s beside a thread that discards other pages without a pause, private memory and a memfd: 1 and 1 with one
    /// attempt after each event; with these all 8192, the slowest 3 ms; where twelve others want the two processors 6546 and 28,
    /// the slowest 2.5 s (Linux 6.18; alone attempts have 5 and 7 there, sleeps 766 and 2126).
    fn settle<E: ChangeError>(&self, mut call: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let mut begin = None;
        let sleeps = self.sleeps.load(Ordering::Relaxed);
        loop {
            let mut outcome = Ok(());
            for _ in 0..IN_A_ROW {
                outcome = call();
                if !matches!(&outcome, Err(why) if why.is_change()) {
                    self.is_late.store(false, Ordering::Relaxed);
                    return outcome;
                }
                if self.is_late.load(Ordering::Relaxed) {
                    return outcome;
                }
            }
            let is_late = begin.get_or_insert_with(Instant::now).elapsed() > SETTLING;
            if is_late || self.has_message() {
                self.is_late.store(is_late, Ordering::Relaxed);
                self.sleeps.store(!sleeps, Ordering::Relaxed);
                return outcome;
            }
            if sleeps {
                // The kernel wakes a thread up to 50 us late otherwise.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                std::thread::sleep(Duration::from_nanos(1));
            }
        }
    }

    fn has_message(&self) -> bool {
        let mut ready = [PollFd::new(self, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Returns true while a process has the address space.
    pub fn is_owner_alive(&self) -> bool {
        is_memory_in_use(self)
    }
}

/// How long an operation is repeated while the owner's memory changes. The thread that changes it needs less, once a
/// processor has it.
const SETTLING: Duration = Duration::from_micros(200);
/// Attempts before the clock and the messages are looked at.
const IN_A_ROW: u32 = 8;

/// The error of an operation that the kernel refuses while the owner's memory changes.
trait ChangeError {
    /// Returns true if that is why, and nothing was done.
    fn is_change(&self) -> bool;
}

impl ChangeError for MapError {
    fn is_change(&self) -> bool {
        *self == Self::Again { done: 0 }
    }
}

impl ChangeError for TranslationError {
    fn is_change(&self) -> bool {
        self.errno == Errno::AGAIN
    }
}

/// Messages read in one call.
const BATCH: usize = 64;

impl UffdMessage {
    pub(crate) fn decode(message: &uapi::uffd_msg) -> Self {
        // SAFETY: in each arm the event selects the union's member.
        unsafe {
            match u32::from(message.event) {
                sys::UFFD_EVENT_REMOVE => Self::Removed {
                    addr: message.arg.remove.start as usize,
                    len: (message.arg.remove.end - message.arg.remove.start) as usize,
                },
                sys::UFFD_EVENT_UNMAP => Self::Unmapped {
                    addr: message.arg.remove.start as usize,
                    len: (message.arg.remove.end - message.arg.remove.start) as usize,
                },
                sys::UFFD_EVENT_REMAP => Self::Moved {
                    from: message.arg.remap.from as usize,
                    to: message.arg.remap.to as usize,
                    len: message.arg.remap.len as usize,
                },
                sys::UFFD_EVENT_FORK => {
                    // The kernel has opened the descriptor for the reader of the message.
                    Self::Forked(OwnedFd::from_raw_fd(message.arg.fork.ufd as i32))
                }
                _ => match Fault::decode(message) {
                    Some(fault) => Self::Fault(fault),
                    None => Self::Unknown(message.event),
                },
            }
        }
    }
}

impl AsFd for ForeignUserfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.userfault.as_fd()
    }
}
