//! Why the allocator refuses a contract or a request.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. Rule: an error names what was
//! asked, what is there, and what would succeed.

use super::TenantId;
use super::cleaning::MAX_REVOCATION;
use crate::contract::advise_request;
use wired::Bytes;

/// Why a contract or a request is refused, now and later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocatorError {
    /// The guarantees would exceed the managed memory.
    #[error(
        "cannot guarantee {asked} frames ({}): {guaranteed} of {managed} managed frames ({}) are guaranteed to \
         {tenants} others; {}manage more memory, or let a tenant end",
        Bytes::of_pages(*asked), Bytes::of_pages(*managed), advise_request(managed.saturating_sub(*guaranteed))
    )]
    Guarantee {
        /// g of the contract refused.
        asked: u32,
        /// Sum of the others' g.
        guaranteed: u32,
        /// Frames managed.
        managed: u32,
        /// Number of other tenants.
        tenants: u32,
    },
    /// A contract with g above x, or without frames.
    #[error("invalid contract: {g} guaranteed and at most {x} frames; expected 0 < x and g <= x")]
    Contract {
        /// Guaranteed frames asked for.
        g: u32,
        /// Most frames asked for.
        x: u32,
    },
    /// The number is in use.
    #[error("tenant {0} is already admitted; give the new tenant another number")]
    Known(TenantId),
    /// No such tenant, or it is being killed.
    #[error("no such tenant: {0}; it was never admitted, or it ended")]
    Unknown(TenantId),
    /// All frames of the contract are granted or pending.
    #[error(
        "cannot request {asked} more frames: {n} of at most {x} are granted or pending; release some, or \
         have the contract raised"
    )]
    Most {
        /// Frames asked for.
        asked: u32,
        /// Frames granted or pending.
        n: u32,
        /// Most frames of the contract.
        x: u32,
    },
    /// Optimistic frames for a tenant that cannot clean them.
    #[error(
        "cannot request {asked} frames above the guarantee without means to clean them when they are \
         revoked; ask for a slice of a disk, or for a larger guarantee"
    )]
    Irrevocable {
        /// Frames asked for.
        asked: u32,
    },
    /// All optimistic frames that a tenant can give back in time.
    #[error(
        "cannot request {asked} more frames: {n} are granted or pending, and of those above the guarantee of {g} the \
         disk time gives back {most} in {} s for certain; ask for a larger slice of the disk, or for a larger \
         guarantee", MAX_REVOCATION.as_secs()
    )]
    Slow {
        /// Frames asked for.
        asked: u32,
        /// Frames granted or pending.
        n: u32,
        /// Guaranteed frames.
        g: u32,
        /// Most frames above the guarantee.
        most: u32,
    },
    /// Less disk time for a tenant that could then not give back in time what it has.
    #[error(
        "tenant {tenant} has {above} frames ({}) above its guarantee, and with this disk time gives back {most} ({}) in {} s \
         for certain: first leave it no more than that above the guarantee, or leave it more disk time",
        Bytes::of_pages(*above), Bytes::of_pages(*most), MAX_REVOCATION.as_secs()
    )]
    Slower {
        /// The tenant.
        tenant: TenantId,
        /// Frames above its guarantee.
        above: u32,
        /// What it may have of them with this rate.
        most: u32,
    },
    /// Not a whole number of huge pages.
    #[error("invalid number of frames in huge pages: {asked}; expected a multiple of {unit}")]
    Huge {
        /// Frames asked for.
        asked: u32,
        /// Frames in a huge page.
        unit: u32,
    },
    /// The kernel offers no huge pages.
    #[error(
        "cannot request {asked} frames in huge pages: this kernel offers none; enable transparent huge \
         pages (madvise), or ask for any frames"
    )]
    NoHuge {
        /// Frames asked for.
        asked: u32,
    },
    /// No such NUMA node.
    #[error("no such NUMA node: {asked}; expected 0 to {}", nodes.saturating_sub(1))]
    Node {
        /// The requested node.
        asked: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// Less memory than the tenants' frames.
    #[error(
        "cannot manage only {asked} frames ({}): {reserved} are guaranteed, or were and come back later, and {owned} owned; \
         let tenants end first, or lower their contracts and wait",
        Bytes::of_pages(*asked)
    )]
    Managed {
        /// Frames to be managed.
        asked: u32,
        /// Sum of what the tenants' guarantees reserve.
        reserved: u32,
        /// Sum of all n.
        owned: u32,
    },
}
