//! The swap filesystem: allocates parts of a disk to swap files.
//!
//! Nemesis, section 6.7: "The SFS is responsible for control operations such as allocation of an
//! extent (a contiguous range of blocks) for use as a swap file". A swap file is what one tenant
//! pages to. It lies in a few extents of a partition, or of a file that was allocated whole
//! beforehand (Mach's default memory manager does so for the same reason: a pager that finds the
//! disk full in the middle of an eviction has nowhere to go).
//!
//! | file | what it is |
//! |---|---|
//! | `table` | the files, pure: every operation makes the next table of this one |
//! | `free_space` | free extents, and the choice among them |
//! | `extents` | translation of an offset in a file to one on the device |
//! | `format`, `superblock` | the on-disk format; two copies of it on the device |
//! | `scrub` | zeroing of space that may hold another tenant's pages |
//! | `block_device`, `device`, `warning`, `lock`, `signatures` | the device, its lock, and its former contents |
//!
//! Rules:
//! - An operation is durable when it returns, or it did not happen. After a crash at any
//!   instruction, or with any sector half written, the next [`SwapFs::open`] finds every extent
//!   where it was before or after the interrupted operation (`superblock` explains how; `crash`
//!   tests it).
//! - No tenant reads what another wrote. A file is usable only as far as it was overwritten with
//!   zeros since its allocation: [`SwapFs::extents`] ends where the scrub has not been (`scrub`
//!   states the cost).
//! - One owner. The process that has the device open has it alone, until its last I/O completes.

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
mod warning;

#[cfg(test)]
mod tests;

pub use block_device::BlockDevice;
pub use device::{Device, FormatOptions};
pub use error::{FileError, OpenError};
pub use extents::{Extent, ExtentSlice, ExtentSlices, Extents, OutOfFile};
pub use file::{File, FileId, FileName, MAX_BLOB, NameError};
pub use fs::{SpaceUsage, SwapFs};
pub use scrub::{CancelledScrub, Scrub, ScrubError, ScrubProgress};
pub use warning::DeviceWarning;

/// Allocation unit in bytes. Large, so that a file of any size has few extents, a request of a few
/// pages seldom straddles two, and tables of fixed size cover any disk; small beside the swap of
/// the smallest tenant. Also a multiple of what devices erase, stripe or align by.
pub const UNIT: u64 = 1 << 20;

/// Maximum number of files.
pub const MAX_FILES: usize = 1024;

/// Maximum number of extents of all files.
pub const MAX_EXTENTS: usize = 8192;

/// Bytes at the start of the device that hold the superblocks; the rest holds files.
pub const DATA: u64 = 2 * superblock::SUPERBLOCK_BYTES;
