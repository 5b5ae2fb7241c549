//! Where a read goes: to a copy, or to the other parts of its stripe.
//!
//! Rule: what a read may be answered from has every acknowledged write. That is a current copy that has not failed this
//! read, and the parts of a stripe whose parities count. The route prefers servers that answer.

use super::ServerSet;

/// What is known of a read's pages and of the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadView {
    /// Servers with a current copy.
    pub current: ServerSet,
    /// Servers that could not serve this read.
    pub failed: ServerSet,
    /// Servers that it was sent to and that have not answered.
    pub awaited: ServerSet,
    /// Servers that are connected.
    pub connected: ServerSet,
    /// Connected servers that leave a read unanswered for too long.
    pub suspected: ServerSet,
    /// Whether the other parts of a stripe give the pages.
    pub stripe: StripeRead,
}

/// Whether the other parts of a stripe give a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StripeRead {
    /// There is no stripe, or it has too few parts.
    #[default]
    Never,
    /// Too few of them can be read at present.
    NotNow,
    /// As many as it takes are at servers that are connected and not suspected.
    Now,
}

/// Where a read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRoute {
    /// To one of these servers.
    Copy(ServerSet),
    /// To the other parts of its stripe.
    Reconstruct,
    /// Nowhere until a server is connected, or the pages are made again.
    Wait,
    /// Nowhere: no server has the pages.
    Fail,
}

impl ReadView {
    /// Where a read goes that no server is asked for.
    pub fn route(&self) -> ReadRoute {
        let left = self.current & !self.failed;
        let there = left & self.connected;
        let good = there & !self.suspected;
        match (good, there, self.stripe) {
            (1.., _, _) => ReadRoute::Copy(good),
            (0, _, StripeRead::Now) => ReadRoute::Reconstruct,
            (0, 1.., _) => ReadRoute::Copy(there),
            (0, 0, StripeRead::NotNow) => ReadRoute::Wait,
            (0, 0, StripeRead::Never) if left != 0 => ReadRoute::Wait,
            (0, 0, StripeRead::Never) => ReadRoute::Fail,
        }
    }

    /// Where a read goes, too, whose server is late: somewhere else that answers, if there is such a place.
    pub fn hedge(&self) -> Option<ReadRoute> {
        let others = self.current & self.connected & !self.failed & !self.awaited & !self.suspected;
        match (others, self.stripe) {
            (1.., _) => Some(ReadRoute::Copy(others)),
            (0, StripeRead::Now) => Some(ReadRoute::Reconstruct),
            _ => None,
        }
    }
}
