//! The copies of a server: created, moved, and ended.

use super::SimulatedServer;
use crate::context::{Context, Event};
use crate::message::{HostMessage, PAGE_BYTES, RUN_PAGES};
use crate::topology::Node;
use remote_policy::identity::{HostId, ObjectId};
use remote_policy::migration::{Generation, MoveMessage, ObjectCopy, PageNumber, Version};
use remote_policy::permit::PermitId;

impl SimulatedServer {
    /// Creates an object of so many written pages. Returns false if its permit does not allow it.
    pub(super) fn create(
        &mut self,
        object: ObjectId,
        permit: PermitId,
        pages: u64,
        ctx: &Context,
    ) -> bool {
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
        created
    }

    pub(super) fn terminate(&mut self, object: ObjectId) {
        self.capacity.terminate(object);
        self.copies.remove(&object);
        self.objects.remove(&object);
    }

    /// True if a copy of the object is here.
    pub fn has(&self, object: ObjectId) -> bool {
        self.objects.contains_key(&object)
    }

    pub(super) fn on_move(
        &mut self,
        from: Node,
        object: ObjectId,
        message: MoveMessage,
        ctx: &mut Context,
    ) {
        let mut copy = self.copies.remove(&object);
        if copy.is_none() && matches!(message, MoveMessage::Forward { .. }) {
            copy = self.copy_of(object);
        }
        let reply = ObjectCopy::on_message(&mut copy, self.incarnation, message);
        if let MoveMessage::Forward { destination, .. } = message
            && let Some(copy) = &copy
        {
            self.send_pages(object, copy, destination.host, ctx);
        }
        match (message, &copy) {
            (MoveMessage::Discard { .. }, _) => {
                self.terminate(object);
            }
            (_, Some(_)) => {
                self.copies.extend(copy.map(|copy| (object, copy)));
            }
            _ => {}
        }
        let to = match reply {
            Some(MoveMessage::Copied { .. }) => from,
            _ => ctx.network.topology.node(object.client),
        };
        if let Some(reply) = reply {
            ctx.send(self.node, to, HostMessage::Move(object, reply));
        }
    }

    /// A copy that has not moved so far, in runs of pages.
    fn copy_of(&self, object: ObjectId) -> Option<ObjectCopy> {
        let pages = *self.objects.get(&object)?;
        let first = Generation::default();
        let mut copy = ObjectCopy::new(self.incarnation, first);
        for run in 0..pages.div_ceil(RUN_PAGES) {
            copy.on_write(PageNumber(run), Version(1), first);
        }
        Some(copy)
    }

    /// Sends the pages to where they move, as fast as the links carry them.
    fn send_pages(&self, object: ObjectId, copy: &ObjectCopy, to: HostId, ctx: &mut Context) {
        let to = ctx.network.topology.node(to);
        for message in copy.pages_to_copy() {
            let message = HostMessage::Move(object, message);
            let (bytes, now) = (RUN_PAGES * PAGE_BYTES, ctx.now);
            let done = ctx.network.transfer(&[self.node, to], bytes, now);
            let bytes = message.wire_bytes();
            let sent = ctx
                .network
                .send(self.node, to, (bytes, true), now, &mut ctx.rng);
            if let Some(at) = sent {
                let event = Event::Arrive(self.node, to, Box::new(message), bytes);
                ctx.queue.push(at.max(done), event);
            }
        }
    }
}
