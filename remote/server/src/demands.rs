//! Carries out what the capacity demands: permits that shrink, move or end.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 2.3 and 3.5.

use crate::connection::ConnectionId;
use crate::event_loop::EventLoop;
use remote_policy::capacity::{CapacityAction, EndOfPermit};
use remote_policy::identity::{Incarnation, ObjectId};
use remote_policy::permit::{Permit, PermitId};
use remote_wire::control::{self, ServerNotice, VoidCause};
use remote_wire::{Header, Kind};

impl EventLoop {
    /// Carries out all demands.
    pub(crate) fn carry_out(&mut self) {
        while let Some(action) = self.service.issuer.next_action() {
            match action {
                CapacityAction::SendRewritten(permit) => {
                    let sealed = self.service.issuer.on_rewritten(permit);
                    self.notify(permit.client, ServerNotice::Rewritten(sealed));
                }
                CapacityAction::RequestAbdicate { client, object } => {
                    self.notify(client, ServerNotice::Abdicate(object));
                }
                CapacityAction::Revoke {
                    permit,
                    keep_pages,
                    by,
                } => {
                    let within = by.saturating_sub(self.service.issuer.now());
                    if let Some(held) = self.service.issuer.permit(permit) {
                        let notice = ServerNotice::Revoke {
                            permit,
                            keep_pages,
                            within,
                        };
                        self.notify(held.client, notice);
                    }
                }
                CapacityAction::Destroy { permit, cause } => self.destroy(permit, cause),
            }
        }
    }

    fn destroy(&mut self, permit: Permit, cause: EndOfPermit) {
        let now = self.now();
        for job in self.service.issuer.on_destroyed(permit.id, now) {
            let id = ConnectionId::unpack(job.tag);
            if let Some(connection) = self.find(id) {
                connection.is_scheduled = false;
                connection.has_more = true;
            }
            self.activate(id.slot);
        }
        for object in self.objects_under(permit.id) {
            self.service.remove(object);
        }
        for connection in self.connections.iter_mut().flatten() {
            connection.presented.remove(&permit.id);
        }
        let cause = match cause {
            EndOfPermit::Released => VoidCause::Released,
            EndOfPermit::Restarted => VoidCause::Restarted,
            EndOfPermit::Expired => VoidCause::Expired,
            EndOfPermit::Revoked => VoidCause::Revoked,
        };
        tracing::info!(
            "{} of {} for {} pages is void: {cause:?}",
            permit.id,
            permit.client,
            permit.granted_pages
        );
        if cause != VoidCause::Released {
            let permit_id = permit.id;
            let notice = ServerNotice::Void {
                permit: permit_id,
                cause,
            };
            self.notify(permit.client, notice);
        }
    }

    fn objects_under(&self, permit: PermitId) -> Vec<ObjectId> {
        let objects = self.service.objects.iter();
        objects
            .filter(|object| object.permit == permit)
            .map(|object| object.id)
            .collect()
    }

    /// Sends a notice on every connection of a client that has room for it.
    fn notify(&mut self, client: Incarnation, notice: ServerNotice) {
        let Ok(body) = control::encode(&notice) else {
            return;
        };
        for slot in 0..self.connections.len() as u32 {
            let Some(connection) = &mut self.connections[slot as usize] else {
                continue;
            };
            if connection.client == Some(client) && connection.has_room(body.len()) {
                let head = Header::control(Kind::Notice, 0);
                let _ = connection.writer.push(&head, &body);
                self.activate(slot);
            }
        }
    }
}
