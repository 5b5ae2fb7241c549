//! Carries out what the capacity demands: permits that shrink, move or end.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 2.3 and 3.5.

use crate::connection::ConnectionId;
use crate::connection_table::ConnectionTable;
use crate::page_service::PageService;
use disk::time::Time;
use remote_policy::capacity::{CapacityAction, EndOfPermit};
use remote_policy::identity::{Incarnation, ObjectId};
use remote_policy::permit::Permit;
use remote_wire::control::{self, ServerNotice, VoidCause};
use remote_wire::{Header, Kind};
use std::collections::BTreeSet;

/// Enforces what the capacity demands.
pub(crate) struct Enforcer<'a> {
    pub service: &'a mut PageService,
    pub connections: &'a mut ConnectionTable,
    pub now: Time,
}

impl Enforcer<'_> {
    /// Carries out all demands.
    pub fn carry_out(&mut self) {
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
                CapacityAction::Destroy {
                    permit,
                    objects,
                    cause,
                } => self.destroy(permit, &objects, cause),
            }
        }
    }

    fn destroy(&mut self, permit: Permit, objects: &BTreeSet<ObjectId>, cause: EndOfPermit) {
        for job in self.service.issuer.on_destroyed(permit.id, self.now) {
            let id = ConnectionId::unpack(job.tag);
            if let Some(connection) = self.connections.find(id) {
                connection.scheduled = None;
                connection.has_more = true;
            }
            self.connections.activate(id.slot);
        }
        for object in objects {
            self.service.remove_under(permit.id, *object);
        }
        for connection in self.connections.iter_mut() {
            connection.presented.remove(&permit.id);
        }
        let cause = match cause {
            EndOfPermit::Released => VoidCause::Released,
            EndOfPermit::Restarted => VoidCause::Restarted,
            EndOfPermit::Expired => VoidCause::Expired,
            EndOfPermit::Revoked => VoidCause::Revoked,
        };
        let (id, client, pages) = (permit.id, permit.client, permit.granted_pages);
        let line = format_args!("{id} of {client} for {pages} pages is void: {cause:?}");
        match cause {
            // As often as the client likes, or the end of a program that did what it should.
            VoidCause::Restarted | VoidCause::Released => tracing::debug!("{line}"),
            _ => tracing::info!("{line}"),
        }
        if cause != VoidCause::Released {
            let permit_id = permit.id;
            let notice = ServerNotice::Void {
                permit: permit_id,
                cause,
            };
            self.notify(permit.client, notice);
        }
    }

    /// Sends a notice on every connection of a client that has room for it.
    fn notify(&mut self, client: Incarnation, notice: ServerNotice) {
        let Ok(body) = control::encode(&notice) else {
            return;
        };
        for slot in self.connections.slots() {
            let Some(connection) = self.connections.get_mut(slot) else {
                continue;
            };
            if connection.client == Some(client) && connection.has_room(body.len()) {
                let head = Header::control(Kind::Notice, 0);
                let _ = connection.writer.push(&head, &body);
                self.connections.activate(slot);
            }
        }
    }
}
