//! The control requests' part of a turn: their places in the schedule, and their replies.

use crate::connection::ScheduledRequest;
use crate::control_requests::Controller;
use crate::event_loop::EventLoop;
use crate::refusal::Refusal;
use crate::request_cost::job_of_control;
use crate::turn::Advance;
use disk::time::Time;
use remote_wire::control::{self, ControlRequest};
use remote_wire::{Header, Kind, Status};

impl EventLoop {
    /// Puts the first request of a connection, which is a control request, into the schedule.
    pub(crate) fn schedule_control(&mut self, slot: u32, now: Time) -> Advance {
        let Some(connection) = self.connections.get_mut(slot) else {
            return Advance::Wait;
        };
        let request: ControlRequest = match connection.reader.peek_frame() {
            Ok(Some(frame)) => match control::decode(frame.body) {
                Ok(request) => request,
                Err(why) => return Advance::Close(why),
            },
            _ => return Advance::Wait,
        };
        if let Some(client) = connection.client {
            // Whoever waits for its turn is no silent client. One that has lived on is refused then.
            let _ = self.service.issuer.on_contact(client);
        }
        let service = &self.service;
        let entries = match request {
            ControlRequest::Status => service.issuer.count() + service.objects.count(),
            _ => service.issuer.count(),
        };
        let payer = service.issuer.scheduled_control(&connection.presented);
        let request = ScheduledRequest::Control(request);
        self.submit(slot, request, payer, job_of_control(entries), now)
    }

    /// Serves a control request.
    pub(crate) fn serve_control(&mut self, slot: u32, header: &Header, request: ControlRequest) {
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
        let reply = controller.serve(connection, request);
        let encoded = reply.and_then(|reply| {
            control::encode(&reply)
                .map_err(|_| Refusal::new(Status::Busy, "the reply is too long for a frame"))
        });
        match encoded {
            Ok(body) => {
                let head = header.reply(Kind::ControlReply);
                // There is room: it was checked for the largest.
                let _ = connection.writer.push(&head, &body);
            }
            Err(why) => self.refuse(slot, header, &why),
        }
    }
}
