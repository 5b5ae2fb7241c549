//! Why a linked program cannot join, or cannot leave.

use crate::TenantError;
use frames::LedgerError;
use rustix::io::Errno;
use store::SetupError;

/// Why a linked program cannot join, or cannot leave.
#[derive(Debug, thiserror::Error)]
pub enum LinkedError {
    /// The daemon.
    #[error(transparent)]
    Session(#[from] TenantError),
    /// The ledger cannot be made.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The store cannot be made.
    #[error(transparent)]
    Store(#[from] SetupError),
    /// Something that the kernel does not give.
    #[error("cannot {what}: {errno}")]
    Call {
        /// What it was for.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// What was made of the [`DomainResources`](crate::DomainResources) is still there.
    #[error(
        "the contract is still used: a domain with {frames} frames, or one of its stretches, is there; drop them, \
         then leave"
    )]
    InUse {
        /// Frames that are owned.
        frames: u32,
    },
    /// The daemon finds that something is still used.
    #[error("the contract cannot be given back: {0}")]
    LeaveRefused(String),
    /// It was left before.
    #[error("there is no contract any more: it was given back, or lost")]
    Over,
}
