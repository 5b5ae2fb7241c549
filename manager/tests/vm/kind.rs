//! What a guest's memory is, and how it is handed over.

use super::uffd::{open_following_forks, register_minor};
use super::{PAGE, open_userfaultfd, register, word};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Pages that are there before the hand-off, where some are.
pub const LOADED: usize = 128;

/// What the guest's memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private anonymous memory.
    Private,
    /// The same, with its first pages in version 1 before the hand-off, as of a kernel that the VMM has loaded.
    Loaded,
    /// The same, handed over by a process that has other memory at these addresses.
    Launched,
    /// The same, of a process whose forks are followed.
    Forking,
    /// A memfd, mapped shared and handed over.
    Memfd,
    /// The same, with its first pages in version 1 before the hand-off.
    LoadedMemfd,
    /// The same, registered for faults on pages that the memfd has, too.
    MinorMemfd,
    /// The same, handed over by a process that does not map it and outlives this one.
    LaunchedMemfd,
    /// The same, by a descriptor that permits no change.
    ReadOnly,
    /// The same, sealed against changes by others than those that map it already.
    Sealed,
    /// A private mapping of the cache at this path.
    Cache(String),
    /// Private huge pages of 2 MiB.
    Huge,
    /// The same, which may find none free.
    UnreservedHuge,
    /// Private anonymous memory in two mappings, the first with the second half of the snapshot.
    Split,
}

impl Kind {
    /// The kind of this name.
    pub fn parse(name: &str) -> Self {
        match name {
            "private" => Self::Private,
            "loaded" => Self::Loaded,
            "launched" => Self::Launched,
            "forking" => Self::Forking,
            "memfd" => Self::Memfd,
            "loaded-memfd" => Self::LoadedMemfd,
            "minor-memfd" => Self::MinorMemfd,
            "launched-memfd" => Self::LaunchedMemfd,
            "read-only" => Self::ReadOnly,
            "sealed" => Self::Sealed,
            "huge" => Self::Huge,
            "unreserved-huge" => Self::UnreservedHuge,
            "split" => Self::Split,
            _ => match name.strip_prefix("cache:") {
                Some(path) => Self::Cache(path.to_owned()),
                None => panic!("{name}"),
            },
        }
    }

    /// Opens a userfaultfd, and registers the memory.
    pub fn register(&self, start: usize, len: usize) -> OwnedFd {
        let uffd = match self {
            Self::MinorMemfd => return register_minor(start, len),
            Self::Forking => open_following_forks(),
            _ => open_userfaultfd(),
        };
        register(&uffd, start, len);
        uffd
    }

    /// Returns true if a memfd is handed over.
    pub fn is_memfd(&self) -> bool {
        matches!(
            self,
            Self::Memfd
                | Self::LoadedMemfd
                | Self::MinorMemfd
                | Self::LaunchedMemfd
                | Self::ReadOnly
                | Self::Sealed
        )
    }

    /// Returns true if pages are there before the hand-off.
    pub fn is_loaded(&self) -> bool {
        matches!(self, Self::Loaded | Self::LoadedMemfd)
    }

    /// The descriptor of a memfd, which is mapped, that is handed over.
    pub fn to_send(&self, memfd: &OwnedFd) -> OwnedFd {
        match self {
            Self::ReadOnly => {
                let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
                let how = OFlags::RDONLY | OFlags::CLOEXEC;
                return rustix::fs::open(path, how, Mode::empty()).expect("a descriptor");
            }
            Self::Sealed => {
                fcntl_add_seals(memfd, SealFlags::FUTURE_WRITE).expect("a seal");
            }
            _ => {}
        }
        memfd.try_clone().expect("a descriptor")
    }
}

/// A memfd of `len` bytes.
pub fn make_memfd(len: usize) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("guest", flags).expect("memfd_create");
    rustix::fs::ftruncate(&fd, len as u64).expect("ftruncate");
    fd
}

/// Writes the pages that are there before the hand-off.
///
/// # Safety
/// `start` has as many pages.
pub unsafe fn load(start: *mut u64) {
    for page in 0..LOADED {
        for index in 0..PAGE / 8 {
            // SAFETY: the caller's promise.
            unsafe {
                start
                    .add(page * PAGE / 8 + index)
                    .write_volatile(word(page, 1, index));
            }
        }
    }
}
