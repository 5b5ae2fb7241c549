//! Why a file cannot back a stretch.

use rustix::io::Errno;
use wired::PAGE;

/// Why a [`Mapped`](super::Mapped) driver could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MappedError {
    /// An offset within a page.
    #[error("invalid offset: {0}; expected a multiple of {PAGE} bytes")]
    Offset(u64),
    /// No pages.
    #[error("invalid number of pages: 0; expected at least 1")]
    NoPages,
    /// Not a regular file.
    #[error(
        "the descriptor is not of a regular file, whose length would say how much of it can be mapped"
    )]
    NotRegular,
    /// Opened for appending.
    #[error(
        "the file is open for appending (O_APPEND): the kernel would write each page at its end; open it without"
    )]
    Append,
    /// The descriptor lacks a right.
    #[error("the file is not open for {0}, which mapping it needs")]
    NotOpenFor(&'static str),
    /// The kernel's error for the descriptor.
    #[error("the file cannot be mapped: {0}")]
    System(#[from] Errno),
}
