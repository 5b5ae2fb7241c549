//! What the allocator wants done, and why.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2, figure 4. Rule: an order
//! is carried out in the order given, and what comes of it is said as an event.

use super::TenantId;
use crate::contract::Contract;
use std::time::Duration;

/// To be carried out by the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Raise the tenant's limit.
    Grant {
        /// Who gets frames.
        tenant: TenantId,
        /// How many more it may own.
        k: u32,
    },
    /// Lower the victim's limit by up to `k` that it has unused, and say by how many at once,
    /// with [`super::Allocator::took`], before anything else happened.
    TakeUnused {
        /// Who loses frames without being asked.
        victim: TenantId,
        /// How many at most.
        k: u32,
    },
    /// Ask the victim to have frames unused in time. It says so through
    /// [`super::Allocator::answered`].
    Revoke {
        /// Who is asked.
        victim: TenantId,
        /// How many more frames it is to have unused.
        k: u32,
        /// How many it may keep when it has answered all it was asked for.
        keep: u32,
        /// When it must have answered.
        by: Duration,
    },
    /// End the victim and take its memory back; then say [`super::Allocator::gone`].
    Kill {
        /// Who ends.
        victim: TenantId,
        /// What for, to be logged.
        violation: Violation,
    },
    /// Tell a tenant something.
    Notify {
        /// Who is told.
        tenant: TenantId,
        /// What.
        notice: TenantNotice,
    },
}

/// What a tenant is told without having asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantNotice {
    /// Its contract will be this.
    Contract {
        /// The contract.
        contract: Contract,
        /// From when on.
        from: Duration,
    },
    /// The kernel counts more of its pages than it may own.
    Over {
        /// Frames resident, by the kernel's count.
        resident: u32,
        /// Frames it may own.
        n: u32,
        /// When it must be within them.
        by: Duration,
    },
}

/// Why a tenant is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Frames it was asked for had not come in time.
    #[error(
        "{missing} frames it was asked for were not unused at the deadline, {by:.0?} after the daemon's start"
    )]
    Late {
        /// Frames still missing.
        missing: u32,
        /// The deadline, since the allocator's start.
        by: Duration,
    },
    /// It said that frames were unused that were not.
    #[error("it answered that {answered} frames were unused, and {found} were")]
    FalseAnswer {
        /// Frames it said were unused.
        answered: u32,
        /// Frames that were.
        found: u32,
    },
    /// It has more resident than it may own, and was told so.
    #[error("{resident} frames are resident, by the kernel's count, and {n} are granted to it")]
    Over {
        /// Frames resident.
        resident: u32,
        /// Frames it may own.
        n: u32,
    },
}
