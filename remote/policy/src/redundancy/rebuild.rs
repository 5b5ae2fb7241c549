//! What is rebuilt when a server goes.
//!
//! Rule: the object that can lose fewest further servers comes first, then the one with most
//! faults. A part is never rebuilt on a server that has another part of the same object.

use super::placement::ranked;
use super::{Redundancy, ServerOffer};
use crate::identity::{HostId, ObjectId};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Where an object's parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The object.
    pub object: ObjectId,
    /// Its form.
    pub redundancy: Redundancy,
    /// Its size.
    pub pages: u64,
    /// Faults on it so far.
    pub faults: u64,
    /// The server of each part, in the order of shards; `None` where it is lost.
    pub parts: Vec<Option<HostId>>,
}

/// A step of a rebuild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildStep {
    /// Copy the object from a server that has it.
    Copy {
        /// The object.
        object: ObjectId,
        /// A server that has a copy.
        from: HostId,
        /// The server that gets one.
        to: HostId,
    },
    /// Reconstruct a shard from others.
    Reconstruct {
        /// The object.
        object: ObjectId,
        /// The shard.
        shard: usize,
        /// As many other shards, with their servers, as give the object.
        from: Vec<(usize, HostId)>,
        /// The server that gets the shard.
        to: HostId,
    },
    /// No server has the room: try again when one has.
    Wait {
        /// The object.
        object: ObjectId,
    },
    /// Too few parts are left. The object's pages are lost, but for what the client has elsewhere.
    Lost {
        /// The object.
        object: ObjectId,
    },
}

impl Layout {
    fn left(&self) -> impl Iterator<Item = (usize, HostId)> + '_ {
        let parts = self.parts.iter().enumerate();
        parts.filter_map(|(index, server)| Some((index, (*server)?)))
    }

    /// Servers that it can still lose; `None` if its pages are lost.
    pub fn margin(&self) -> Option<usize> {
        self.left()
            .count()
            .checked_sub(self.redundancy.parts_needed())
    }
}

/// Removes `lost` from the layouts, and plans the rebuild of every part that is missing then.
/// Layouts keep a missing part as `None` until its step is done.
pub fn plan_rebuild(
    lost: HostId,
    layouts: &mut [Layout],
    offers: &[ServerOffer],
) -> Vec<RebuildStep> {
    for part in layouts
        .iter_mut()
        .flat_map(|layout| layout.parts.iter_mut())
    {
        part.take_if(|server| *server == lost);
    }
    let mut offers: Vec<_> = offers
        .iter()
        .copied()
        .filter(|offer| offer.server != lost)
        .collect();
    let is_short = |layout: &&Layout| layout.parts.contains(&None);
    let mut short: Vec<_> = layouts.iter().filter(is_short).collect();
    short.sort_by_key(|layout| (layout.margin(), Reverse(layout.faults), layout.object));
    short
        .into_iter()
        .flat_map(|layout| steps_for(layout, &mut offers))
        .collect()
}

fn steps_for(layout: &Layout, offers: &mut [ServerOffer]) -> Vec<RebuildStep> {
    let object = layout.object;
    if layout.margin().is_none() {
        return vec![RebuildStep::Lost { object }];
    }
    let left: Vec<_> = layout.left().collect();
    let mut taken: BTreeSet<_> = left.iter().map(|(_, server)| *server).collect();
    let pages = layout.redundancy.pages_per_part(layout.pages);
    let mut steps = Vec::new();
    for shard in (0..layout.parts.len()).filter(|index| layout.parts[*index].is_none()) {
        let Some(to) = ranked(pages, offers, &taken).first().copied() else {
            steps.push(RebuildStep::Wait { object });
            break;
        };
        taken.insert(to);
        for offer in offers.iter_mut().filter(|offer| offer.server == to) {
            offer.free_pages -= pages;
        }
        steps.push(match layout.redundancy {
            // The margin says that one is left.
            Redundancy::Replicas(_) => RebuildStep::Copy {
                object,
                from: left[shard % left.len()].1,
                to,
            },
            Redundancy::Stripe(_) => RebuildStep::Reconstruct {
                object,
                shard,
                from: left[..layout.redundancy.parts_needed()].to_vec(),
                to,
            },
        });
    }
    steps
}
