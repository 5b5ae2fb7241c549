//! Redundancy: on how many servers an object's pages are, and in which form.
//!
//! Not in *Adaptive Remote Paging for Mobile Computers*, whose section 3.3.1 only limits a client's
//! servers because each can fail it. Here an object is two whole copies by default, and a cold one a
//! stripe: four shards of its pages and one or two of parity. Rule: every copy and every shard of an
//! object is on a server of its own, so that one server takes one of them with it.

mod cold;
mod own_servers;
mod placement;
mod read_route;
mod stripe;

pub use cold::{ColdPolicy, StripeChoice};
pub use placement::{NoPlace, ServerOffer, choose_servers};
pub use read_route::{ReadRoute, ReadView, StripeRead};
pub use stripe::{
    MAX_PARTS, PartCopies, PartLoss, ServerSet, Stripe, StripeState, StripeStep, StripeView,
    StripeWrite, surplus_copies,
};

use serde::{Deserialize, Serialize};

/// The form in which an object is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Redundancy {
    /// So many whole copies.
    Replicas(u8),
    /// Shards of an erasure code.
    Stripe(StripeShape),
}

/// How many shards of a stripe are pages, and how many parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StripeShape {
    /// Shards of pages: any so many of all shards give the object.
    pub data: u8,
    /// Shards of parity: so many servers may be lost.
    pub parity: u8,
}

impl StripeShape {
    /// 4+1: as safe as two copies, in five eighths of their pages.
    pub const FOUR_ONE: Self = Self { data: 4, parity: 1 };
    /// 4+2: as safe as three copies, in half of their pages.
    pub const FOUR_TWO: Self = Self { data: 4, parity: 2 };

    /// Shards, or objects where a stripe is of whole objects.
    pub fn parts(self) -> usize {
        usize::from(self.data) + usize::from(self.parity)
    }
}

impl Default for Redundancy {
    fn default() -> Self {
        Self::Replicas(2)
    }
}

impl Redundancy {
    /// Copies or shards: the number of servers.
    pub fn parts(self) -> usize {
        match self {
            Self::Replicas(count) => usize::from(count),
            Self::Stripe(shape) => shape.parts(),
        }
    }

    /// Pages that each part of an object takes at its server.
    pub fn pages_per_part(self, object_pages: u64) -> u64 {
        match self {
            Self::Replicas(_) => object_pages,
            Self::Stripe(shape) => object_pages.div_ceil(u64::from(shape.data.max(1))),
        }
    }
}
