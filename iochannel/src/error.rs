//! Why a channel cannot be made or attached.

use crate::GeometryError;
use rustix::io::Errno;

/// Why a channel cannot be made or attached.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The system refused a resource.
    #[error("an IO channel needs {what}: {errno}")]
    System {
        /// The resource.
        what: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// The descriptor is not a memfd that can be sealed.
    #[error("invalid descriptor for an IO channel's memory: no memfd of small pages")]
    NotMemory,
    /// The other side could truncate the memory, or add seals that forbid its use.
    #[error(
        "the memory passed as an IO channel is not sealed against shrinking, growing and further seals (its seals \
         are {seals:#x}); pass memory that a server made"
    )]
    Unsealed {
        /// Its seals.
        seals: u32,
    },
    /// The memory's size does not match its header.
    #[error(
        "the memory passed as an IO channel has {there} bytes, and its header requires {required}"
    )]
    Size {
        /// Bytes of the memory.
        there: u64,
        /// Bytes of the geometry in its header, or of the smallest channel.
        required: u64,
    },
    /// The header is of another program or version.
    #[error(
        "the memory passed as an IO channel begins with {magic:#x}, version {version}: not one of this version"
    )]
    Header {
        /// As read.
        magic: u64,
        /// As read.
        version: u32,
    },
    /// The header's geometry is invalid.
    #[error("invalid IO channel header: {0}")]
    ChannelGeometry(#[from] GeometryError),
    /// A client has used the channel before.
    #[error("the IO channel has been used by another client; request a new one from the server")]
    Used,
    /// The descriptor is of another kind.
    #[error("invalid descriptor for {what}")]
    NotABell {
        /// What the descriptor was passed as.
        what: &'static str,
    },
}

/// For `map_err`: names the resource.
pub(crate) fn needs(what: &'static str) -> impl Fn(Errno) -> ChannelError {
    move |errno| ChannelError::System { what, errno }
}
