//! Copies of objects: how one is created and removed.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 3.3.1 and 3.4. Rule: a copy that lacks pages or
//! cannot be reached is removed before a write is acknowledged without it (`objects`).

use crate::copying;
use crate::objects::{CopyState, ObjectCopy, ServerSet, bit};
use crate::outage::{self, witnesses_of_absence};
use crate::requests::{Purpose, Segment};
use crate::server::{Asked, Server};
use crate::transport::{LATE, PATIENCE, RemoteTransport, connected};
use crate::{background, permits, placement, reading, stripes};
use disk::time::{Nanos, Time};
use disk::usd::PartId;
use iochannel::Op;
use remote_wire::control::ControlRequest;
use rustix::io::Errno;

impl RemoteTransport {
    /// Asks a server for a copy of an object, under the permit there.
    pub(crate) fn create_copy(&mut self, object: usize, to: usize) {
        let of = self.objects.get(object);
        if of.copies.iter().any(|copy| copy.server == to) {
            return;
        }
        of.latest = of.latest.next();
        let generation = of.latest;
        of.copies.push(ObjectCopy {
            server: to,
            state: CopyState::Creating,
            is_leaving: false,
            generation,
        });
        permits::terminate_stale(self, to);
        self.send_create(object, to);
    }

    fn send_create(&mut self, object: usize, to: usize) {
        let Some(sealed) = self.servers[to].permit else {
            return self.forget_copy(object, to);
        };
        let generation = self.objects.generation(object, to);
        let request = ControlRequest::Create {
            object: self.objects.id(object),
            permit: sealed.permit.id,
            pages: self.objects.pages_of(object).end,
            generation,
        };
        if !self.servers[to].ask(&request, Asked::Create(object, generation.0)) {
            self.forget_copy(object, to);
        }
    }

    /// A copy that was being created will not be.
    pub(crate) fn forget_copy(&mut self, object: usize, server: usize) {
        let copies = &mut self.objects.get(object).copies;
        let creating =
            |copy: &ObjectCopy| copy.server == server && copy.state == CopyState::Creating;
        if let Some(at) = copies.iter().position(creating) {
            copies.swap_remove(at);
            placement::on_copy_gone(self, object, server);
        }
        self.has_unsent = true;
    }

    /// A copy exists. It is current where the object has no pages yet.
    pub(crate) fn on_created(&mut self, object: usize, server: usize, generation: u64) {
        let of = self.objects.get(object);
        let has_pages = of.has_pages;
        let created = |copy: &&mut ObjectCopy| copy.generation.0 == generation;
        let Some(copy) = of.copy_at(server).filter(created) else {
            return;
        };
        copy.state = match has_pages {
            true => CopyState::Copying,
            false => CopyState::Current,
        };
        self.placement_refusals.on_room(object);
        self.add_to_writes(object, server);
    }

    /// Returns true if a server that is in reach has another current copy of an object.
    pub(crate) fn has_other_in_reach(&self, object: usize, server: usize) -> bool {
        let others = self.objects.at(object).readable() & !bit(server);
        others & reading::in_reach(self) != 0
    }

    /// Returns true if an object's copy can be given up for one page: it is not current, or what is in reach gives its
    /// pages. A server that has just ended may have the only other copy, and may not come back.
    pub(crate) fn can_spare(&self, object: usize, server: usize) -> bool {
        self.objects.at(object).readable() & bit(server) == 0
            || self.has_other_in_reach(object, server)
            || stripes::survives(self, object, server)
    }

    /// Removes an object's copy, which lacks pages or cannot be reached, before writes are acknowledged
    /// without it.
    pub(crate) fn drop_copy(&mut self, object: usize, server: usize, why: &str, now: Time) {
        let name = &self.servers[server].name;
        let id = self.objects.id(object);
        if self
            .objects
            .at(object)
            .copies
            .iter()
            .any(|copy| copy.server == server)
        {
            tracing::warn!("the copy of {id} at {name} is not used any more: {why}");
        }
        self.remove_copy(object, server, now);
    }

    /// Marks the pages of an object lost.
    pub(crate) fn lose_object(&mut self, object: usize) {
        let lost = self.objects.lose(object);
        if lost > 0 {
            let id = self.objects.id(object);
            tracing::error!("{lost} pages of {id} are lost: no server has them");
        }
    }

    /// Likewise, of a copy that is not needed.
    pub(crate) fn remove_copy(&mut self, object: usize, server: usize, now: Time) {
        let copies = &mut self.objects.get(object).copies;
        let Some(at) = copies.iter().position(|copy| copy.server == server) else {
            return;
        };
        let copy = copies.swap_remove(at);
        self.copy.take_if(|job| job.is_of(object, server));
        placement::on_copy_gone(self, object, server);
        if copy.state == CopyState::Current && self.objects.get(object).readable() == 0 {
            if !stripes::on_copies_gone(self, object, now) {
                self.lose_object(object);
            }
            // Copies that were being made from it are worth nothing.
            self.copy.take_if(|job| job.is_of_object(object));
            let rest = std::mem::take(&mut self.objects.get(object).copies);
            for copy in rest {
                placement::on_copy_gone(self, object, copy.server);
            }
        }
        self.forget_server(object, server, now);
    }

    /// All copies at a server are lost. It is asked to terminate their objects: it may have kept what it said
    /// to be gone, under the permit of before, and would not create the same under another.
    pub(crate) fn lose_server(&mut self, server: usize, now: Time) {
        copying::on_server_lost(self, server, now);
        if let Some(host) = self.servers[server].host() {
            // Each object's copy is dropped below.
            let _ = self.organizer.on_server_lost(host);
        }
        for object in 0..self.objects.len() {
            if self.objects.get(object).copy_at(server).is_some() {
                self.drop_copy(object, server, "its server has lost it", now);
            }
        }
    }

    /// Goes on without a server that is away or silent for too long, where one of the witnesses has a copy.
    pub(crate) fn leave_out(&mut self, server: usize, witnesses: ServerSet, now: Time, why: &str) {
        copying::on_server_lost(self, server, now);
        for object in 0..self.objects.len() {
            let of = self.objects.get(object);
            let is_elsewhere = of.readable() & witnesses & !bit(server) != 0;
            let is_there = of.copy_at(server).is_some();
            if is_there && (is_elsewhere || stripes::survives(self, object, server)) {
                self.drop_copy(object, server, why, now);
            }
        }
    }

    /// The servers beside which writes wait no longer for one without a connection (`outage`). Servers that come
    /// and go cannot have a write wait until it fails.
    pub(crate) fn witnesses_of_absence(&mut self, server: usize, now: Time) -> ServerSet {
        let absent = &self.servers[server];
        if absent.is_up() {
            return 0;
        }
        let is_late = |segment: &mut Segment| {
            segment.awaited & bit(server) != 0 && now >= segment.begun + LATE
        };
        if self
            .requests
            .slots()
            .any(|slot| self.requests.get(slot).is_some_and(is_late))
        {
            return connected(&self.servers);
        }
        let (presence, is_avoided) = (absent.presence, absent.awaits_reconnect());
        let presences = self.servers.iter().map(|server| server.presence);
        witnesses_of_absence(presences, (server, presence), is_avoided, now)
    }

    /// Segments of an object wait for a server no longer.
    fn forget_server(&mut self, object: usize, server: usize, now: Time) {
        let remaining = self.objects.get(object).writable();
        for slot in self.requests.slots() {
            let Some(segment) = self.requests.get(slot) else {
                continue;
            };
            if segment.object != object || segment.awaited == 0 {
                continue;
            }
            if segment.op == Op::Read {
                // The reply would be of a copy that is not there any more: another one is read.
                segment.awaited &= !bit(server);
                segment.unsent &= !bit(server);
                self.has_unsent = true;
                continue;
            }
            segment.awaited &= !bit(server) & remaining;
            segment.unsent &= !bit(server) & remaining;
            segment.written &= remaining;
            match (segment.awaited, segment.written, segment.purpose) {
                // No copy has it: another is made, and gets it.
                (0, 0, Purpose::Part(_)) => self.route(slot, now),
                (0, 0, _) => self.end(slot, Err(Errno::IO)),
                (0, _, _) => self.end_write_if_done(slot, now),
                _ => {}
            }
        }
    }

    /// Fails the writes that wait for an object that no server has room for.
    pub(crate) fn fail_writes(&mut self, object: usize) {
        for slot in self.requests.slots() {
            let waits = |segment: &mut Segment| {
                segment.object == object && segment.op == Op::Write && segment.awaited == 0
            };
            if self.requests.get(slot).is_some_and(waits) {
                self.end(slot, Err(Errno::NOSPC));
            }
        }
    }

    /// Fails what has waited for too long. A write that waits for the end of its stripe waits anew with each page that is
    /// copied for it, or for another one before it: all of them are copied one after the other, as fast as the link is.
    pub(crate) fn give_up_late(&mut self, now: Time) {
        background::note_progress(self, now);
        let last_progress = self.background.last_progress;
        for slot in self.requests.slots() {
            let Some(mut segment) = self.requests.get(slot).copied() else {
                continue;
            };
            let is_held = self.awaits_stripe(&segment);
            if let Some(kept) = self.requests.get(slot).filter(|_| is_held) {
                kept.begun = kept.begun.max(last_progress);
                segment = *kept;
            }
            let patience = self.patience_of(&segment, now);
            if now < segment.begun + patience || self.awaits_place(&segment) {
                continue;
            }
            if let Purpose::CopyRead { .. } = segment.purpose {
                self.end(slot, Err(Errno::IO));
                copying::on_late(self, &segment, now);
                continue;
            }
            let id = self.objects.id(segment.object);
            let why = match is_held {
                true => "its stripe is being dissolved, and no page was copied",
                false => "none of its servers answers",
            };
            tracing::error!("a request of {id} fails: {why} for {patience}");
            // Their connections may have ended just after it began.
            let since = segment.begun + (patience - LATE);
            let asked = self.servers_for(segment.object);
            for server in (0..self.servers.len()).filter(|at| asked & bit(*at) != 0) {
                self.servers[server].presence.on_request_failed(since, now);
            }
            // So that the pages of a run are not asked for one by one, of which each would wait as long.
            self.end_read(slot, Err(Errno::TIMEDOUT), now);
        }
    }

    /// Ends a write that its part's owner does not wait for any more. Copies may have it or not, as where it was late.
    pub(crate) fn give_up_write(&mut self, id: PartId) {
        for slot in self.requests.slots() {
            let is_of_it = |segment: &&mut Segment| segment.op == Op::Write && segment.is_own();
            let segment = self.requests.get(slot).filter(is_of_it).copied();
            if segment.is_some_and(|segment| self.requests.part_of(&segment) == Some(id)) {
                self.end(slot, Err(Errno::TIMEDOUT));
            }
        }
    }

    /// Returns true if a write waits for the end of its object's stripe.
    pub(crate) fn awaits_stripe(&self, segment: &Segment) -> bool {
        let is_own_write = segment.op == Op::Write && segment.is_own();
        is_own_write && segment.awaited == 0 && self.objects.stripe_of(segment.object).is_some()
    }

    /// Fails a write that waits for its object's first copy, where the request for a place was not answered in time.
    pub(crate) fn fail_if_unanswered(&mut self, slot: usize, segment: &Segment, now: Time) {
        let patience = self.placement_refusals.patience(now);
        if now < segment.begun + patience || !self.awaits_place(segment) {
            return;
        }
        if self.placement_refusals.on_unanswered(now) {
            let id = self.objects.id(segment.object);
            tracing::error!("a write of {id} fails: no broker grants memory for it for {patience}");
        }
        self.end(slot, Err(Errno::NOSPC));
    }

    /// Returns true if a write waits for its object's first copy, though a server is connected: no broker grants memory.
    fn awaits_place(&self, segment: &Segment) -> bool {
        let has_copy = !self.objects.at(segment.object).copies.is_empty();
        let lacks_place = !has_copy && self.objects.stripe_of(segment.object).is_none();
        let is_own_write = segment.op == Op::Write && segment.is_own();
        is_own_write && lacks_place && self.servers.iter().any(Server::is_up)
    }

    /// How long a request waits for its servers.
    fn patience_of(&self, segment: &Segment, now: Time) -> Nanos {
        if segment.op != Op::Read || !segment.is_own() {
            return PATIENCE;
        }
        let asked = self.servers_for(segment.object);
        let servers = self.servers.iter().enumerate();
        let asked = servers.filter(|(at, _)| asked & bit(*at) != 0);
        outage::patience(asked.map(|(_, server)| server.presence), now)
    }

    /// The servers that a request of an object may wait for: all where it has no copy or is of a stripe.
    fn servers_for(&self, object: usize) -> ServerSet {
        let copies = self.objects.at(object).servers(|_| true);
        match copies == 0 || self.objects.stripe_of(object).is_some() {
            true => ServerSet::MAX,
            false => copies,
        }
    }

    /// Adds a server to the writes of an object that are under way: a copy there receives writes from
    /// now on, and these may be later than what is copied.
    pub(crate) fn add_to_writes(&mut self, object: usize, server: usize) {
        for slot in self.requests.slots() {
            let Some(segment) = self.requests.get(slot) else {
                continue;
            };
            let is_own = matches!(segment.purpose, Purpose::Part(_));
            if segment.object == object && segment.op == Op::Write && is_own && segment.awaited != 0
            {
                segment.awaited |= bit(server);
                segment.unsent |= bit(server);
            }
        }
        self.has_unsent = true;
    }
}

#[cfg(test)]
mod tests;
