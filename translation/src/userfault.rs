//! The descriptor through which the kernel delivers this process's faults to itself.
//!
//! Nemesis dispatches a fault to the domain that caused it (section 5.2). On Linux that is a
//! userfaultfd of one of two kinds: *upcall*, delivered as SIGBUS on the faulting thread (4.6 us
//! with the page copied in, no privilege, but a system call on a missing page fails with EFAULT),
//! and *thread*, read by handler threads (10.9 us pinned and polling; faults inside system calls
//! resolve too).
//!
//! Rule: `EVENT_*` features stay off but for shared memory ([`UserfaultOptions::reports_changes`]). A
//! pending event makes every ioctl fail with EAGAIN, and an unread one blocks the program in fork or munmap.

use crate::capability::{Capabilities, Feature};
use crate::uapi;
use crate::uffd_msg::{Fault, read_messages};
use linux_raw_sys::general as sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;

/// How faults reach the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// SIGBUS on the faulting thread itself.
    Upcall,
    /// A handler thread reads faults from the descriptor; the faulting thread sleeps.
    Thread,
}

/// Options of a descriptor beyond its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserfaultOptions {
    /// Accepts that faults inside system calls cannot be resolved. Always set for
    /// [`EntryKind::Upcall`].
    pub user_mode_only: bool,
    /// The kernel resolves and records write-protect faults ([`Feature::WpAsync`]), for all memory
    /// registered with the descriptor.
    pub async_write_protect: bool,
    /// Reports what the owner unmaps and moves of registered memory, to a reader that expects it
    /// ([`crate::ForeignUserfault`]). Not what it discards: shared memory keeps its contents.
    pub reports_changes: bool,
}

/// Why no descriptor could be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The kernel has no userfaultfd.
    #[error(
        "userfaultfd(2) is unavailable ({0}): the kernel is built without CONFIG_USERFAULTFD, or a seccomp filter \
         forbids it; run outside the container's filter or on a kernel with it"
    )]
    Unavailable(Errno),
    /// The process, or the machine, may have no more descriptors open.
    #[error("no descriptor is left for a userfaultfd ({0}): raise `ulimit -n`")]
    NoDescriptor(Errno),
    /// Only faults in user mode can be resolved.
    #[error(
        "faults taken inside system calls can't be resolved: userfaultfd(2): {syscall}, /dev/userfaultfd: \
         {device}; either of these, as root, enables it: `sysctl -w vm.unprivileged_userfaultfd=1`, or \
         `chmod 666 /dev/userfaultfd`"
    )]
    UserModeOnly {
        /// The system call's error.
        syscall: Errno,
        /// The error of opening or using the device.
        device: Errno,
    },
    /// The kernel lacks a feature that the kind of entry needs.
    #[error(
        "the kernel lacks {0}, which a pager of this kind needs; `selfpage doctor` lists what works here"
    )]
    Lacks(Feature),
    /// The kernel refused the features requested of a new descriptor.
    #[error(
        "UFFDIO_API refused features {features:#x}: {errno}; `selfpage doctor` lists what works here"
    )]
    Api {
        /// The requested feature bits.
        features: u64,
        /// The kernel's error.
        errno: Errno,
    },
}

/// Messages read in one call.
const BATCH: usize = 16;

/// An open userfaultfd, ready to register memory.
///
/// It belongs to the address space that opened it: in the child of a fork it still refers to the
/// parent's memory, and the child must open its own.
#[derive(Debug)]
pub struct Userfault {
    fd: OwnedFd,
    kind: EntryKind,
    options: UserfaultOptions,
    capabilities: Capabilities,
}

impl Userfault {
    /// Opens a descriptor of `kind`. For [`EntryKind::Thread`] it must resolve faults inside system
    /// calls; a caller that can do without opens it with [`Userfault::open_with`] after
    /// [`OpenError::UserModeOnly`].
    pub fn open(kind: EntryKind, capabilities: &Capabilities) -> Result<Self, OpenError> {
        Self::open_with(kind, capabilities, UserfaultOptions::default())
    }

    /// Opens a descriptor with [`UserfaultOptions`].
    pub fn open_with(
        kind: EntryKind,
        capabilities: &Capabilities,
        options: UserfaultOptions,
    ) -> Result<Self, OpenError> {
        let options = options.for_kind(kind);
        let fd = if options.user_mode_only {
            by_syscall(true).map_err(unavailable)?
        } else {
            open_full(capabilities)?
        };
        Self::adopt(fd, kind, capabilities, options)
    }

    /// Opens a descriptor through an open `/dev/userfaultfd`, for a process that dropped its
    /// privileges after opening the device.
    pub fn from_device(
        device: BorrowedFd<'_>,
        kind: EntryKind,
        capabilities: &Capabilities,
        options: UserfaultOptions,
    ) -> Result<Self, OpenError> {
        let options = options.for_kind(kind);
        let fd = by_device(device, options.user_mode_only).map_err(|errno| {
            match options.user_mode_only {
                true => unavailable(errno),
                false => user_mode_only(Errno::PERM, errno),
            }
        })?;
        Self::adopt(fd, kind, capabilities, options)
    }

    /// Takes over a descriptor that completed its `UFFDIO_API` with these properties: one kept
    /// across exec or received from another process.
    pub fn from_owned(
        fd: OwnedFd,
        kind: EntryKind,
        capabilities: &Capabilities,
        options: UserfaultOptions,
    ) -> Self {
        Self {
            fd,
            kind,
            options: options.for_kind(kind),
            capabilities: *capabilities,
        }
    }

    fn adopt(
        fd: OwnedFd,
        kind: EntryKind,
        capabilities: &Capabilities,
        options: UserfaultOptions,
    ) -> Result<Self, OpenError> {
        let features = features_for(kind, capabilities, options)?;
        handshake(fd.as_fd(), features).map_err(|errno| OpenError::Api { features, errno })?;
        Ok(Self {
            fd,
            kind,
            options,
            capabilities: *capabilities,
        })
    }

    /// How faults are delivered.
    pub fn kind(&self) -> EntryKind {
        self.kind
    }

    /// How the descriptor was opened.
    pub fn options(&self) -> UserfaultOptions {
        self.options
    }

    /// Returns true if the descriptor receives faults inside system calls, too.
    pub fn resolves_kernel_faults(&self) -> bool {
        !self.options.user_mode_only
    }

    /// The features in use.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Reads pending faults, at most as many as `out` holds and 16 a call. Returns `Ok(0)` when no
    /// fault is pending: wait with poll.
    pub fn read_faults(&self, out: &mut [Fault]) -> std::io::Result<usize> {
        let mut count = 0;
        read_messages::<BATCH>(self.as_fd(), out.len(), |message| {
            if let Some(fault) = Fault::decode(message) {
                out[count] = fault;
                count += 1;
            }
        })?;
        Ok(count)
    }
}

impl UserfaultOptions {
    fn for_kind(mut self, kind: EntryKind) -> Self {
        self.user_mode_only |= kind == EntryKind::Upcall;
        self
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Userfault> for OwnedFd {
    fn from(userfault: Userfault) -> OwnedFd {
        userfault.fd
    }
}

/// The feature bits to request. Features that only announce an ioctl are requested too: the
/// interface's documentation demands it.
fn features_for(
    kind: EntryKind,
    capabilities: &Capabilities,
    options: UserfaultOptions,
) -> Result<u64, OpenError> {
    let mut features = u64::from(sys::UFFD_FEATURE_PAGEFAULT_FLAG_WP);
    let mut optional = |feature, bit: u32| {
        if capabilities.has(feature) {
            features |= u64::from(bit);
        }
    };
    optional(Feature::Poison, sys::UFFD_FEATURE_POISON);
    optional(Feature::Move, sys::UFFD_FEATURE_MOVE);
    match kind {
        EntryKind::Upcall if !capabilities.has(Feature::Upcall) => {
            return Err(OpenError::Lacks(Feature::Upcall));
        }
        EntryKind::Upcall => features |= u64::from(sys::UFFD_FEATURE_SIGBUS),
        EntryKind::Thread => optional(Feature::ThreadId, sys::UFFD_FEATURE_THREAD_ID),
    }
    if options.reports_changes {
        let events = sys::UFFD_FEATURE_EVENT_UNMAP | sys::UFFD_FEATURE_EVENT_REMAP;
        // Shared memory is evicted under write protection.
        features |= u64::from(
            events | sys::UFFD_FEATURE_WP_HUGETLBFS_SHMEM | sys::UFFD_FEATURE_MISSING_SHMEM,
        );
    }
    if options.async_write_protect {
        if !capabilities.has(Feature::WpAsync) {
            return Err(OpenError::Lacks(Feature::WpAsync));
        }
        features |= u64::from(sys::UFFD_FEATURE_WP_ASYNC | sys::UFFD_FEATURE_WP_UNPOPULATED);
    }
    Ok(features)
}

/// Requests `features` and returns those the kernel has.
pub(crate) fn handshake(fd: BorrowedFd<'_>, features: u64) -> Result<u64, Errno> {
    let mut api = uapi::uffdio_api {
        api: u64::from(sys::UFFD_API),
        features,
        ioctls: 0,
    };
    // SAFETY: the argument of UFFDIO_API; it touches no memory of this process.
    unsafe { uapi::call::<{ uapi::API }, _>(fd, &mut api) }?;
    Ok(api.features)
}

fn flags(user_mode_only: bool) -> UserfaultfdFlags {
    let base = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    if user_mode_only {
        base | UserfaultfdFlags::from_bits_retain(sys::UFFD_USER_MODE_ONLY)
    } else {
        base
    }
}

pub(crate) fn by_syscall(user_mode_only: bool) -> Result<OwnedFd, Errno> {
    // SAFETY: an unregistered descriptor affects no memory.
    unsafe { rustix::mm::userfaultfd(flags(user_mode_only)) }
}

pub(crate) fn by_device(device: BorrowedFd<'_>, user_mode_only: bool) -> Result<OwnedFd, Errno> {
    uapi::userfaultfd_from_device(device, flags(user_mode_only).bits())
}

/// Opens `/dev/userfaultfd`, for [`Userfault::from_device`].
pub fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open(
        c"/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Opens a descriptor that is not user-mode-only, by the system call or the device.
fn open_full(capabilities: &Capabilities) -> Result<OwnedFd, OpenError> {
    if !capabilities.has(Feature::KernelFaults) {
        return Err(user_mode_only(Errno::PERM, Errno::PERM));
    }
    let syscall = match by_syscall(false) {
        Ok(fd) => return Ok(fd),
        Err(errno) => errno,
    };
    open_device()
        .and_then(|device| by_device(device.as_fd(), false))
        .map_err(|device| user_mode_only(syscall, device))
}

fn unavailable(errno: Errno) -> OpenError {
    no_descriptor(errno).unwrap_or(OpenError::Unavailable(errno))
}

fn user_mode_only(syscall: Errno, device: Errno) -> OpenError {
    let short = [syscall, device].into_iter().find_map(no_descriptor);
    short.unwrap_or(OpenError::UserModeOnly { syscall, device })
}

fn no_descriptor(errno: Errno) -> Option<OpenError> {
    matches!(errno, Errno::MFILE | Errno::NFILE).then_some(OpenError::NoDescriptor(errno))
}
