//! The copies of a server: created and ended.

use super::SimulatedServer;
use crate::context::Context;
use remote_policy::identity::ObjectId;
use remote_policy::permit::PermitId;

impl SimulatedServer {
    /// Creates an object of so many written pages, if its permit allows it.
    pub(super) fn create(&mut self, object: ObjectId, permit: PermitId, pages: u64, ctx: &Context) {
        let now = ctx.now;
        let there = self.objects.get(&object).copied().unwrap_or(0);
        let more = pages.saturating_sub(there);
        // A simulated client has no connection to present its permit on: it comes with each object.
        self.capacity.on_presented(permit);
        let created = self.capacity.create(permit, object, now).is_ok()
            && self.capacity.write(object, more, now).is_ok();
        if created {
            self.objects.insert(object, there + more);
        }
    }

    pub(super) fn terminate(&mut self, object: ObjectId) {
        self.capacity.terminate(object);
        self.objects.remove(&object);
    }

    /// True if a copy of the object is here.
    pub fn has(&self, object: ObjectId) -> bool {
        self.objects.contains_key(&object)
    }
}
