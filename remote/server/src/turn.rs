//! A turn: requests that have arrived enter the schedule, those that are due are served, replies
//! leave.
//!
//! A connection's first request waits in its reader until the schedule starts it, so that requests
//! take no memory beside the reader, and a client with more of them than its share waits for
//! itself. So do control requests and those that are refused: a client's permit pays for them, and
//! the time that is not lent for all others.

use crate::connection::{ConnectionId, ScheduledRequest};
use crate::control_requests::Controller;
use crate::event_loop::EventLoop;
use crate::page_service::{PageService, Progress, Requester};
use crate::pending::PendingRequest;
use crate::refusal::Refusal;
use crate::request_cost::{job_of_control, job_of_refusal};
use disk::atropos::{ClientId, Decision, Dispatch, TransactionDesc};
use disk::time::{Nanos, Time};
use remote_wire::control;
use remote_wire::{FrameError, Header, Kind, MAX_BODY, Status};
use std::time::Duration;

/// Requests served in a turn.
const BATCH: usize = 16;

/// Room that every request needs for its reply: an error's text.
const LEAST_ROOM: usize = 1024;

/// What looking at a connection's first request came to.
enum Advance {
    /// Nothing to do before something arrives, leaves or is served.
    Wait,
    /// The stream does not follow the protocol.
    Close(FrameError),
    /// The peer sent what only servers send.
    WrongKind(Kind),
}

impl EventLoop {
    /// Serves what has arrived, as far as it is due.
    pub(crate) fn turn(&mut self) {
        let now = self.now();
        let mut at = 0;
        while let Some(&slot) = self.connections.active().get(at) {
            self.advance(slot, now);
            at += 1;
        }
        self.dispatch();
        self.submit_disk();
        let looked_at = self.connections.take_active();
        for slot in &looked_at {
            self.finish(*slot);
        }
        self.connections.put_back(looked_at);
    }

    /// Looks at the first request of a connection.
    fn advance(&mut self, slot: u32, now: Time) {
        match self.advance_one(slot, now) {
            Advance::Wait => {}
            Advance::Close(why) => {
                self.reply_in_the_clear(slot, &why);
                self.close(slot, Some(&why));
            }
            Advance::WrongKind(kind) => {
                let why = format!("it sent a frame of kind {kind:?}, which clients do not send");
                self.close(slot, Some(&why));
            }
        }
    }

    /// Lets a peer that wants a link with keys read that this server has links in the clear.
    fn reply_in_the_clear(&mut self, slot: u32, why: &FrameError) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        if *why == FrameError::Keyed {
            let refusal = Refusal::new(Status::Invalid, why.to_string());
            connection.refuse(&Header::control(Kind::Control, 0), &refusal);
            let _ = connection.writer.flush(&mut connection.link);
        }
    }

    fn advance_one(&mut self, slot: u32, now: Time) -> Advance {
        let Some(connection) = self.connections.get_mut(slot) else {
            return Advance::Wait;
        };
        if connection.scheduled.is_some() || connection.is_blocked {
            return Advance::Wait;
        }
        let header = match connection.reader.peek_frame() {
            Ok(Some(frame)) => frame.header,
            Ok(None) => return Advance::Wait,
            Err(why) => return Advance::Close(why),
        };
        let room = match header.kind {
            Kind::Control => MAX_BODY,
            _ => PageService::reply_body(&header).max(LEAST_ROOM),
        };
        if !connection.has_room(room) {
            return Advance::Wait;
        }
        match header.kind {
            Kind::Control => self.schedule_control(slot, now),
            Kind::Read | Kind::Write | Kind::Discard => self.schedule(slot, &header, now),
            kind => Advance::WrongKind(kind),
        }
    }

    /// Puts the first request of a connection, which is of pages, into the schedule.
    fn schedule(&mut self, slot: u32, header: &Header, now: Time) -> Advance {
        let Some(connection) = self.connections.get_mut(slot) else {
            return Advance::Wait;
        };
        let admitted = match connection.client {
            None => Err(Refusal::new(
                Status::Invalid,
                "the first request of a connection is Hello",
            )),
            Some(client) => {
                let from = Requester {
                    client,
                    presented: &connection.presented,
                };
                let contact = self.service.issuer.on_contact(client);
                let contact = contact.map_err(Refusal::from);
                contact.and_then(|()| self.service.admit(&from, header))
            }
        };
        match admitted {
            Ok(_) if self.service.must_wait(header) => {
                connection.is_blocked = true;
                Advance::Wait
            }
            Ok(admitted) => self.submit(
                slot,
                ScheduledRequest::Pages,
                admitted.scheduled,
                admitted.job,
                now,
            ),
            Err(why) => {
                let payer = self.service.issuer.scheduled_control(&connection.presented);
                let refused = ScheduledRequest::Refused(why);
                self.submit(slot, refused, payer, job_of_refusal(), now)
            }
        }
    }

    /// Puts the first request of a connection, which is a control request, into the schedule.
    fn schedule_control(&mut self, slot: u32, now: Time) -> Advance {
        let Some(connection) = self.connections.get_mut(slot) else {
            return Advance::Wait;
        };
        let request = match connection.reader.peek_frame() {
            Ok(Some(frame)) => match control::decode(frame.body) {
                Ok(request) => request,
                Err(why) => return Advance::Close(why),
            },
            _ => return Advance::Wait,
        };
        if let Some(client) = connection.client {
            // A client that waits for its turn is not silent. A refusal comes with the turn.
            let _ = self.service.issuer.on_contact(client);
        }
        let job = job_of_control(&self.service, &request);
        let payer = self.service.issuer.scheduled_control(&connection.presented);
        self.submit(slot, ScheduledRequest::Control(request), payer, job, now)
    }

    fn submit(
        &mut self,
        slot: u32,
        request: ScheduledRequest,
        payer: ClientId,
        job: TransactionDesc,
        now: Time,
    ) -> Advance {
        if let Some(connection) = self.connections.get_mut(slot) {
            let tag = connection.id.pack();
            let job = TransactionDesc { tag, ..job };
            let schedule = &mut self.service.issuer.schedule;
            connection.scheduled = schedule.submit(now, payer, job).then_some(request);
        }
        Advance::Wait
    }

    fn serve_without_pages(&mut self, slot: u32, header: &Header, scheduled: ScheduledRequest) {
        match scheduled {
            ScheduledRequest::Control(request) => {
                let Some(connection) = self.connections.get_mut(slot) else {
                    return;
                };
                let mut controller = Controller {
                    service: &mut self.service,
                    clients: &mut self.clients,
                    server: self.server,
                    name: &self.name,
                    lease: self.lease,
                };
                if let Err(why) = controller.reply(connection, header, request) {
                    self.refuse(slot, header, &why);
                }
            }
            ScheduledRequest::Refused(why) => self.refuse(slot, header, &why),
            // Pages are a client's.
            ScheduledRequest::Pages => {}
        }
    }

    pub(crate) fn refuse(&mut self, slot: u32, header: &Header, why: &Refusal) {
        let now = self.service.issuer.now();
        self.refusals += 1;
        if let Some(connection) = self.connections.get_mut(slot) {
            let peer = connection.link.peer_address();
            self.log.warn(
                now,
                format_args!("refused {:?} of {peer}: {why}", header.kind),
            );
            connection.refuse(header, why);
        }
    }

    /// Serves requests that are due.
    fn dispatch(&mut self) {
        for _ in 0..BATCH {
            let now = self.now();
            match self.service.issuer.schedule.next(now) {
                Decision::Dispatch(start) => self.serve(start, now),
                Decision::WaitUntil(at) | Decision::Full(at) => {
                    self.due = at;
                    return;
                }
                Decision::Idle => {
                    self.due = Time::NEVER;
                    return;
                }
            }
        }
        // There may be more: after the replies of these have left.
        self.due = Time(0);
    }

    fn serve(&mut self, start: Dispatch, now: Time) {
        let id = ConnectionId::unpack(start.job.tag);
        let progress = self.serve_first(id, start, now);
        let done = self.now();
        let schedule = &mut self.service.issuer.schedule;
        match progress {
            Some(Progress::Waits { .. }) => {}
            Some(_) => schedule.complete(done, start.ticket, Nanos(done.0 - now.0)),
            // Requests of connections that were closed cost the others nothing.
            None => schedule.cancel(done, start.ticket),
        }
        self.connections.activate(id.slot);
        if progress.is_some_and(|progress| progress != Progress::Blocked) {
            self.advance(id.slot, done);
        }
    }

    /// Serves the first request of a connection. `None` where the connection is gone.
    fn serve_first(&mut self, id: ConnectionId, start: Dispatch, now: Time) -> Option<Progress> {
        let number = self.service.pending.next_number().unwrap_or_default();
        let connection = self.connections.find(id)?;
        let scheduled = connection.scheduled.take()?;
        self.recent.set(id);
        let Ok(Some(frame)) = connection.reader.peek_frame() else {
            return Some(Progress::Done);
        };
        let header = frame.header;
        let client = match (scheduled, connection.client) {
            (ScheduledRequest::Pages, Some(client)) => client,
            (scheduled, _) => {
                connection.take_frame();
                self.serve_without_pages(id.slot, &header, scheduled);
                return Some(Progress::Done);
            }
        };
        let progress = match header.kind {
            // Its place may have been taken since it was admitted.
            _ if !self.service.pending.has_room() => Ok(Progress::Blocked),
            Kind::Read => self
                .service
                .read(client, &header, number, &mut connection.writer),
            Kind::Write => self.service.write(client, &header, frame.body, number),
            _ => self
                .service
                .discard(client, &header)
                .map(|()| Progress::Done),
        };
        if let Ok(Progress::Blocked) = progress {
            connection.is_blocked = true;
            return Some(Progress::Blocked);
        }
        connection.take_frame();
        let request = PendingRequest {
            connection: id,
            client,
            header,
            ticket: start.ticket,
            started: now,
            arrived: connection.arrived,
            outstanding: 0,
            has_failed: false,
        };
        let Ok(Progress::Waits { started }) = progress else {
            self.reply(&request, progress.map(drop));
            return Some(Progress::Done);
        };
        if header.kind == Kind::Write {
            self.reply(&request, Ok(()));
        } else {
            connection.add_pending(PageService::reply_body(&header));
        }
        self.service.pending.insert(PendingRequest {
            outstanding: started,
            ..request
        });
        progress.ok()
    }

    /// Sends the reply of a request: the acknowledgement, the refusal, or nothing where it read pages,
    /// which are in the reply already.
    pub(crate) fn reply(&mut self, request: &PendingRequest, served: Result<(), Refusal>) {
        let header = &request.header;
        let done = self.now().0;
        if let Some(record) = self.clients.get_mut(request.client.host) {
            let moved = matches!(header.kind, Kind::Read | Kind::Write);
            record.pages_moved += u64::from(header.pages) * u64::from(moved);
            let time = done.saturating_sub(request.arrived);
            record.times.add(Duration::from_nanos(time));
        }
        if let Err(why) = &served {
            self.refuse(request.connection.slot, header, why);
            return;
        }
        let kind = match header.kind {
            Kind::Write => Kind::WriteReply,
            Kind::Discard => Kind::DiscardReply,
            _ => return,
        };
        if let Some(connection) = self.connections.find(request.connection) {
            // There is room: a request enters the schedule only then.
            let _ = connection.writer.push(&header.reply(kind), &[]);
        }
    }

    /// Writes the replies of a connection and decides when it is looked at again.
    fn finish(&mut self, slot: u32) {
        let now = self.service.issuer.now();
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        connection.is_queued = false;
        let queued = connection.writer.queued();
        if let Err(why) = connection.flush(now) {
            return self.close(slot, Some(&why));
        }
        let has_left = connection.writer.queued() < queued;
        if connection.has_unread_input() {
            if let Err(why) = connection.fill() {
                return self.close(slot, Some(&why));
            }
            connection.has_more = true;
        }
        // Replies that left may have made the room that the next request waits for.
        let is_due = std::mem::take(&mut connection.has_more) || has_left;
        let has_request =
            connection.scheduled.is_none() && !matches!(connection.reader.peek_frame(), Ok(None));
        if is_due && has_request {
            self.connections.activate(slot);
        } else if connection.is_ended
            && !has_request
            && connection.scheduled.is_none()
            && connection.pending == 0
        {
            // What it had requested is served; replies that it has not read are lost with it.
            return self.close(slot, None);
        }
        self.update_interest(slot);
    }
}
