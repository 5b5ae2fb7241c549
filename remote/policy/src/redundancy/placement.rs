//! Which servers get the parts of an object.

use super::Redundancy;
use crate::identity::HostId;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

/// A server that could take a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOffer {
    /// The server.
    pub server: HostId,
    /// Pages that it can take.
    pub free_pages: u64,
    /// True if the client uses it already.
    pub is_in_use: bool,
    /// Its round-trip time, where measured.
    pub round_trip: Option<Duration>,
}

/// Why an object's parts have no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{asked} servers with {pages} free pages each are needed, and {there} have them: start more servers, or store with less \
     redundancy"
)]
pub struct NoPlace {
    /// Servers needed.
    pub asked: usize,
    /// Free pages needed at each.
    pub pages: u64,
    /// Servers that have them.
    pub there: usize,
}

/// The servers for the parts that an object lacks, beside those in `held`. The nearest servers
/// come first, then those in use, then those with most space, then the lowest hosts.
///
/// # Errors
/// [`NoPlace`] where too few servers have the room; then none is chosen.
pub fn choose_servers(
    redundancy: Redundancy,
    object_pages: u64,
    offers: &[ServerOffer],
    held: &BTreeSet<HostId>,
) -> Result<Vec<HostId>, NoPlace> {
    let asked = redundancy.parts().saturating_sub(held.len());
    let pages = redundancy.pages_per_part(object_pages);
    let servers = ranked(pages, offers, held);
    if servers.len() < asked {
        return Err(NoPlace {
            asked,
            pages,
            there: servers.len(),
        });
    }
    Ok(servers.into_iter().take(asked).collect())
}

/// The servers with room for so many pages, the best first, each once.
pub(super) fn ranked(pages: u64, offers: &[ServerOffer], held: &BTreeSet<HostId>) -> Vec<HostId> {
    let fits = |offer: &&ServerOffer| offer.free_pages >= pages && !held.contains(&offer.server);
    let mut fitting: Vec<_> = offers.iter().filter(fits).collect();
    fitting.sort_by_key(|offer| {
        let round_trip = offer.round_trip.unwrap_or(Duration::MAX);
        (
            round_trip,
            !offer.is_in_use,
            Reverse(offer.free_pages),
            offer.server,
        )
    });
    let mut seen = BTreeSet::new();
    let servers = fitting.into_iter().map(|offer| offer.server);
    servers.filter(|server| seen.insert(*server)).collect()
}
