//! Which copies the organizer moves, and when.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, sections 2.3 and 3.3.2. A server's abdicate
//! request may be ignored; its revocation may not, since the pages are dropped at its deadline.
//! Where a server is poor beside another one, the objects with most faults leave it first: they
//! are the ones that the client waits for.

use super::{Organizer, OrganizerAction, Placement, Purpose};
use crate::identity::{HostId, ObjectId};
use crate::lru_size::{self, ObjectUse};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

/// An object that was used so lately is in the client's way while it moves.
const IN_USE: Duration = Duration::from_secs(1);

/// The organizer's answer to an abdicate request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbdicateAnswer {
    /// The object moves, as soon as a server has the room: the next step.
    Accepted(OrganizerAction),
    /// The request is ignored.
    Kept(KeepReason),
}

/// Why an abdicate request is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// The object has no copy at that server.
    NotThere,
    /// The object is moving already, or about to.
    Moving,
    /// The object is in use.
    InUse,
}

impl Organizer {
    /// A server requests that an object leave it.
    pub fn on_abdicate_request(
        &mut self,
        server: HostId,
        object: ObjectId,
        now: Duration,
    ) -> AbdicateAnswer {
        if !self.bindings.servers_of(object).any(|one| one == server) {
            return AbdicateAnswer::Kept(KeepReason::NotThere);
        }
        if self.bindings.is_moving(object) || self.is_placing(object) {
            return AbdicateAnswer::Kept(KeepReason::Moving);
        }
        let used = self.bindings.last_used(object).unwrap_or(Duration::ZERO);
        if now.saturating_sub(used) < IN_USE {
            return AbdicateAnswer::Kept(KeepReason::InUse);
        }
        AbdicateAnswer::Accepted(self.move_away(server, object, None, now))
    }

    /// A server revokes its permit down to `keep_pages`: objects leave it, those first that
    /// LRU+SIZE selects.
    pub fn on_revocation(
        &mut self,
        server: HostId,
        keep_pages: u64,
        now: Duration,
    ) -> Vec<OrganizerAction> {
        let objects = self.idle_at(server);
        let there: u64 = objects.iter().map(|one| one.size_pages).sum();
        let goal_pages = there.saturating_sub(keep_pages);
        let selected = lru_size::select(objects, goal_pages);
        let start = |one: ObjectUse| self.move_away(server, one.object, None, now);
        selected.into_iter().map(start).collect()
    }

    /// Moves one object from each server that is poor beside a nearer one. To be called
    /// periodically; a call's moves are over before the next one's begin at the same server.
    pub fn improve(&mut self, now: Duration) -> Vec<OrganizerAction> {
        let servers: Vec<_> = self.permits.keys().copied().collect();
        servers
            .into_iter()
            .filter_map(|server| self.improve_at(server, now))
            .collect()
    }

    fn improve_at(&mut self, server: HostId, now: Duration) -> Option<OrganizerAction> {
        let better: BTreeSet<_> = self
            .latencies
            .better_than(server, now)
            .into_iter()
            .collect();
        if better.is_empty() {
            return None;
        }
        let hottest = |one: &ObjectUse| (Reverse(one.faults), Reverse(one.last_used), one.object);
        let has_room_for = |one: &ObjectUse| {
            // A copy of it may be at each of the better servers already.
            let held: BTreeSet<_> = self.bindings.servers_of(one.object).collect();
            !better.is_subset(&held)
        };
        let object = self
            .idle_at(server)
            .into_iter()
            .filter(has_room_for)
            .min_by_key(hottest)?
            .object;
        Some(self.move_away(server, object, Some(better), now))
    }

    /// The object's copy arrived, or the move was given up: the other server's pages are free.
    pub fn on_move_ended(&mut self, object: ObjectId, arrived: bool) {
        if let Some((server, pages)) = self.bindings.end_move(object, arrived) {
            self.free_pages(server, pages);
        }
    }

    fn move_away(
        &mut self,
        from: HostId,
        object: ObjectId,
        only: Option<BTreeSet<HostId>>,
        now: Duration,
    ) -> OrganizerAction {
        let placement = Placement {
            object,
            pages: self.bindings.pages_of(object),
            purpose: Purpose::Move { from },
            exclude: BTreeSet::new(),
            only,
            refused: BTreeSet::new(),
        };
        self.next_step(placement, now)
    }

    /// Objects at a server that neither move nor wait for a place.
    fn idle_at(&self, server: HostId) -> Vec<ObjectUse> {
        let there = self.bindings.at(server).into_iter();
        there.filter(|one| !self.is_placing(one.object)).collect()
    }

    /// Returns true if a request for a place of the object is under way.
    pub fn is_placing(&self, object: ObjectId) -> bool {
        self.pending
            .values()
            .any(|pending| pending.placement.object == object)
    }
}
