//! A client's objects: their pages, their copies, and how they come and go.

use super::{SILENT_BEATS, SimulatedClient};
use crate::context::{Context, Event};
use crate::message::{HostMessage, PAGE_BYTES};
use crate::server::SimulatedServer;
use remote_policy::identity::{HostId, ObjectId};
use remote_policy::permit::PermitId;
use remote_policy::redundancy::Redundancy;
use std::collections::BTreeMap;

/// Sizes of objects: up to the 16 MiB that the remote client cuts its space into.
const OBJECT_PAGES: std::ops::RangeInclusive<u64> = 1024..=4096;

/// Percent of an object's pages that are written: 25 to 30 in section 4.1 of the paper.
const WRITTEN_PERCENT: u64 = 28;

/// A copy of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    /// False while it is filled.
    is_current: bool,
    permit: PermitId,
    /// The server was seen to have it.
    is_confirmed: bool,
    /// Beats in which it was not.
    missed_beats: u32,
}

impl Copy {
    fn new(permit: PermitId, is_current: bool) -> Self {
        Self {
            is_current,
            permit,
            is_confirmed: false,
            missed_beats: 0,
        }
    }
}

/// Whether a server has the copies that it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopiesAt {
    There,
    /// One is gone, or was never created: the permit is void.
    Gone,
}

#[derive(Debug)]
struct Object {
    pages: u64,
    copies: BTreeMap<HostId, Copy>,
    /// A place is being looked for.
    is_placing: bool,
    /// It had all its copies once, and its program writes to it.
    is_complete: bool,
    /// Its move: from where, and to where.
    moving: Option<(HostId, HostId)>,
}

impl Object {
    /// True if it has fewer copies than it should, but for one that leaves.
    fn is_short(&self) -> bool {
        let stay = self.copies.len() - usize::from(self.moving.is_some());
        stay < Redundancy::default().parts()
    }

    /// The servers of copies that have all pages.
    fn current_copies(&self) -> impl Iterator<Item = HostId> {
        let current = self.copies.iter().filter(|(_, copy)| copy.is_current);
        current.map(|(host, _)| *host)
    }
}

/// The objects of a client.
#[derive(Debug)]
pub(crate) struct Objects {
    client: HostId,
    objects: BTreeMap<ObjectId, Object>,
    next: u64,
}

impl Objects {
    pub(super) fn new(client: HostId) -> Self {
        Self {
            client,
            objects: BTreeMap::new(),
            next: 1,
        }
    }

    fn create(&mut self, pages: u64) -> ObjectId {
        let object = ObjectId {
            client: self.client,
            number: self.next,
        };
        self.next += 1;
        let new = Object {
            pages,
            copies: BTreeMap::new(),
            is_placing: false,
            is_complete: false,
            moving: None,
        };
        self.objects.insert(object, new);
        object
    }

    /// True if a copy has all pages.
    pub(super) fn has_current_copy(&self, object: ObjectId) -> bool {
        let one = self.objects.get(&object);
        one.is_some_and(|one| one.current_copies().next().is_some())
    }

    /// True if it had all its copies once.
    pub(super) fn is_complete(&self, object: ObjectId) -> bool {
        self.objects.get(&object).is_some_and(|one| one.is_complete)
    }

    pub(super) fn on_given_up(&mut self, object: ObjectId) {
        if let Some(one) = self.objects.get_mut(&object) {
            one.is_placing = false;
        }
    }

    pub(super) fn on_server_lost(&mut self, host: HostId) {
        for one in self.objects.values_mut() {
            one.copies.remove(&host);
        }
    }

    /// True if an object has no other current copy that `is_there`.
    pub(super) fn has_only_copy_at(&self, host: HostId, is_there: impl Fn(HostId) -> bool) -> bool {
        let is_only = |one: &Object| {
            let current = |(other, copy): (&HostId, &Copy)| copy.is_current && is_there(*other);
            one.copies.contains_key(&host) && !one.copies.iter().any(current)
        };
        self.objects.values().any(is_only)
    }

    /// Objects, and those of them with fewer copies than they should have.
    pub fn count(&self) -> (u64, u64) {
        let parts = Redundancy::default().parts();
        let current =
            |one: &&Object| one.copies.values().filter(|copy| copy.is_current).count() < parts;
        let short = self.objects.values().filter(current).count();
        (self.objects.len() as u64, short as u64)
    }

    /// Objects with copies of which none `is_there`.
    pub fn out_of_reach(&self, is_there: impl Fn(HostId) -> bool) -> u64 {
        let is_out = |one: &&Object| {
            !one.copies.is_empty() && !one.copies.keys().any(|host| is_there(*host))
        };
        self.objects.values().filter(is_out).count() as u64
    }

    /// True if every copy is at a server that `is_near`.
    pub(super) fn are_near(&self, is_near: impl Fn(HostId) -> bool) -> bool {
        self.objects
            .values()
            .all(|one| one.copies.keys().all(|host| is_near(*host)))
    }
}

impl SimulatedClient {
    /// A program of the client uses a new object; the oldest ends for it.
    pub fn on_new_object(&mut self, ctx: &mut Context) {
        let wait = ctx.part_of(2 * ctx.config.churn);
        if self.objects.next as usize >= ctx.config.objects {
            ctx.after(wait, Event::NewObject(self.node));
        }
        if self.objects.objects.len() > ctx.config.objects
            && let Some(oldest) = self.objects.objects.keys().next().copied()
        {
            self.terminate(oldest, ctx);
        }
        let pages = ctx.rng.u64(OBJECT_PAGES) * WRITTEN_PERCENT / 100;
        let object = self.objects.create(pages);
        self.place(object, ctx);
    }

    /// Looks for a place of the object's next copy.
    pub(super) fn place(&mut self, object: ObjectId, ctx: &mut Context) {
        let Some(one) = self.objects.objects.get_mut(&object) else {
            return;
        };
        if one.is_placing || !one.is_short() {
            return;
        }
        one.is_placing = true;
        let topology = &ctx.network.topology;
        let mates = one.copies.keys().filter(|_| ctx.config.rack_aware);
        let exclude = mates
            .flat_map(|host| topology.rack_mates(topology.node(*host)))
            .collect();
        let pages = one.pages;
        let action = self.organizer.place(object, pages, &exclude, ctx.now);
        self.perform([action], ctx);
    }

    /// A copy's server is found. A copy beside another one is filled from it.
    pub(super) fn bind(&mut self, object: ObjectId, permit: PermitId, ctx: &mut Context) {
        let Some(one) = self.objects.objects.get_mut(&object) else {
            return;
        };
        let server = permit.server;
        one.is_placing = false;
        // The first copies are created beside each other, before the program writes.
        let source = one.current_copies().next().filter(|_| one.is_complete);
        one.copies
            .insert(server, Copy::new(permit, source.is_none()));
        one.is_complete |= !one.is_short();
        self.create_copy(object, permit, source, ctx);
        if source.is_none() {
            self.place(object, ctx);
        }
    }

    /// A copy moves as a lost one is replaced: another one is created and filled, then it ends.
    pub(super) fn begin_move(
        &mut self,
        object: ObjectId,
        from: HostId,
        permit: PermitId,
        ctx: &mut Context,
    ) {
        let answers = |host: &HostId| {
            let contact = self.contacts.get(host);
            contact.is_some_and(|contact| contact.silent_beats == 0)
        };
        let one = self.objects.objects.get_mut(&object);
        let found = one.and_then(|one| {
            let source = one.current_copies().find(answers)?;
            Some((source, one))
        });
        // A server that is silent seems far. What is only there cannot move.
        let Some((source, one)) = found else {
            return self.organizer.on_move_ended(object, false);
        };
        one.moving = Some((from, permit.server));
        one.copies.insert(permit.server, Copy::new(permit, false));
        self.create_copy(object, permit, Some(source), ctx);
    }

    /// Creates a copy, and fills it from the one at `source`.
    fn create_copy(
        &self,
        object: ObjectId,
        permit: PermitId,
        source: Option<HostId>,
        ctx: &mut Context,
    ) {
        let server = permit.server;
        let pages = self.objects.objects[&object].pages;
        let message = HostMessage::Create(object, permit, pages);
        ctx.send_to(self.node, server, message);
        if let Some(source) = source {
            let hosts = [source, server].map(|host| ctx.network.topology.node(host));
            let hosts = [hosts[0], hosts[1], self.node];
            let bytes = pages * PAGE_BYTES;
            let done = ctx.network.transfer(&hosts, bytes, ctx.now);
            ctx.queue
                .push(done, Event::Filled(self.node, object, server));
        }
    }

    /// A copy has all pages. If it is there for a move, the one that leaves ends.
    pub fn on_filled(&mut self, object: ObjectId, server: HostId, ctx: &mut Context) {
        let Some(one) = self.objects.objects.get_mut(&object) else {
            return;
        };
        let Some(copy) = one.copies.get_mut(&server).filter(|copy| !copy.is_current) else {
            return;
        };
        copy.is_current = true;
        let pages = &mut ctx.pages;
        let Some((from, _)) = one.moving.take_if(|(_, to)| *to == server) else {
            pages.rebuilt_objects += 1;
            pages.rebuilt_pages += one.pages;
            return;
        };
        pages.moved_objects += 1;
        pages.moved_pages += one.pages;
        one.copies.remove(&from);
        self.organizer.on_move_ended(object, true);
        ctx.send_to(self.node, from, HostMessage::Terminate(object));
    }

    /// A server is gone. A move from there is a rebuild now, and one to there is over.
    pub(super) fn end_moves_at(&mut self, host: HostId, ctx: &mut Context) {
        for (object, one) in &mut self.objects.objects {
            let ended = one
                .moving
                .take_if(|(from, to)| *from == host || *to == host);
            if let Some((from, _)) = ended {
                let has_copy_at_destination = from == host;
                self.organizer
                    .on_move_ended(*object, has_copy_at_destination);
                ctx.pages.kept_moves += u64::from(!has_copy_at_destination);
            }
        }
    }

    /// Compares what a server has with what it should have.
    pub(super) fn check_copies(
        &mut self,
        host: HostId,
        server: &SimulatedServer,
        ctx: &mut Context,
    ) -> CopiesAt {
        let mut missing = Vec::new();
        let mut is_gone = false;
        for (object, one) in &mut self.objects.objects {
            let Some(copy) = one.copies.get_mut(&host) else {
                continue;
            };
            if server.has(*object) {
                copy.is_confirmed = true;
                continue;
            }
            copy.missed_beats += 1;
            is_gone |= copy.is_confirmed || copy.missed_beats > SILENT_BEATS;
            missing.push((*object, copy.permit, one.pages));
        }
        if is_gone {
            return CopiesAt::Gone;
        }
        for (object, permit, pages) in missing {
            ctx.send_to(self.node, host, HostMessage::Create(object, permit, pages));
        }
        CopiesAt::There
    }

    /// Looks again for places of copies that have none.
    pub(super) fn complete_copies(&mut self, ctx: &mut Context) {
        let needs_place = |one: &Object| !one.is_placing && one.is_short();
        let short = self
            .objects
            .objects
            .iter()
            .filter(|(_, one)| needs_place(one));
        let short: Vec<_> = short.map(|(object, _)| *object).collect();
        for object in short {
            self.place(object, ctx);
        }
    }

    /// The object ends.
    pub(super) fn terminate(&mut self, object: ObjectId, ctx: &mut Context) {
        self.organizer.terminate(object);
        let Some(one) = self.objects.objects.remove(&object) else {
            return;
        };
        for server in one.copies.into_keys() {
            ctx.send_to(self.node, server, HostMessage::Terminate(object));
        }
    }
}
