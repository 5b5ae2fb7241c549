//! The organizer's requests to the broker, and their answers.

use super::{HeldPermit, Organizer, OrganizerAction, PendingPlacement, Placement, with_margin};
use crate::broker::{AllocationRequest, ReallocationRequest, Refusal};
use crate::capacity::PermitRequest;
use crate::identity::{HostId, RequestId};
use crate::permit::Permit;
use std::time::Duration;

impl Organizer {
    pub(super) fn request_larger(
        &mut self,
        placement: Placement,
        server: HostId,
    ) -> OrganizerAction {
        let held = self.permits[&server];
        let needed = held.used_pages.saturating_add(placement.pages);
        let request = ReallocationRequest {
            id: self.next_request_id(),
            permit: held.permit.id,
            pages: with_margin(needed),
        };
        let enlarges = Some(server);
        self.pending.insert(
            request.id,
            PendingPlacement {
                placement,
                enlarges,
            },
        );
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
        let enlarges = None;
        self.pending.insert(
            id,
            PendingPlacement {
                placement,
                enlarges,
            },
        );
        OrganizerAction::Allocate(request)
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
        let Some(server) = pending.enlarges else {
            let object = pending.placement.object;
            return Some(OrganizerAction::GiveUp { object, why });
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
