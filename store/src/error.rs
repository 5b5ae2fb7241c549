//! Errors: on the page path, and when a store is made.

use crate::PageHandle;
use std::path::PathBuf;
use wired::units::size;

/// An operation on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOp {
    /// A read of a page.
    Read,
    /// A write of a page.
    Write,
}

impl std::fmt::Display for DiskOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DiskOp::Read => "reading",
            DiskOp::Write => "writing",
        })
    }
}

/// The location of a stored page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageLocation {
    /// In its index entry only: one repeated 64-bit value.
    Filled,
    /// Compressed RAM.
    Ram {
        /// Number of the segment in the arena.
        segment: u32,
        /// Bytes from the segment's start.
        offset: u32,
    },
    /// The swap file.
    Disk {
        /// Number of the blok; times 4096 it is the offset in the file.
        blok: u32,
    },
}

impl std::fmt::Display for PageLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PageLocation::Filled => f.write_str("the page index"),
            PageLocation::Ram { segment, offset } => {
                write!(f, "compressed RAM, segment {segment}, offset {offset}")
            }
            PageLocation::Disk { blok } => write!(f, "the swap file, blok {blok}"),
        }
    }
}

/// An error of one page. Small and `Copy`: it is made where nothing may be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// No tier has room for the page. The page stays where it was.
    #[error(
        "the store is full: give it more room (--store; --swap under a daemon), or the program more frames"
    )]
    Full,
    /// The index has no free entry, even if a tier has room.
    #[error(
        "the store's page index is full: a larger store has more entries (--store; --swap under a daemon)"
    )]
    IndexFull,
    /// Too many pages in flight for a channel. Nothing was submitted.
    #[error("the store's channel has too many pages in flight: complete some first")]
    Busy,
    /// The disk failed.
    #[error("{op} blok {blok} of the store failed: {}", rustix::io::Errno::from_raw_os_error(*.errno))]
    Io {
        /// The operation.
        op: DiskOp,
        /// The error number.
        errno: i32,
        /// The blok.
        blok: u32,
    },
    /// The page read is not the page written. The page is lost; no wrong bytes were returned.
    #[error("{handle} read from {place} is not what was written there (checksum mismatch)")]
    Mismatch {
        /// The page.
        handle: PageHandle,
        /// The location read.
        place: PageLocation,
    },
    /// The handle names no stored page.
    #[error("{handle} is not in the store")]
    NoSuchPage {
        /// The handle.
        handle: PageHandle,
    },
    /// A channel could not be made.
    #[error("a store channel cannot be made ({what}): {}", rustix::io::Errno::from_raw_os_error(*.errno))]
    Channel {
        /// The part that failed.
        what: &'static str,
        /// The error number.
        errno: i32,
    },
}

impl StoreError {
    /// Returns true if a read that failed so fails again: the contents are lost.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Mismatch { .. } | Self::NoSuchPage { .. })
    }
}

/// Why a store could not be made or joined.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// No shared memory for the store's tables.
    #[error(
        "no memory for the store's {what}{}: {errno}{}",
        match bytes { 0 => String::new(), bytes => format!(" ({bytes} bytes)") },
        if *errno == rustix::io::Errno::FBIG { "; it is a file to the kernel, see `ulimit -f`" } else { "" }
    )]
    Memory {
        /// The table.
        what: &'static str,
        /// Requested bytes, where they are known.
        bytes: u64,
        /// The kernel's error.
        errno: rustix::io::Errno,
    },
    /// No swap file can be made at the path.
    #[error("cannot make a swap file at {}: {why}; give --store another path", path.display())]
    Path {
        /// The requested path.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The file system has no room for the swap file.
    #[error(
        "no room for a swap file of {} at {}: {} are free there; \
         ask for less (size=) or give another path",
        size(*asked), path.display(), size(*there)
    )]
    NoRoom {
        /// The requested path.
        path: PathBuf,
        /// Requested bytes.
        asked: u64,
        /// Free bytes.
        there: u64,
    },
    /// An invalid configuration.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// The descriptors do not belong to a store of this version.
    #[error("these descriptors are not a store's: {0}")]
    NotAStore(&'static str),
    /// The store has fewer slots.
    #[error("holder {holder} is past the last slot of this store, {last}")]
    HolderId {
        /// The requested slot.
        holder: u16,
        /// The last slot.
        last: u16,
    },
}
