//! Requests of pages: which servers they go to, and what their replies mean.

use crate::copying;
use crate::objects::{ObjectMap, bit};
use crate::page_records::PageMismatch;
use crate::placement;
use crate::refusals::{self, PageRefusal};
use crate::requests::{Purpose, Segment};
use crate::transport::{RemoteTransport, since_start};
use crate::{degraded, reading, stripe_job, stripes};
use disk::time::Time;
use iochannel::Op;
use remote_policy::identity::Version;
use remote_wire::{Frame, Header, Kind, Status, error_text};
use rustix::io::Errno;
use wired::PAGE;

impl RemoteTransport {
    /// Decides which servers a segment goes to. Where none will do now it waits.
    pub(crate) fn route(&mut self, slot: usize, now: Time) {
        let Some(segment) = self.requests.get(slot).copied() else {
            return;
        };
        match segment.op {
            Op::Read => reading::route(self, slot, &segment, now),
            // A parity depends on what its pages were: it waits.
            Op::Write if stripes::holds_write(self, segment.object, now) => {
                self.has_unsent = true;
            }
            Op::Write => {
                let id = self.objects.id(segment.object);
                let is_placing = self.organizer.is_placing(id);
                let object = self.objects.get(segment.object);
                // The first write waits until all copies are there.
                let targets = match (object.is_creating() || is_placing) && !object.has_pages {
                    true => 0,
                    false => object.writable(),
                };
                if let Some(segment) = self.requests.get(slot) {
                    (segment.awaited, segment.unsent) = (targets, targets);
                }
                self.has_unsent = true;
                if targets == 0 && !self.objects.get(segment.object).is_creating() {
                    placement::place(self, segment.object, now);
                    self.fail_if_unanswered(slot, &segment, now);
                }
            }
        }
    }

    /// Ends a read. One for a copy ends the copy, too, where it failed.
    pub(crate) fn end_read(&mut self, slot: usize, result: Result<(), Errno>, now: Time) {
        let Some(segment) = self.requests.get(slot).copied() else {
            return;
        };
        self.end(slot, result);
        match segment.purpose {
            // Those of an earlier copy end with it.
            Purpose::CopyWrite => copying::on_failed(self, now),
            Purpose::CopyRead { .. } => copying::on_unreadable(self, &segment, now),
            Purpose::DegradedRead { at } => degraded::on_unread(self, at, &segment, result, now),
            Purpose::StripeRead if result == Err(Errno::IO) => {
                stripe_job::on_unreadable(self, self.requests.number(slot), now);
            }
            Purpose::Part(_) | Purpose::StripeRead | Purpose::StripeWrite => {}
        }
    }

    /// Handles a reply. `Err` if the server does not keep to the protocol.
    pub(crate) fn on_page_frame(
        &mut self,
        now: Time,
        server: usize,
        frame: &Frame<'_>,
        later: &mut Vec<(Header, Vec<u8>)>,
    ) -> Result<(), String> {
        if frame.header.kind == Kind::ErrorReply && frame.header.request >> 31 == 1 {
            later.push((frame.header, frame.body.to_vec()));
            return Ok(());
        }
        // It answers, be it a request that has ended or went elsewhere meanwhile.
        self.servers[server].presence.on_answer(now);
        let Some(slot) = self.requests.slot_of(frame.header.request) else {
            return Ok(());
        };
        let Some(segment) = self.requests.get(slot).copied() else {
            return Ok(());
        };
        if segment.awaited & bit(server) == 0 || segment.unsent & bit(server) != 0 {
            return Ok(());
        }
        if frame.header.object != self.objects.id(segment.object)
            || frame.header.page.0 != segment.page
        {
            return Err(format!(
                "it answered a request of page {} by page {}",
                segment.page, frame.header.page.0
            ));
        }
        // A reply of a copy that was there before.
        if frame.header.generation != self.objects.generation(segment.object, server) {
            return Ok(());
        }
        self.measure(server, &segment, now);
        match (frame.header.kind, segment.op) {
            (Kind::ReadReply, Op::Read) if usize::from(frame.header.pages) == segment.count => {
                self.servers[server].on_page_reply();
                self.on_read(slot, &segment, server, frame.body, now);
            }
            (Kind::WriteReply, Op::Write) => {
                // The count of a slot's uses starts again some time, versions do not.
                let (written, sent) = (frame.header.version.0, segment.version.0);
                if written != sent {
                    return Err(format!(
                        "it answered a write of version {sent} by {written}"
                    ));
                }
                self.servers[server].on_page_reply();
                self.on_written(slot, server, now);
            }
            (Kind::ErrorReply, _) => {
                let text = error_text(frame.body);
                let reason = PageRefusal {
                    status: Status::from_code(frame.header.pages),
                    text: &text,
                };
                refusals::on_refused(self, (slot, segment), server, &reason, now);
            }
            (kind, _) => return Err(format!("it answered a {:?} by {kind:?}", segment.op)),
        }
        Ok(())
    }

    /// Records a reply: the latency of its server's host, and the use of its object.
    fn measure(&mut self, server: usize, segment: &Segment, now: Time) {
        let time = since_start(now);
        let trip = time.saturating_sub(since_start(segment.sent));
        if let Some(host) = self.servers[server].host()
            && segment.is_measured(server)
        {
            self.latencies.on_sample(host, trip, time);
        }
        let id = self.objects.id(segment.object);
        match (segment.purpose, segment.op) {
            (Purpose::Part(_), Op::Read) => self.organizer.on_fault(id, time),
            (Purpose::Part(_), Op::Write) => self.organizer.on_written(id, 0, time),
            _ => {}
        }
    }

    fn on_read(&mut self, slot: usize, segment: &Segment, server: usize, body: &[u8], now: Time) {
        let (versions, pages) = body.split_at(segment.count * size_of::<u64>());
        let versions = versions.chunks_exact(size_of::<u64>());
        let versions =
            versions.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
        let bodies = versions.clone().zip(pages.chunks_exact(PAGE));
        for (page, (version, contents)) in (segment.page..).zip(bodies.clone()) {
            let number = ObjectMap::number(segment.object, page);
            let records = self.objects.records();
            if let Err(why) = records.check(number, Version(version), contents) {
                let pages = segment.page..segment.page + segment.count as u64;
                if !self.objects.get(segment.object).has_unreadable(pages) {
                    self.servers[server].avoid(now);
                }
                let why = format!("page {page} there has {why}");
                return self.on_bad_copy(slot, segment, server, &why, now);
            }
        }
        if let Purpose::CopyRead { .. } = segment.purpose {
            let runs: Vec<u64> = versions.collect();
            copying::on_read(self, segment, &runs, pages, now);
            return self.end(slot, Ok(()));
        }
        if segment.purpose == Purpose::StripeRead {
            let run: Vec<u64> = versions.collect();
            stripe_job::on_read(self, slot, &run, pages);
            self.end(slot, Ok(()));
            return stripe_job::step(self, now);
        }
        if let Purpose::DegradedRead { .. } = segment.purpose {
            return degraded::on_read(self, (slot, segment), bodies, now);
        }
        match self.hand_over(segment, bodies) {
            Ok(()) => {
                self.budget.on_answer();
                self.end(slot, Ok(()));
            }
            Err(why) => self.on_bad_copy(slot, segment, server, &why.to_string(), now),
        }
    }

    /// Copies the pages that a read has brought to where they were asked for, decrypted.
    pub(crate) fn hand_over<'a>(
        &self,
        segment: &Segment,
        bodies: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<(), PageMismatch> {
        let records = self.objects.records();
        let mut opened = [0; PAGE];
        let first = ObjectMap::number(segment.object, segment.page);
        let pages = self.requests.pages(segment).zip(first..);
        for ((to, number), (version, from)) in pages.zip(bodies) {
            let mut from = from;
            if version != 0 && records.is_encrypted() {
                opened.copy_from_slice(from);
                records.open(number, Version(version), &mut opened)?;
                from = &opened;
            }
            // SAFETY: a page of the part, mapped until it is reaped.
            unsafe {
                match version {
                    // It was never written, whatever the server sent.
                    0 => to.write_bytes(0, PAGE),
                    _ => std::ptr::copy_nonoverlapping(from.as_ptr(), to, PAGE),
                }
            }
        }
        Ok(())
    }

    /// A copy is not what it should be. It is used no more where another in reach is current. One out of reach is waited
    /// for; without any the request fails, and what else the copy has is not given up.
    pub(crate) fn on_bad_copy(
        &mut self,
        slot: usize,
        segment: &Segment,
        server: usize,
        why: &str,
        now: Time,
    ) {
        let is_only = self.objects.at(segment.object).is_only_current(server);
        if is_only && !stripes::can_rebuild(self, segment.object) {
            let (id, name) = (self.objects.id(segment.object), &self.servers[server].name);
            tracing::error!("a read of {id} at {name}, its only copy, fails: {why}");
            return self.end_read(slot, Err(Errno::IO), now);
        }
        // Another copy may have what this one lacks, and lack what it has.
        let pages = segment.page..segment.page + segment.count as u64;
        let lacks_pages = self.objects.get(segment.object).has_unreadable(pages);
        if !lacks_pages && self.can_spare(segment.object, server) {
            self.drop_copy(segment.object, server, why, now);
        } else if !lacks_pages && segment.is_own() {
            let (id, name) = (self.objects.id(segment.object), &self.servers[server].name);
            tracing::warn!("a read of {id} at {name} waits for another server: {why}");
        }
        self.retry_elsewhere(slot, server, now);
    }

    /// A read that a server could not serve goes to another.
    pub(crate) fn retry_elsewhere(&mut self, slot: usize, server: usize, now: Time) {
        if let Some(segment) = self.requests.get(slot) {
            segment.failed |= bit(server);
            segment.awaited &= !bit(server);
            segment.unsent &= !bit(server);
            if segment.awaits_route(now) {
                self.route(slot, now);
            }
        }
    }

    fn on_written(&mut self, slot: usize, server: usize, now: Time) {
        if let Some(segment) = self.requests.get(slot) {
            segment.awaited &= !bit(server);
            segment.written |= bit(server);
        }
        self.end_write_if_done(slot, now);
    }

    /// Ends a write that all copies have.
    pub(crate) fn end_write_if_done(&mut self, slot: usize, now: Time) {
        let Some(segment) = self.requests.get(slot).copied() else {
            return;
        };
        if segment.awaited != 0 || segment.written == 0 {
            return;
        }
        // What is copied was acknowledged before.
        if segment.purpose == Purpose::CopyWrite {
            self.end(slot, Ok(()));
            return copying::on_written(self);
        }
        if segment.purpose == Purpose::StripeWrite {
            stripe_job::on_written(self, slot, &segment);
            self.end(slot, Ok(()));
            return stripe_job::step(self, now);
        }
        if segment.is_short {
            self.placement_refusals.on_room(segment.object);
        }
        for page in segment.page..segment.page + segment.count as u64 {
            self.objects
                .acknowledge(segment.object, page, segment.version);
        }
        self.end(slot, Ok(()));
    }

    /// A server's connection is lost: what it was sent is sent again when it is back, and reads go to
    /// another copy.
    pub(crate) fn resend(&mut self, server: usize) {
        for slot in self.requests.slots() {
            let Some(segment) = self.requests.get(slot) else {
                continue;
            };
            if segment.awaited & bit(server) == 0 {
                continue;
            }
            match (segment.op, segment.purpose) {
                (Op::Read, _) => {
                    segment.awaited &= !bit(server);
                    segment.unsent &= !bit(server);
                }
                (Op::Write, Purpose::Part(_)) => segment.unsent |= bit(server),
                // Its pages are not here any more: the copy begins anew.
                (Op::Write, _) => self.end(slot, Err(Errno::IO)),
            }
        }
        self.has_unsent = true;
    }
}
