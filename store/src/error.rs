//! What can go wrong: on the page path, and when a store is made.

use crate::PageHandle;
use std::path::PathBuf;

/// What was being done to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOp {
    /// A page was being read.
    Read,
    /// A page was being written.
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

/// Where a stored page lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageLocation {
    /// Nowhere but in its catalogue entry: one repeated 64-bit value.
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
            PageLocation::Filled => f.write_str("the page page_index"),
            PageLocation::Ram { segment, offset } => {
                write!(f, "compressed RAM, segment {segment}, offset {offset}")
            }
            PageLocation::Disk { blok } => write!(f, "the swap file, blok {blok}"),
        }
    }
}

/// What a store tells about a page. Small and `Copy`: it is made where nothing may be
/// allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// No room for the page in any tier. The page is where it was.
    #[error("the store is full: give it more room (--store), or the program more frames")]
    Full,
    /// The catalogue has no entry left, whatever room there is.
    #[error("the store's page page_index is full: it names no more pages than it was laid out for")]
    IndexFull,
    /// More at once than a channel holds; complete some first. Nothing was submitted.
    #[error("the store's channel has too many pages in flight: complete some first")]
    Busy,
    /// The disk failed.
    #[error("{op} blok {blok} of the swap file failed: {}", rustix::io::Errno::from_raw_os_error(*.errno))]
    Io {
        /// What was being done.
        op: DiskOp,
        /// The system's error number.
        errno: i32,
        /// The blok.
        blok: u32,
    },
    /// What was read is not what was written. The page is lost; nothing wrong was handed out.
    #[error("{handle} read from {place} is not what was written there (checksum mismatch)")]
    Mismatch {
        /// The page.
        handle: PageHandle,
        /// Where it was read.
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
        /// Which part.
        what: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

/// Why a store could not be made or joined.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Shared memory for the store's tables.
    #[error("no memory for the store's {what} ({bytes} bytes): {errno}")]
    Memory {
        /// Which table.
        what: &'static str,
        /// How much was asked for.
        bytes: u64,
        /// The system's answer.
        errno: rustix::io::Errno,
    },
    /// The swap file's place.
    #[error("cannot make a swap file at {}: {why}; give --store another path", path.display())]
    Path {
        /// The path asked for.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file system has no room for the swap file.
    #[error(
        "no room for a swap file of {asked} bytes at {}: {there} bytes are free there; \
         ask for less (size=) or give another path",
        path.display()
    )]
    NoRoom {
        /// The path asked for.
        path: PathBuf,
        /// Bytes asked for.
        asked: u64,
        /// Bytes free.
        there: u64,
    },
    /// A configuration that cannot be.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// The descriptors are not those of a store of this version.
    #[error("these descriptors are not a store's: {0}")]
    NotAStore(&'static str),
    /// More processes than the store has slots for.
    #[error("holder {holder} is past the last slot of this store, {last}")]
    HolderId {
        /// The slot asked for.
        holder: u16,
        /// The last there is.
        last: u16,
    },
}
