//! Why a service cannot go on with what systemd has.

use crate::server::ManagerError;
use host::fd_store::FdStoreError;
use rustix::io::Errno;

/// How to have systemd forget what it has.
const FORGET: &str = "to end its guests, `systemctl stop` the service, and `systemctl clean --what=fdstore` it where \
                      its unit has FileDescriptorStorePreserve=yes";

/// Why a service cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FormerServiceError {
    /// No store.
    #[error(
        "systemd passes descriptors of the service before, but the environment names no descriptor store: the unit \
         needs FileDescriptorStoreMax=, and before systemd 254 Environment=FDSTORE= with the same number"
    )]
    NoStore,
    /// Descriptors of one name.
    #[error("systemd passes two descriptors named {0:?}: nothing is served; {FORGET}")]
    Doubled(String),
    /// Something else.
    #[error("the descriptor {0:?} that systemd passes is not {1}: nothing is served; {FORGET}")]
    Kind(&'static str, &'static str),
    /// Clients, but no record.
    #[error(
        "systemd has descriptors of {0} guests, but not \"manager\", the record: nothing is served; {FORGET}"
    )]
    NoRecord(usize),
    /// Other options.
    #[error(
        "the service before had {was:?}, and this one has {is:?}: start it with the former; {FORGET}"
    )]
    Changed {
        /// A line of the former description.
        was: String,
        /// The same line now.
        is: String,
    },
    /// What the store does not take.
    #[error(transparent)]
    Store(#[from] FdStoreError),
    /// The sockets.
    #[error(transparent)]
    Sockets(#[from] ManagerError),
    /// Memory.
    #[error("no memory for the record: {0}")]
    Memory(Errno),
}
