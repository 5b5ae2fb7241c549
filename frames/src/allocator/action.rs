//! The allocator's actions, for the daemon to execute.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2, figure 4. Rule: actions are
//! executed in order, and their outcomes are events.

use super::TenantId;
use crate::contract::Contract;
use std::time::Duration;

/// An action of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Raise the tenant's limit.
    Grant {
        /// The tenant that gets frames.
        tenant: TenantId,
        /// How many more it may own.
        k: u32,
    },
    /// Lower the victim's limit by up to `k` frames that it has unused, and report by how many at
    /// once, with [`super::Allocator::on_taken`], before any other event.
    TakeUnused {
        /// The tenant that loses frames, without its help.
        victim: TenantId,
        /// The most to take.
        k: u32,
    },
    /// Demand frames from the victim: it is to have them unused in time, which it reports through
    /// [`super::Allocator::on_answer`].
    Revoke {
        /// The tenant that loses frames.
        victim: TenantId,
        /// How many more frames it must have unused.
        k: u32,
        /// How many it may keep once it has answered all demands.
        keep: u32,
        /// The deadline for its answer.
        by: Duration,
    },
    /// Kill the victim and free its memory; then call [`super::Allocator::on_tenant_gone`].
    Kill {
        /// The tenant to kill.
        victim: TenantId,
        /// The reason, for the log.
        violation: Violation,
    },
    /// Send a tenant a notification.
    Notify {
        /// The tenant.
        tenant: TenantId,
        /// The notification.
        notice: TenantNotice,
    },
}

/// A notification to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantNotice {
    /// Its contract changes.
    Contract {
        /// The new contract.
        contract: Contract,
        /// When it takes effect.
        from: Duration,
    },
    /// Frames of its guarantee are reserved for resident memory that is not paged.
    Unpaged {
        /// How many are, from now on.
        frames: u32,
    },
    /// More of its frames are resident than it may own.
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
    /// It missed a revocation's deadline.
    #[error(
        "{missing} demanded frames were not unused at the deadline, {by:.0?} after the daemon's start"
    )]
    Late {
        /// Frames still missing.
        missing: u32,
        /// The deadline, since the allocator's start.
        by: Duration,
    },
    /// It reported frames as unused that were not, again and again.
    #[error("it reported {answered} frames as unused, and {found} were, {times} times in a row")]
    FalseAnswer {
        /// Frames it reported as unused the last time.
        answered: u32,
        /// Frames that were.
        found: u32,
        /// How often.
        times: u32,
    },
    /// More of its frames stayed resident than it may own, after it was notified.
    #[error("{resident} frames are resident, by the kernel's count, and {n} are granted to it")]
    Over {
        /// Frames resident.
        resident: u32,
        /// Frames it may own.
        n: u32,
    },
}
