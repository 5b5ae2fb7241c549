//! Serves control requests: names, permits, objects, state.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 3.2 to 3.5. Rule: a permit is used by
//! the incarnation that it was issued to, on connections on which it was presented. A client is the key
//! with which it first named itself: no other host takes its name, and so its permits.

use crate::clients::{ClientRecord, ClientTable};
use crate::connection::Connection;
use crate::objects::PagingObject;
use crate::page_service::PageService;
use crate::refusal::Refusal;
use remote_policy::capacity::{AllocateError, ObjectError, PermitRequest};
use remote_policy::identity::{Generation, Incarnation, ObjectId, RequestId};
use remote_policy::permit::PermitId;
use remote_wire::control::{
    self, ClientStatus, ControlReply, ControlRequest, SealedPermit, ServerStatus, short_name,
};
use remote_wire::identity::is_id_of_key;
use remote_wire::{Header, Kind, Status};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most clients in a status: as many as fit a frame with their objects.
const MAX_LISTED: usize = 64;
/// Most objects of a client in a status.
const MAX_LISTED_OBJECTS: usize = 48;

/// What control requests reach.
pub(crate) struct Controller<'a> {
    pub service: &'a mut PageService,
    pub clients: &'a mut ClientTable,
    pub server: Incarnation,
    pub name: &'a str,
    pub lease: Duration,
}

impl Controller<'_> {
    /// Serves a request and puts its reply into the connection's writer, which has room for the largest.
    ///
    /// # Errors
    /// The error reply.
    pub fn reply(
        &mut self,
        connection: &mut Connection,
        header: &Header,
        request: ControlRequest,
    ) -> Result<(), Refusal> {
        let reply = self.serve(connection, request)?;
        let body = control::encode(&reply)
            .map_err(|_| Refusal::new(Status::Busy, "the reply is too long for a frame"))?;
        let head = header.reply(Kind::ControlReply);
        let _ = connection.writer.push(&head, &body);
        Ok(())
    }

    fn serve(
        &mut self,
        connection: &mut Connection,
        request: ControlRequest,
    ) -> Result<ControlReply, Refusal> {
        if let ControlRequest::Hello { client, name } = request {
            return self.hello(connection, client, &name);
        }
        if let ControlRequest::Status = request {
            return Ok(ControlReply::Status(self.status()));
        }
        let client = connection.client.ok_or_else(|| {
            Refusal::new(
                Status::Invalid,
                "the first request of a connection is Hello",
            )
        })?;
        self.service.issuer.on_contact(client)?;
        match request {
            ControlRequest::Allocate {
                request,
                pages,
                object,
                qos,
            } => {
                check_own(client, request)?;
                let epoch = self.service.issuer.capacity().epoch();
                let request = PermitRequest {
                    id: request,
                    object,
                    pages,
                    qos,
                };
                let permit = self.service.issuer.allocate(epoch, &request)?;
                Ok(ControlReply::Permit(permit))
            }
            ControlRequest::Reallocate { permit, pages } => self.reallocate(client, permit, pages),
            ControlRequest::Present(sealed) => self.present(connection, client, &sealed),
            ControlRequest::Create {
                object,
                permit,
                pages,
                generation,
            } => {
                if !connection.presented.contains(&permit) {
                    return Err(not_presented(permit));
                }
                self.create(object, permit, pages, generation)
            }
            ControlRequest::Terminate { object, before } => {
                // One that is gone is terminated; another client's is not there for this one.
                let there = self.service.object(client, object);
                if there.is_ok_and(|(_, there)| there.generation < before) {
                    self.service.terminate(object);
                }
                Ok(ControlReply::Done)
            }
            ControlRequest::Release(permit) => {
                self.own_permit(client, permit)?;
                self.service.issuer.release(permit);
                Ok(ControlReply::Done)
            }
            ControlRequest::Renew => {
                // A notice that found no connection, or no room in it, is lost.
                (self.service.issuer).repeat_revocations(&connection.presented);
                Ok(ControlReply::Done)
            }
            _ => Ok(ControlReply::Done),
        }
    }

    fn hello(
        &mut self,
        connection: &mut Connection,
        client: Incarnation,
        name: &str,
    ) -> Result<ControlReply, Refusal> {
        if connection.client.is_some_and(|known| known != client) {
            let text = "this connection is another client's: open one for each client";
            return Err(Refusal::new(Status::Invalid, text));
        }
        let key = connection.link.peer_key();
        // Before it is taken for a later life of that client, which would end the permits.
        if !is_id_of_key(client.host, key) || self.clients.is_anothers(client.host, key) {
            let text = format!("{} is the id of a host with another key", client.host);
            return Err(Refusal::new(Status::NoPermit, text));
        }
        self.service.issuer.on_contact(client)?;
        connection.client = Some(client);
        self.clients.on_hello(client, short_name(name), key);
        let capacity = self.service.issuer.capacity();
        Ok(ControlReply::Welcome {
            server: self.server,
            name: self.name.to_owned(),
            epoch: capacity.epoch(),
            lendable_pages: capacity.lendable_pages(),
            lease: self.lease,
        })
    }

    fn reallocate(
        &mut self,
        client: Incarnation,
        permit: PermitId,
        pages: u64,
    ) -> Result<ControlReply, Refusal> {
        let epoch = self.service.issuer.capacity().epoch();
        // The client's own broker of this server is the server: each request is a new one.
        let number = self.service.issuer.next_reallocation();
        let request = RequestId { client, number };
        let rewritten = self
            .service
            .issuer
            .reallocate(epoch, request, permit, pages)?;
        Ok(ControlReply::Permit(rewritten))
    }

    fn present(
        &mut self,
        connection: &mut Connection,
        client: Incarnation,
        sealed: &SealedPermit,
    ) -> Result<ControlReply, Refusal> {
        let id = sealed.permit.id;
        if !self.service.issuer.is_sealed(sealed) {
            let text = format!("{id} is not one that this server issued since it started");
            return Err(Refusal::new(Status::NoPermit, text));
        }
        self.own_permit(client, id)?;
        self.service.issuer.capacity_mut().on_presented(id);
        connection.presented.insert(id);
        let permit = self.service.issuer.permit(id);
        // It may have shrunk while its client was away, and the notice of it is lost.
        Ok(match permit.filter(|permit| *permit != sealed.permit) {
            Some(permit) => ControlReply::Permit(self.service.issuer.seal(permit)),
            None => ControlReply::Done,
        })
    }

    fn create(
        &mut self,
        id: ObjectId,
        permit: PermitId,
        pages: u64,
        generation: Generation,
    ) -> Result<ControlReply, Refusal> {
        let now = self.service.issuer.now();
        self.service.issuer.capacity_mut().create(permit, id, now)?;
        if let Some(slot) = self.service.objects.find(id) {
            let there = self
                .service
                .objects
                .get(slot)
                .map(|object| object.generation);
            return match there == Some(generation) {
                true => Ok(ControlReply::Done),
                false => Err(Refusal::new(
                    Status::Generation,
                    format!("{id} is here in another generation than {}", generation.0),
                )),
            };
        }
        let object = PagingObject {
            id,
            permit,
            pages,
            generation,
            written: 0,
        };
        let added = self.service.objects.insert(object);
        if added.is_err() {
            self.service.issuer.capacity_mut().terminate(id);
        }
        added.map(|()| ControlReply::Done)
    }

    fn own_permit(&self, client: Incarnation, id: PermitId) -> Result<(), Refusal> {
        let permit = self.service.issuer.permit(id);
        let permit = permit.ok_or(ObjectError::NoPermit(id))?;
        match permit.client == client {
            true => Ok(()),
            false => Err(AllocateError::NoPermit(id).into()),
        }
    }

    fn status(&self) -> ServerStatus {
        let capacity = self.service.issuer.capacity();
        ServerStatus {
            server: self.server,
            name: self.name.to_owned(),
            epoch: capacity.epoch(),
            owned_pages: capacity.owned_pages(),
            granted_pages: capacity.granted_pages(),
            used_pages: self.service.memory.used().into(),
            clients: self.client_statuses(),
        }
    }

    fn client_statuses(&self) -> Vec<ClientStatus> {
        let listed = self.clients.iter().take(MAX_LISTED);
        let status = |record: &ClientRecord| ClientStatus {
            client: record.client,
            name: record.name.clone(),
            granted_pages: 0,
            objects: Vec::new(),
            pages_moved: record.pages_moved,
            service: [record.times.at_most(50), record.times.at_most(99)],
        };
        let mut statuses: BTreeMap<_, _> = listed
            .map(|record| (record.client.host, status(record)))
            .collect();
        // There may be thousands of each: one pass over all of them.
        for permit in self.service.issuer.permits() {
            match statuses.get_mut(&permit.client.host) {
                Some(status) if status.client == permit.client => {
                    status.granted_pages += permit.granted_pages;
                }
                _ => {}
            }
        }
        for object in self.service.objects.iter() {
            match statuses.get_mut(&object.id.client) {
                Some(status) if status.objects.len() < MAX_LISTED_OBJECTS => {
                    status.objects.push((object.id, object.written));
                }
                _ => {}
            }
        }
        statuses.into_values().collect()
    }
}

fn check_own(client: Incarnation, request: RequestId) -> Result<(), Refusal> {
    match request.client == client {
        true => Ok(()),
        false => {
            let text = format!(
                "the request is {}'s, the connection {client}'s",
                request.client
            );
            Err(Refusal::new(Status::Invalid, text))
        }
    }
}

fn not_presented(permit: PermitId) -> Refusal {
    let text = format!("{permit} was not presented on this connection");
    Refusal::new(Status::NoPermit, text)
}
