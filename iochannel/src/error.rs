//! Why a channel could not be made or joined.

use crate::BadShape;
use rustix::io::Errno;

/// Why a channel could not be made or joined.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The system refused.
    #[error("an IO channel needs {what}: {errno}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// Its answer.
        errno: Errno,
    },
    /// The descriptor is of no memory that can be sealed.
    #[error("the descriptor handed over as an IO channel's memory is no memfd of small pages")]
    NotMemory,
    /// The other side could take the memory away, or add seals that forbid its use.
    #[error(
        "the memory handed over as an IO channel is not sealed against shrinking, growing and further seals \
         (its seals are {seals:#x}): only memory that a server made is taken"
    )]
    Unsealed {
        /// What is sealed.
        seals: u32,
    },
    /// The memory is not as large as its header says.
    #[error(
        "the memory handed over as an IO channel has {there} bytes, and its header says {said}"
    )]
    Size {
        /// Bytes of the memory.
        there: u64,
        /// Bytes of the shape in its header, or of the smallest channel.
        said: u64,
    },
    /// The header is another program's, or another version's.
    #[error(
        "the memory handed over as an IO channel begins with {magic:#x}, version {version}: not one of this version"
    )]
    Header {
        /// As read.
        magic: u64,
        /// As read.
        version: u32,
    },
    /// The header's shape cannot be.
    #[error("the memory handed over as an IO channel says of itself: {0}")]
    Shape(#[from] BadShape),
    /// Somebody has asked through it before.
    #[error("the IO channel has been used by another client: ask the server for a new one")]
    Used,
    /// The descriptor is of no bell.
    #[error("the descriptor handed over as {what} is none")]
    NotABell {
        /// What it should be.
        what: &'static str,
    },
}

/// For `map_err`: what was asked of the system.
pub(crate) fn needs(what: &'static str) -> impl Fn(Errno) -> ChannelError {
    move |errno| ChannelError::System { what, errno }
}
