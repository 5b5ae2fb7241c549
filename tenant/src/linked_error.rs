//! Why a linked program cannot join, or cannot leave.

use crate::TenantError;
use frames::LedgerError;
use rustix::io::Errno;
use store::SetupError;

/// Why a linked program cannot join, or cannot leave.
#[derive(Debug, thiserror::Error)]
pub enum LinkedError {
    /// The daemon is not there, or refuses.
    #[error(transparent)]
    Session(#[from] TenantError),
    /// The ledger cannot be made.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The store cannot be made.
    #[error(transparent)]
    Store(#[from] SetupError),
    /// A system call failed.
    #[error("cannot {what}: {errno}")]
    Call {
        /// The purpose of the call.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A domain or stretch that was made of the [`DomainResources`](crate::DomainResources) still exists.
    #[error(
        "the contract is still used: a domain with {frames} frames, or one of its stretches, exists; drop them, \
         then leave"
    )]
    InUse {
        /// Frames that are owned.
        frames: u32,
    },
    /// The daemon refuses, since memory is still resident.
    #[error("the contract cannot be given back: {0}")]
    LeaveRefused(String),
    /// The contract has ended before: the program left it, or it was lost.
    #[error("there is no contract any more: it was given back, or lost")]
    NoContract,
}
