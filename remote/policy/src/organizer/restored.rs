//! The organizer of a client whose process ended and whose permits and copies did not.

use super::{HeldPermit, Organizer};
use crate::identity::{HostId, ObjectId};
use crate::permit::Permit;
use std::time::Duration;

impl Organizer {
    /// Enters the permits that the client holds, and the copies of its objects: of each the object, its pages and its
    /// server, which is one with a permit. Requests are numbered above `requests`, which an earlier process of the
    /// client has not reached.
    pub fn restore(
        &mut self,
        permits: impl IntoIterator<Item = Permit>,
        copies: impl IntoIterator<Item = (ObjectId, u64, HostId)>,
        requests: u64,
    ) {
        for permit in permits {
            let held = HeldPermit {
                permit,
                used_pages: 0,
            };
            self.permits.insert(permit.id.server, held);
        }
        for (object, pages, server) in copies {
            if let Some(held) = self.permits.get_mut(&server) {
                held.used_pages += pages;
                self.bindings.enter(object, pages, Duration::ZERO);
                self.bindings.bind(object, server);
            }
        }
        self.next_request = self.next_request.max(requests + 1);
    }
}
