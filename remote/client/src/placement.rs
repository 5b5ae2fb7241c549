//! Where copies of objects are made, and how they get their pages.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.3: binding is late, a permit is enlarged
//! before another server is asked, and slightly more is requested than needed. A server may ask for a
//! copy to be moved away (section 3.4): then another is made first, as it is where one was lost.
//!
//! A copy gets its pages from a current one, a run at a time, one object after the other. Writes go to
//! it from its creation on, with versions above those that are copied, so their order does not matter.

use crate::objects::{CopyState, OBJECT_PAGES, ObjectCopy, bit};
use crate::requests::{Purpose, Segment};
use crate::server::Asked;
use crate::transport::{RemoteTransport, since_start};
use disk::atropos::DiskContract;
use disk::time::{Nanos, Time};
use iochannel::Op;
use remote_policy::identity::RequestId;
use remote_policy::migration::{PageNumber, Version};
use remote_policy::redundancy::{Redundancy, ServerOffer, choose_servers};
use remote_wire::control::{ControlReply, ControlRequest, SealedPermit, ServerNotice, decode};
use remote_wire::{Header, Kind, MAX_RUN, Status};
use std::collections::BTreeSet;
use wired::PAGE;

/// How long a server that refused pages is not asked again.
const FULL: Nanos = Nanos::seconds(5);
/// How long nothing is copied after pages could not be read from any copy.
const COPY_PAUSE: Nanos = Nanos::seconds(5);
/// One in so many pages is asked for in addition, an object's at least.
const MARGIN: u64 = 8;

/// What the client asks of a server's time and link: it shares them with others in proportion.
const QOS: DiskContract = DiskContract {
    period: Nanos::millis(100),
    slice: Nanos::millis(10),
    extra: true,
    laxity: Nanos(0),
};

/// An object whose pages are being copied.
#[derive(Clone, Copy, Debug)]
pub struct CopyJob {
    object: usize,
    to: usize,
    /// The next page to be read.
    next: u64,
    /// Writes that are not acknowledged.
    writing: usize,
    is_reading: bool,
}

impl CopyJob {
    /// Returns true if this is a copy of an object to a server.
    pub fn is_of(&self, object: usize, to: usize) -> bool {
        (self.object, self.to) == (object, to)
    }

    /// Returns true if this is a copy of an object.
    pub fn is_of_object(&self, object: usize) -> bool {
        self.object == object
    }
}

impl RemoteTransport {
    /// Makes copies of an object that has none.
    pub(crate) fn place(&mut self, object: usize, now: Time) {
        let held = BTreeSet::new();
        let copies = || (1..=self.replicas).rev();
        // One that is avoided is better than none.
        let chosen = copies()
            .find_map(|copies| self.choose(copies, &held, now, false))
            .or_else(|| copies().find_map(|copies| self.choose(copies, &held, now, true)));
        let any_full = self
            .servers
            .iter()
            .any(|server| server.is_up() && now < server.full_until);
        match chosen {
            Some(servers) => servers
                .into_iter()
                .for_each(|to| self.create_copy(object, to, now)),
            None if any_full => self.fail_writes(object),
            // No server is connected: the write waits.
            None => {}
        }
    }

    /// Servers for a number of copies beside those in `held`; those that are avoided only if `any` will do.
    fn choose(
        &self,
        copies: u8,
        held: &BTreeSet<usize>,
        now: Time,
        any: bool,
    ) -> Option<Vec<usize>> {
        let host_of = |server: usize| self.servers[server].host();
        let offers: Vec<_> = (0..self.servers.len())
            .filter(|at| self.servers[*at].is_up() && now >= self.servers[*at].full_until)
            .filter(|at| any || !self.servers[*at].is_avoided(now))
            .filter_map(|at| {
                let server = host_of(at)?;
                Some(ServerOffer {
                    server,
                    // Its answer decides: it may have more by now.
                    free_pages: self.servers[at]
                        .spare_pages()
                        .saturating_add(self.servers[at].lendable_pages.max(OBJECT_PAGES)),
                    is_in_use: self.servers[at].reserved_pages > 0,
                    round_trip: self.latencies.of(server, since_start(now)),
                })
            })
            .collect();
        let held = held.iter().filter_map(|at| host_of(*at)).collect();
        let chosen =
            choose_servers(Redundancy::Replicas(copies), OBJECT_PAGES, &offers, &held).ok()?;
        let index = |host| (0..self.servers.len()).find(|at| host_of(*at) == Some(host));
        Some(chosen.into_iter().filter_map(index).collect())
    }

    /// Asks a server for a copy of an object, and for a larger permit first where it needs one.
    fn create_copy(&mut self, object: usize, to: usize, now: Time) {
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
        self.terminate_stale(to);
        let server = &mut self.servers[to];
        let has_room = server.spare_pages() >= OBJECT_PAGES;
        server.reserved_pages += OBJECT_PAGES;
        if has_room {
            return self.send_create(object, to);
        }
        server.waiting.push(object);
        if !server.awaits_permit() {
            let reserved = server.reserved_pages;
            self.ask_permit(to, reserved + (reserved / MARGIN).max(OBJECT_PAGES), now);
        }
    }

    fn ask_permit(&mut self, to: usize, pages: u64, now: Time) {
        let number = self.next_request;
        self.next_request += 1;
        let request = match self.servers[to].permit {
            Some(sealed) => ControlRequest::Reallocate {
                permit: sealed.permit.id,
                pages,
            },
            None => ControlRequest::Allocate {
                request: RequestId {
                    client: self.client,
                    number,
                },
                pages,
                object: None,
                qos: QOS,
            },
        };
        if !self.servers[to].ask(&request, Asked::Permit(pages)) {
            self.refuse_waiting(to, now);
        }
    }

    fn send_create(&mut self, object: usize, to: usize) {
        let Some(sealed) = self.servers[to].permit else {
            return;
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
            let to = &mut self.servers[server];
            to.reserved_pages = to.reserved_pages.saturating_sub(OBJECT_PAGES);
            to.stale.push(object);
        }
        self.has_unsent = true;
    }

    /// A server has no room for what waits for its permit.
    fn refuse_waiting(&mut self, server: usize, now: Time) {
        self.servers[server].full_until = now + FULL;
        let waiting = std::mem::take(&mut self.servers[server].waiting);
        for object in waiting {
            self.forget_copy(object, server);
        }
    }

    /// Tells a server which objects it need not keep.
    fn terminate_stale(&mut self, server: usize) {
        for object in std::mem::take(&mut self.servers[server].stale) {
            let id = self.objects.id(object);
            let to = &mut self.servers[server];
            if !to.ask(&ControlRequest::Terminate(id), Asked::Other) {
                to.stale.push(object);
            }
        }
    }

    /// A server is connected: it is shown the permit that it issued, so that the requests that follow
    /// are served.
    pub(crate) fn on_server_back(&mut self, server: usize) {
        if let Some(sealed) = self.servers[server].permit {
            self.servers[server].ask(&ControlRequest::Present(sealed), Asked::Present);
        }
        self.terminate_stale(server);
    }

    /// Handles the reply to a control request, or a notice.
    pub(crate) fn on_control_frame(
        &mut self,
        now: Time,
        server: usize,
        header: &Header,
        body: &[u8],
    ) {
        if header.kind == Kind::Notice {
            if let Ok(notice) = decode(body) {
                self.on_notice(now, server, notice);
            }
            return;
        }
        let Some(asked) = self.servers[server].take_asked(header.request) else {
            return;
        };
        let reply = match header.kind {
            Kind::ErrorReply => Err(Status::from_code(header.pages)),
            _ => decode::<ControlReply>(body).map_err(|_| None),
        };
        match (asked, reply) {
            // One that grants less than was asked for, and less than is needed, has no more.
            (Asked::Permit(pages), Ok(ControlReply::Permit(sealed)))
                if sealed.permit.granted_pages < pages
                    && sealed.permit.granted_pages < self.servers[server].reserved_pages =>
            {
                self.servers[server].permit = Some(sealed);
                self.refuse_waiting(server, now);
            }
            (Asked::Permit(_), Ok(ControlReply::Permit(sealed))) => {
                self.on_permit(now, server, sealed)
            }
            (Asked::Permit(pages), _) => {
                let text = String::from_utf8_lossy(body);
                let name = &self.servers[server].name;
                tracing::info!("{name} does not grant {pages} pages: {text}");
                let least = self.servers[server].reserved_pages;
                match pages > least {
                    true => self.ask_permit(server, least, now),
                    false => self.refuse_waiting(server, now),
                }
            }
            (Asked::Create(object, generation), Ok(ControlReply::Done)) => {
                self.on_created(object, server, generation);
            }
            (Asked::Create(object, _), _) => {
                let text = String::from_utf8_lossy(body);
                let name = &self.servers[server].name;
                tracing::warn!("{name} does not create {}: {text}", self.objects.id(object));
                self.servers[server].full_until = now + FULL;
                self.forget_copy(object, server);
            }
            (Asked::Present, Err(_)) => {
                let name = &self.servers[server].name;
                tracing::warn!(
                    "{name} has ended its permit: {}",
                    String::from_utf8_lossy(body)
                );
                self.end_permit(server, now);
            }
            (Asked::Present | Asked::Other, _) => {}
        }
        self.has_unsent = true;
    }

    fn on_permit(&mut self, now: Time, server: usize, sealed: SealedPermit) {
        let to = &mut self.servers[server];
        to.permit = Some(sealed);
        to.ask(&ControlRequest::Present(sealed), Asked::Present);
        if sealed.permit.granted_pages < to.reserved_pages {
            // More objects came meanwhile.
            let reserved = to.reserved_pages;
            return self.ask_permit(
                server,
                reserved + (reserved / MARGIN).max(OBJECT_PAGES),
                now,
            );
        }
        for object in std::mem::take(&mut self.servers[server].waiting) {
            self.send_create(object, server);
        }
    }

    /// A copy exists. It is current where the object has no pages yet.
    fn on_created(&mut self, object: usize, server: usize, generation: u64) {
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
        self.add_to_writes(object, server);
    }

    fn on_notice(&mut self, now: Time, server: usize, notice: ServerNotice) {
        let name = self.servers[server].name.clone();
        match notice {
            ServerNotice::Rewritten(sealed) => self.servers[server].permit = Some(sealed),
            ServerNotice::Abdicate(id) => {
                if let Some(object) = self.objects.find(id) {
                    self.leave(object, server);
                }
            }
            ServerNotice::Revoke {
                keep_pages, within, ..
            } => {
                tracing::warn!(
                    "{name} takes memory back: {keep_pages} pages may stay after {within:.0?}"
                );
                let mut kept = self.servers[server].reserved_pages;
                for object in 0..self.objects.len() {
                    if kept > keep_pages && self.leave(object, server) {
                        kept -= OBJECT_PAGES.min(kept);
                    }
                }
            }
            ServerNotice::Void { cause, .. } => {
                tracing::warn!("{name} has ended its permit: {cause:?}");
                (
                    self.servers[server].permit,
                    self.servers[server].reserved_pages,
                ) = (None, 0);
                self.lose_server(server, now);
            }
        }
    }

    /// A permit is void, and the objects under it are gone.
    fn end_permit(&mut self, server: usize, now: Time) {
        self.servers[server].permit = None;
        self.lose_server(server, now);
        self.servers[server].reserved_pages = 0;
    }

    /// Has a copy moved away from a server. Returns true if it has one.
    fn leave(&mut self, object: usize, server: usize) -> bool {
        let copy = self.objects.get(object).copy_at(server);
        copy.map(|copy| copy.is_leaving = true).is_some()
    }

    /// Makes the copies that objects lack, and drops those that are to leave and have another.
    pub(crate) fn place_objects(&mut self, now: Time) {
        (0..self.servers.len()).for_each(|server| self.terminate_stale(server));
        self.start_copy();
        self.step_copy(now);
        for object in 0..self.objects.len() {
            let of = self.objects.get(object);
            if of.copies.is_empty() || of.is_creating() || of.readable() == 0 {
                continue;
            }
            let stays = |copy: &&ObjectCopy| !copy.is_leaving;
            let is_kept = |copy: &ObjectCopy| !copy.is_leaving && copy.state == CopyState::Current;
            if of.copies.iter().filter(stays).count() < usize::from(self.replicas) {
                if self.copy.is_none() && now >= self.copies_paused_until {
                    let held = of.copies.iter().map(|copy| copy.server).collect();
                    self.add_copy(object, &held, now);
                }
            } else if of.copies.iter().any(|copy| copy.is_leaving) && of.copies.iter().any(is_kept)
            {
                let leaving = of.copies.iter().filter(|copy| copy.is_leaving);
                let servers: Vec<_> = leaving.map(|copy| copy.server).collect();
                for server in servers {
                    self.drop_copy(object, server, "it has moved", now);
                }
            }
        }
    }

    /// Makes one more copy of an object, beside those at the servers in `held`.
    fn add_copy(&mut self, object: usize, held: &BTreeSet<usize>, now: Time) {
        let chosen = self.choose(held.len() as u8 + 1, held, now, false);
        for to in chosen.into_iter().flatten() {
            self.create_copy(object, to, now);
        }
    }

    /// Starts copying the pages of a copy that was created.
    fn start_copy(&mut self) {
        if self.copy.is_some() {
            return;
        }
        let copying = self.objects.iter().find_map(|(object, of)| {
            let mut copies = of.copies.iter();
            let copy = copies.find(|copy| copy.state == CopyState::Copying)?;
            Some((object, copy.server))
        });
        self.copy = copying.map(|(object, to)| CopyJob {
            object,
            to,
            next: 0,
            writing: 0,
            is_reading: false,
        });
    }

    /// Reads the next run, once the one before is written.
    fn step_copy(&mut self, now: Time) {
        let Some(mut job) = self.copy else {
            return;
        };
        if job.is_reading || job.writing > 0 {
            return;
        }
        let end = self.objects.pages_of(job.object).end;
        while job.next < end && !self.objects.is_held(job.object, job.next) {
            job.next += 1;
        }
        self.copy = Some(job);
        if job.next == end {
            return self.end_copy(job);
        }
        let most = job.next..end.min(job.next + MAX_RUN as u64);
        // A run with a lost page cannot be read.
        let is_there = |page: &u64| !self.objects.is_lost(job.object, *page);
        let count = most.take_while(is_there).count() as u64;
        let pages = job.next..job.next + count;
        let purpose = Purpose::CopyRead { to: job.to };
        let read = Segment::new(purpose, Op::Read, job.object, pages, now);
        if let Some(slot) = self.requests.add(read) {
            self.copy = Some(CopyJob {
                is_reading: true,
                ..job
            });
            self.route(slot, now);
        }
    }

    fn end_copy(&mut self, job: CopyJob) {
        self.copy = None;
        if let Some(copy) = self.objects.get(job.object).copy_at(job.to) {
            copy.state = CopyState::Current;
        }
        let (id, name) = (self.objects.id(job.object), &self.servers[job.to].name);
        tracing::info!("{name} has a copy of {id}");
    }

    /// Pages for a copy were read: sends them on, each run of one version by itself.
    pub(crate) fn on_copy_read(
        &mut self,
        read: &Segment,
        to: usize,
        versions: &[u64],
        pages: &[u8],
        now: Time,
    ) {
        let Some(job) = self
            .copy
            .filter(|job| job.object == read.object && job.to == to)
        else {
            return;
        };
        let mut job = CopyJob {
            is_reading: false,
            next: read.page,
            ..job
        };
        let mut at = 0;
        while at < versions.len() {
            let run = versions[at..]
                .iter()
                .take_while(|version| **version == versions[at])
                .count();
            // What has no room is read again.
            if versions[at] != 0
                && !self.send_copied(read, (at, run), Version(versions[at]), to, pages, now)
            {
                break;
            }
            job.writing += usize::from(versions[at] != 0);
            at += run;
            job.next = read.page + at as u64;
        }
        self.copy = Some(job);
    }

    fn send_copied(
        &mut self,
        read: &Segment,
        (at, run): (usize, usize),
        version: Version,
        to: usize,
        pages: &[u8],
        now: Time,
    ) -> bool {
        let page = read.page + at as u64;
        let segment = Segment {
            version,
            awaited: bit(to),
            ..Segment::new(
                Purpose::CopyWrite,
                Op::Write,
                read.object,
                page..page + run as u64,
                now,
            )
        };
        let Some(slot) = self.requests.add(segment) else {
            return false;
        };
        let header = Header {
            kind: Kind::Write,
            pages: run as u16,
            request: self.requests.number(slot),
            object: self.objects.id(read.object),
            page: PageNumber(page),
            version,
            generation: self.objects.generation(read.object, to),
        };
        let bytes = &pages[at * PAGE..(at + run) * PAGE];
        let is_sent =
            self.servers[to].send(&header, bytes.len(), |room| room.copy_from_slice(bytes));
        if !is_sent {
            self.requests.end(slot, Ok(()));
        }
        is_sent
    }

    /// A run of a copy is written.
    pub(crate) fn on_copy_written(&mut self, now: Time) {
        if let Some(job) = &mut self.copy {
            job.writing = job.writing.saturating_sub(1);
        }
        self.step_copy(now);
    }

    /// Pages for the copy could not be read anywhere. They are not read again at once.
    pub(crate) fn on_copy_unreadable(&mut self, now: Time) {
        self.copies_paused_until = now + COPY_PAUSE;
        self.on_copy_failed(now);
    }

    /// A request of the copy failed: the copy begins anew.
    pub(crate) fn on_copy_failed(&mut self, now: Time) {
        if let Some(job) = self.copy.take() {
            self.drop_copy(job.object, job.to, "its pages could not be copied", now);
        }
    }

    /// A server is away: a copy to it begins anew later.
    pub(crate) fn on_copy_server_lost(&mut self, server: usize, now: Time) {
        if self.copy.is_some_and(|job| job.to == server) {
            self.on_copy_failed(now);
        }
    }
}
