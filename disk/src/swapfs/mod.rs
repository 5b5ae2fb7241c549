//! The swap filesystem: which part of a disk is whose.
//!
//! Nemesis, section 6.7: "The SFS is responsible for control operations such as allocation
//! of an extent (a contiguous range of blocks) for use as a swap file". A swap file is what
//! one tenant pages to. It lies in a few extents of a partition, or of a file that was
//! allocated whole beforehand (Mach's default memory manager does so for the same reason: a
//! pager that finds the disk full in the middle of an eviction has nowhere to go).
//!
//! | file | what it is |
//! |---|---|
//! | `table` | which files there are, pure: every operation makes the next table of this one |
//! | `space` | what no file has, and which part of it to give |
//! | `extents` | from an offset in a file to one on the device |
//! | `image`, `superblocks` | the table as bytes; two superblocks of it on the device |
//! | `scrub` | zeros where another's pages may still lie |
//! | `medium`, `device`, `holder`, `found` | what the bytes lie on, and whose it was before |
//!
//! Rules:
//! - An operation is done when it returns, or it is not. Killed at any instruction, or with
//!   any sector half written, the next [`SwapFs::open`] finds every extent where it was
//!   before or after the operation in hand (`superblocks` says how; `crash` tests it).
//! - No tenant reads what another wrote. A file is given out only as far as it was
//!   overwritten with zeros since it was allocated: [`SwapFs::extents`] ends where the scrub
//!   has not been (`scrub` says what that costs).
//! - One owner. Whoever has the device open has it alone, until the last I/O it began ends.

mod block_device;
mod device;
mod error;
mod extents;
mod file;
mod format;
mod free_space;
mod fs;
mod lock;
mod scrub;
mod signatures;
mod superblock;
mod table;

#[cfg(test)]
mod crash;
#[cfg(test)]
mod mock_device;
#[cfg(test)]
mod reference_model;

pub use block_device::BlockDevice;
pub use device::{Device, DeviceWarning, FormatOptions};
pub use error::{FileError, OpenError};
pub use extents::{Extent, ExtentSlice, ExtentSlices, Extents, OutOfFile};
pub use file::{File, FileId, FileName, MAX_BLOB, NameError};
pub use fs::{SwapFs, Usage};
pub use scrub::{Scrub, ScrubError, ScrubProgress};

/// Bytes in which space is given out. Large, so that a file of any size has few extents, a
/// request of a few pages seldom straddles two, and tables of fixed size cover any disk;
/// small beside the swap of the smallest tenant. Also a multiple of what devices erase, stripe
/// or align by.
pub const UNIT: u64 = 1 << 20;

/// Files there may be at once.
pub const MAX_FILES: usize = 1024;

/// Extents there may be at once, of all files.
pub const MAX_EXTENTS: usize = 8192;

/// Bytes at the start of the device that hold the tables; the rest is the files'.
const DATA: u64 = 2 * superblock::SUPERBLOCK_BYTES;
