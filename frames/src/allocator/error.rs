//! Why the allocator refuses a contract or a request.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. Rule: a refusal says what
//! was asked, what there is, and what would do.

use super::TenantId;
use crate::contract::Kib;

/// A contract or a request that is not granted, now or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocatorError {
    /// The guarantees would exceed the memory managed.
    #[error(
        "{asked} guaranteed frames ({}) were asked for, but {guaranteed} of {managed} managed frames \
         ({}) are guaranteed to {tenants} others: at most {} frames ({}) would fit; ask for that, \
         manage more memory, or let a tenant end",
        Kib(*asked), Kib(*managed), managed.saturating_sub(*guaranteed),
        Kib(managed.saturating_sub(*guaranteed))
    )]
    Guarantee {
        /// g of the contract refused.
        asked: u32,
        /// Sum of the others' g.
        guaranteed: u32,
        /// Frames managed.
        managed: u32,
        /// How many others there are.
        tenants: u32,
    },
    /// A contract that contradicts itself.
    #[error(
        "a contract of {g} guaranteed and at most {x} frames contradicts itself: it needs 0 < x and g <= x"
    )]
    Contract {
        /// Guaranteed frames asked for.
        g: u32,
        /// Most frames asked for.
        x: u32,
    },
    /// The number is in use.
    #[error("tenant {0} is admitted already: give the new one another number")]
    Known(TenantId),
    /// No such tenant, or it is being killed.
    #[error("there is no tenant {0}: it was never admitted, or it ended")]
    Unknown(TenantId),
    /// Everything the contract allows is granted or on its way.
    #[error(
        "{asked} more frames were asked for with {n} of at most {x} granted or on their way: give \
         some back, or have the contract raised"
    )]
    Most {
        /// Frames asked for.
        asked: u32,
        /// Frames granted or on their way.
        n: u32,
        /// Most frames of the contract.
        x: u32,
    },
    /// Optimistic frames that could never be had back.
    #[error(
        "{asked} frames above the guarantee were asked for by a tenant that could not clean them when \
         they are revoked: ask for a slice of a disk, or for a larger guarantee"
    )]
    Irrevocable {
        /// Frames asked for.
        asked: u32,
    },
    /// Not a whole number of huge pages.
    #[error("{asked} frames are no whole number of huge pages: ask for a multiple of {unit}")]
    Huge {
        /// Frames asked for.
        asked: u32,
        /// Frames in a huge page.
        unit: u32,
    },
    /// The kernel has no huge pages to give.
    #[error(
        "{asked} frames in huge pages were asked for, but this kernel gives none: enable transparent \
         huge pages (madvise), or ask for any frames"
    )]
    NoHuge {
        /// Frames asked for.
        asked: u32,
    },
    /// No such NUMA node.
    #[error("frames of node {asked} were asked for, but there are nodes 0 to {} only", nodes.saturating_sub(1))]
    Node {
        /// The node asked for.
        asked: u32,
        /// How many there are.
        nodes: u32,
    },
    /// Too little memory left to manage.
    #[error(
        "{asked} frames ({}) are too few to manage: {guaranteed} are guaranteed and {owned} owned; \
         let tenants end first, or lower their contracts",
        Kib(*asked)
    )]
    Managed {
        /// Frames to be managed.
        asked: u32,
        /// Sum of all g.
        guaranteed: u32,
        /// Sum of all n.
        owned: u32,
    },
}
