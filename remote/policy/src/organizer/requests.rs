//! The organizer's requests to the broker, and their answers.

use super::{
    Awaited, HeldPermit, Organizer, OrganizerAction, PendingPlacement, Placement, Purpose,
    with_margin,
};
use crate::broker::{AllocationRequest, ReallocationRequest, Refusal};
use crate::capacity::PermitRequest;
use crate::identity::{HostId, ObjectId, RequestId};
use crate::permit::Permit;
use std::collections::BTreeSet;
use std::time::Duration;

impl Organizer {
    pub(super) fn request_larger(
        &mut self,
        placement: Placement,
        server: HostId,
    ) -> OrganizerAction {
        let more = placement.pages;
        self.request_enlarged(placement, Awaited::Larger(server), server, more)
    }

    /// A server has refused a write, since the object's permit there is full. Returns the request
    /// for a larger one; none where the object is about to move.
    pub fn on_full(&mut self, server: HostId, object: ObjectId) -> Option<OrganizerAction> {
        let is_there = self.bindings.servers_of(object).any(|one| one == server);
        if !is_there || self.bindings.is_moving(object) || self.is_placing(object) {
            return None;
        }
        let placement = Placement {
            object,
            pages: self.bindings.pages_of(object),
            purpose: Purpose::Move { from: server },
            exclude: BTreeSet::new(),
            only: None,
            refused: BTreeSet::new(),
        };
        Some(self.request_enlarged(placement, Awaited::Room(server), server, 0))
    }

    fn request_enlarged(
        &mut self,
        placement: Placement,
        awaited: Awaited,
        server: HostId,
        more: u64,
    ) -> OrganizerAction {
        let held = self.permits[&server];
        // Else each of several would ask for its own pages alone, and all but the first find the
        // room taken.
        let pending = self.pending.values();
        let awaited_too = pending
            .filter(|other| other.awaited == Awaited::Larger(server))
            .map(|other| other.placement.pages)
            .fold(more, u64::saturating_add);
        let request = ReallocationRequest {
            id: self.next_request_id(),
            permit: held.permit.id,
            pages: with_margin(held.used_pages.saturating_add(awaited_too)),
        };
        self.pending
            .insert(request.id, PendingPlacement { placement, awaited });
        OrganizerAction::Reallocate(request)
    }

    pub(super) fn request_new(&mut self, placement: Placement, now: Duration) -> OrganizerAction {
        let id = self.next_request_id();
        let hints = match &placement.only {
            Some(only) => self
                .latencies
                .nearest(now)
                .into_iter()
                .filter(|one| only.contains(one))
                .collect(),
            None => self.latencies.nearest(now),
        };
        // A server in use that did not enlarge its permit would refuse a second one.
        let mut exclude = placement.exclude.clone();
        exclude.extend(self.permits.keys());
        let request = AllocationRequest {
            permit: PermitRequest {
                id,
                object: None,
                pages: with_margin(placement.pages),
                qos: self.qos,
            },
            hints,
            exclude,
        };
        let awaited = Awaited::New;
        self.pending
            .insert(id, PendingPlacement { placement, awaited });
        OrganizerAction::Allocate(request)
    }

    /// Returns true if a request has no answer yet.
    pub fn awaits(&self, request: RequestId) -> bool {
        self.pending.contains_key(&request)
    }

    /// The broker has sent a permit, new or rewritten. Returns the placement's next step.
    pub fn on_permit(
        &mut self,
        request: RequestId,
        permit: Permit,
        now: Duration,
    ) -> Option<OrganizerAction> {
        self.enter_permit(permit);
        let mut pending = self.pending.remove(&request)?;
        let held = self.permits.get(&permit.id.server);
        let has_room = held.is_some_and(|held| held.permit.granted_pages >= held.used_pages);
        if matches!(pending.awaited, Awaited::Room(_)) && has_room {
            return None;
        }
        let placement = &mut pending.placement;
        // Another placement may have used it first: an enlargement is not repeated for ever.
        placement.refused.insert(permit.id.server);
        let is_far = placement
            .only
            .as_ref()
            .is_some_and(|only| !only.contains(&permit.id.server));
        if is_far {
            // A server beyond the hints is no better than the one that the copy is at.
            return None;
        }
        Some(self.next_step(pending.placement, now))
    }

    /// A request that was not sent yet. Returns the placement's next step with the permits that there are
    /// now; none where the request is not known any more.
    pub fn reconsider(&mut self, request: RequestId, now: Duration) -> Option<OrganizerAction> {
        let pending = self.pending.remove(&request)?;
        Some(self.next_step(pending.placement, now))
    }

    /// A server has rewritten a permit by itself, with fewer pages.
    pub fn on_rewritten(&mut self, permit: Permit) {
        if self.permits.contains_key(&permit.id.server) {
            self.enter_permit(permit);
        }
    }

    /// The broker has refused a request. Returns the placement's next step.
    pub fn on_refused(
        &mut self,
        request: RequestId,
        why: Refusal,
        now: Duration,
    ) -> Option<OrganizerAction> {
        let mut pending = self.pending.remove(&request)?;
        let (Awaited::Larger(server) | Awaited::Room(server)) = pending.awaited else {
            let has_less = matches!(why, Refusal::Pages { most: 1.., .. });
            return Some(OrganizerAction::GiveUp {
                object: pending.placement.object,
                why,
                is_full: has_less || !pending.placement.refused.is_empty(),
            });
        };
        pending.placement.refused.insert(server);
        Some(self.next_step(pending.placement, now))
    }

    fn enter_permit(&mut self, permit: Permit) {
        if permit.client != self.client {
            return;
        }
        let new = HeldPermit {
            permit,
            used_pages: 0,
        };
        self.permits.entry(permit.id.server).or_insert(new).permit = permit;
    }

    fn next_request_id(&mut self) -> RequestId {
        let number = self.next_request;
        self.next_request += 1;
        let client = self.client;
        RequestId { client, number }
    }
}
