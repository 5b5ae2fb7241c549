//! What the swap filesystem refuses, and why.

use super::file::{FileId, FileName, MAX_BLOB};
use rustix::io::Errno;
use std::fmt;

/// Why there is no filesystem to use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// What the path names cannot hold a filesystem.
    #[error("{place}: {why}")]
    DevicePath {
        /// The path.
        place: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// Another has it open.
    #[error("{place} is in use by {}", LockOwner(*holder))]
    Held {
        /// The path.
        place: String,
        /// The process that opened it, if the kernel says.
        holder: Option<u32>,
    },
    /// Formatting would lose what is there.
    #[error(
        "{place} holds {found}: formatting loses that: name another place, or remove that first"
    )]
    Occupied {
        /// The path.
        place: String,
        /// What lies there.
        found: String,
    },
    /// There is no swap filesystem.
    #[error("{place} holds {found}, not a swap filesystem: format it first")]
    NotOurs {
        /// The path.
        place: String,
        /// What lies there.
        found: String,
    },
    /// A later version made it.
    #[error(
        "{place} has a swap filesystem of version {version}, and this program knows {known}: use \
         the program that made it, or format it again"
    )]
    Newer {
        /// The path.
        place: String,
        /// Its version.
        version: u32,
        /// The last version known here.
        known: u32,
    },
    /// Both superblocks of the tables are lost, or say what cannot be.
    #[error("the swap filesystem on {place} is damaged ({why}): format it again")]
    Damaged {
        /// The path.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// The device became smaller.
    #[error(
        "the swap filesystem on {place} was made for {}, and there are {}: give it back its size, \
         or format it again", Bytes(*recorded), Bytes(*there)
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
        /// Bytes there are.
        there: u64,
        /// Bytes there must be.
        least: u64,
    },
    /// The file is there, and of another size.
    #[error(
        "{place} has {}, and {} are asked: leave the size out to use it as it is, or remove it",
        Bytes(*there), Bytes(*asked)
    )]
    OtherSize {
        /// The path.
        place: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes it has.
        there: u64,
    },
    /// The file system the file would lie on has not as much.
    #[error(
        "{place}: {} asked, and its file system has {} free: ask for less, or free space there",
        Bytes(*asked), Bytes(*free)
    )]
    Disk {
        /// The path.
        place: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes free on the file system.
        free: u64,
    },
    /// The device failed.
    #[error("{doing} on {place} failed: {errno}")]
    Io {
        /// The path.
        place: String,
        /// What was tried.
        doing: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
}

/// Why an operation on files was not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    /// Not enough space.
    #[error(
        "{} of swap asked, {} free (the largest piece {}): ask for less, or release swap files",
        Bytes(*asked), Bytes(*free), Bytes(*largest)
    )]
    NoRoom {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that no file has.
        free: u64,
        /// Bytes of them that are contiguous.
        largest: u64,
    },
    /// A table is full.
    #[error("there are {most} {what} already, the most there can be: release swap files")]
    Full {
        /// Of what: files or extents.
        what: &'static str,
        /// As many as the table has: [`super::MAX_FILES`] or [`super::MAX_EXTENTS`].
        most: usize,
    },
    /// The name is taken.
    #[error("there is a swap file \"{name}\" of {} already", Bytes(*size))]
    Exists {
        /// The name.
        name: FileName,
        /// Bytes the file of that name has.
        size: u64,
    },
    /// No such file.
    #[error("there is no {0}: it was released, or never made")]
    Missing(FileId),
    /// A file of no bytes.
    #[error("a swap file of no bytes: ask for at least one")]
    Empty,
    /// Files do not shrink.
    #[error(
        "the swap file has {} and {} are asked: it does not shrink; release it, and make another",
        Bytes(*size), Bytes(*asked)
    )]
    Shrinks {
        /// Bytes it has.
        size: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// Too much to keep with a file.
    #[error("{0} bytes to keep with a swap file: it keeps {MAX_BLOB} at most")]
    Blob(usize),
    /// The scrub is not the file's last, or has not ended.
    #[error("this scrub of {0} was given up or has not ended: start another")]
    NotScrubbed(FileId),
    /// Two files have the same space. Not what the device says, but what memory does.
    #[error("the tables in memory are damaged: start the program again")]
    Damaged,
    /// The device failed. The operation is not done; if the device keeps failing, the next
    /// open may find it done.
    #[error("writing the tables failed: {0}; nothing was changed")]
    Io(Errno),
}

/// A number of bytes that reads as it would be written: `64 MiB`.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let whole = |&&(shift, _): &&(u32, &str)| self.0 > 0 && self.0.trailing_zeros() >= shift;
        match units.iter().find(whole) {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
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
