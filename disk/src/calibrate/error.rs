//! Why a disk could not be measured.

use crate::swapfs::FileError;
use rustix::io::Errno;

/// Why a disk could not be measured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CalibrateError {
    /// No io_uring.
    #[error(
        "io_uring was refused ({0}): allow it (sysctl kernel.io_uring_disabled=0; a container may \
         forbid it as well)"
    )]
    Ring(Errno),
    /// No memory for buffers.
    #[error("no memory for calibrating the disk: {0}")]
    Memory(Errno),
    /// The disk failed.
    #[error("measuring the disk failed: {0}")]
    Io(Errno),
    /// No extent is large enough.
    #[error("calibration needs an extent of {least} bytes to overwrite, and has {there}")]
    Small {
        /// Bytes of the largest extent.
        there: u64,
        /// Bytes it must have.
        least: u64,
    },
    /// No file to measure on.
    #[error("no room to measure the disk on: {0}")]
    File(#[from] FileError),
    /// The time ran out before the first measurement.
    #[error("nothing was measured: allow more time")]
    Nothing,
}
