//! Errors of the swap filesystem.

use super::file::{FileId, FileName, MAX_BLOB};
use rustix::io::Errno;
use std::fmt;
use wired::Bytes;

/// Why a filesystem could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// The path names something that cannot hold a filesystem.
    #[error("{place}: {why}")]
    Unusable {
        /// The path.
        place: String,
        /// The cause and the remedy.
        why: String,
    },
    /// Another process has it open.
    #[error("{place} is in use by {}", LockOwner(*holder))]
    Held {
        /// The path.
        place: String,
        /// The process, if the kernel shows it.
        holder: Option<u32>,
    },
    /// Formatting would destroy existing contents.
    #[error(
        "{place} holds {found}: formatting destroys it: name another place, or remove that first"
    )]
    Occupied {
        /// The path.
        place: String,
        /// The detected contents.
        found: String,
    },
    /// The device holds no swap filesystem.
    #[error(
        "{place} holds {found}, not a swap filesystem: a daemon makes one where there is nothing"
    )]
    NotOurs {
        /// The path.
        place: String,
        /// The detected contents.
        found: String,
    },
    /// The swap filesystem has a later version.
    #[error(
        "{place} has a swap filesystem of version {version}, this program supports {known}: use \
         the program that made it, or remove it (of a partition, zero the first 2 MiB): the daemon makes a new one"
    )]
    Newer {
        /// The path.
        place: String,
        /// Its version.
        version: u32,
        /// The last version supported here.
        known: u32,
    },
    /// Both superblocks are lost or invalid.
    #[error(
        "the swap filesystem on {place} is damaged ({why}): remove it (of a partition, zero the first 2 MiB), and \
         the daemon makes a new one"
    )]
    Damaged {
        /// The path.
        place: String,
        /// The damage.
        why: String,
    },
    /// The device became smaller.
    #[error(
        "the swap filesystem on {place} was made for {}, and there are {}: give it back its size, or remove it (of a \
         partition, zero the first 2 MiB): the daemon makes a new one", Bytes(*recorded), Bytes(*there)
    )]
    Shrunk {
        /// The path.
        place: String,
        /// Bytes of the device when it was formatted.
        recorded: u64,
        /// Bytes of it now.
        there: u64,
    },
    /// The device is too small for any file.
    #[error("{place} has {}: a swap filesystem needs at least {}", Bytes(*there), Bytes(*least))]
    TooSmall {
        /// The path.
        place: String,
        /// Bytes of the device.
        there: u64,
        /// Bytes required.
        least: u64,
    },
    /// The file exists with another size.
    #[error(
        "{place} has {}, and {} are asked: leave the size out to use it as it is, or remove it",
        Bytes(*there), Bytes(*asked)
    )]
    OtherSize {
        /// The path.
        place: String,
        /// Requested bytes.
        asked: u64,
        /// Bytes of the file.
        there: u64,
    },
    /// The file system has too little free space for the file.
    #[error(
        "{place}: {} asked, and its file system has {} free: ask for less, or free space there",
        Bytes(*asked), Bytes(*free)
    )]
    Disk {
        /// The path.
        place: String,
        /// Requested bytes.
        asked: u64,
        /// Bytes free on the file system.
        free: u64,
    },
    /// The device failed.
    #[error("{doing} on {place} failed: {errno}")]
    Io {
        /// The path.
        place: String,
        /// The operation.
        doing: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

/// Why an operation on files failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    /// Not enough space.
    #[error(
        "{} of swap asked, {} free (the largest piece {}): ask for less, or end a program that has some",
        Bytes(*asked), Bytes(*free), Bytes(*largest)
    )]
    NoRoom {
        /// Requested bytes.
        asked: u64,
        /// Free bytes.
        free: u64,
        /// The largest contiguous free range.
        largest: u64,
    },
    /// The table is full.
    #[error("limit of {most} {what} of swap files reached: end a program that has some")]
    Full {
        /// `files` or `extents`.
        what: &'static str,
        /// The limit: [`super::MAX_FILES`] or [`super::MAX_EXTENTS`].
        most: usize,
    },
    /// The name is taken.
    #[error("swap file \"{name}\" ({}) already exists", Bytes(*size))]
    Exists {
        /// The name.
        name: FileName,
        /// Bytes of the existing file.
        size: u64,
    },
    /// No such file.
    #[error("no such file: {0}")]
    Missing(FileId),
    /// A size of zero.
    #[error("invalid swap file size of 0 bytes: expected at least 1")]
    Empty,
    /// Files do not shrink.
    #[error(
        "the swap file has {} and {} are asked: it does not shrink; release it, and make another",
        Bytes(*size), Bytes(*asked)
    )]
    Shrinks {
        /// Bytes of the file.
        size: u64,
        /// Requested bytes.
        asked: u64,
    },
    /// The blob is too large.
    #[error("a swap file keeps at most {MAX_BLOB} bytes for its owner, not {0}")]
    Blob(usize),
    /// The scrub was replaced by a later one, or has not completed.
    #[error("this scrub of {0} was cancelled or is not complete: start another")]
    NotScrubbed(FileId),
    /// Two files have the same space. The table in memory is corrupt, not the device.
    #[error("the file table in memory is corrupt: restart the program")]
    Damaged,
    /// The device failed. The operation did not complete; if the device keeps failing, the next
    /// open may still find it completed.
    #[error("writing the table of swap files on {place} failed: {errno}; the table is as it was")]
    Io {
        /// The path.
        place: String,
        /// The kernel's error.
        errno: Errno,
    },
}

struct LockOwner(Option<u32>);

impl fmt::Display for LockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}: stop it first, or give another"),
            None => write!(
                f,
                "another (a process, a mount, swap or a volume): stop that first, or give another"
            ),
        }
    }
}
