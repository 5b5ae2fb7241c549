//! Why a disk could not be measured.

use crate::swapfs::FileError;
use rustix::io::Errno;

/// Why a disk could not be measured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CalibrateError {
    /// No ring to do I/O with.
    #[error(
        "io_uring was refused ({0}): allow it (sysctl kernel.io_uring_disabled=0; a container may \
         forbid it as well)"
    )]
    Ring(Errno),
    /// No memory for buffers.
    #[error("no memory to measure the disk with: {0}")]
    Memory(Errno),
    /// The disk failed.
    #[error("measuring the disk failed: {0}")]
    Io(Errno),
    /// Nothing to measure on.
    #[error("measuring the disk needs {least} bytes in one piece to overwrite, and has {there}")]
    Small {
        /// Bytes of the largest extent.
        there: u64,
        /// Bytes it must have.
        least: u64,
    },
    /// No file to measure on.
    #[error("no room to measure the disk on: {0}")]
    File(#[from] FileError),
    /// The time was over before anything was measured.
    #[error("nothing was measured: give it more time")]
    Nothing,
}
