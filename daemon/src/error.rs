//! Why the daemon does not run.

use crate::config::ConfigError;
use crate::own_folder::MissingFolder;
use crate::refusal::Refusal;
use disk::swapfs::{FileError, OpenError};
use rustix::io::Errno;
use std::path::PathBuf;

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Its configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The swap file.
    #[error(transparent)]
    Swap(#[from] OpenError),
    /// Its tables.
    #[error("the swap filesystem cannot be used: {0}")]
    Table(#[from] FileError),
    /// The disk.
    #[error("the disk cannot be used: {0}")]
    Disk(String),
    /// The contract of a tenant of an earlier daemon cannot be kept.
    #[error(
        "{tenant} of an earlier daemon has {terms}, which cannot be kept: {why}; promise as much as then, or end \
         its process {pid}"
    )]
    Promised {
        /// The tenant.
        tenant: String,
        /// Its process.
        pid: i32,
        /// Its contract.
        terms: String,
        /// Why.
        why: Refusal,
    },
    /// The socket cannot be made.
    #[error("cannot listen at {}: {why}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A folder of a file of the daemon's.
    #[error(transparent)]
    Folder(#[from] MissingFolder),
    /// A system call failed that the daemon cannot do without.
    #[error("cannot {what}: {errno}")]
    Call {
        /// What it was for.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}
