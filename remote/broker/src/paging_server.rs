//! The paging server beside a broker: what brokers ask of it, done by its own thread.
//!
//! Rule: nothing here waits for the server. Requests are closures for its thread, which has them in their
//! order, and answers are events for the host.

use crate::host::Event;
use crate::protocol::HostMessage;
use remote_policy::broker::{ReallocationRequest, ServerAnswer};
use remote_policy::capacity::{AllocateError, PermitRequest};
use remote_policy::identity::{Epoch, HostId, RequestId};
use remote_server::{PermitIssuer, ServerHandle};
use remote_wire::control::SealedPermit;
use tokio::sync::mpsc::UnboundedSender;

/// The host's own paging server.
pub struct PagingServer {
    handle: ServerHandle,
    events: UnboundedSender<Event>,
}

impl PagingServer {
    /// Answers go to `events`: one for each request, so that they are as many as were received.
    pub fn new(handle: ServerHandle, events: UnboundedSender<Event>) -> Self {
        Self { handle, events }
    }

    fn answer(
        &self,
        act: impl FnOnce(&mut PermitIssuer) -> Option<(HostId, HostMessage)> + Send + 'static,
    ) {
        let events = self.events.clone();
        self.handle.with_issuer(move |issuer| {
            if let Some((to, message)) = act(issuer) {
                // The host has ended, and the server is about to.
                let _ = events.send(Event::FromServer { to, message });
            }
        });
    }

    /// Grants the server to an epoch. Its broker gets the server's report.
    pub fn grant_to(&self, epoch: Epoch) {
        self.answer(move |issuer| match issuer.capacity_mut().grant_to(epoch) {
            Ok(report) => Some((epoch.broker.host, HostMessage::Report(report))),
            Err(why) => {
                tracing::debug!("{why}");
                None
            }
        });
    }

    /// Sends the server's broker all that the server has.
    pub fn report(&self) {
        self.answer(|issuer| {
            let report = issuer.capacity().report();
            Some((report.update.epoch.broker.host, HostMessage::Report(report)))
        });
    }

    /// Sends the server's broker what has changed.
    pub fn update(&self) {
        self.answer(|issuer| {
            let update = issuer.capacity().update();
            Some((update.epoch.broker.host, HostMessage::Update(update)))
        });
    }

    /// Issues a permit for a broker.
    pub fn allocate(&self, broker: HostId, epoch: Epoch, request: PermitRequest) {
        self.answer(move |issuer| {
            // The broker's word is the client's first contact where the client comes from a broker: a
            // late request of an earlier incarnation is refused all the same.
            let issued = issuer.on_contact(request.id.client);
            let issued = issued.and_then(|()| issuer.allocate(epoch, &request));
            Some((broker, answered(issuer, request.id, issued)))
        });
    }

    /// Rewrites a permit for a broker.
    pub fn reallocate(&self, broker: HostId, epoch: Epoch, request: ReallocationRequest) {
        self.answer(move |issuer| {
            let rewritten = issuer.reallocate(epoch, request.id, request.permit, request.pages);
            Some((broker, answered(issuer, request.id, rewritten)))
        });
    }
}

fn answered(
    issuer: &PermitIssuer,
    request: RequestId,
    outcome: Result<SealedPermit, AllocateError>,
) -> HostMessage {
    let answer = match &outcome {
        Ok(sealed) => ServerAnswer::Permit {
            permit: sealed.permit,
            update: issuer.capacity().update(),
        },
        Err(AllocateError::Epoch(why)) => ServerAnswer::WrongEpoch { held: why.held },
        Err(why) => {
            tracing::info!("a broker's request is refused: {why}");
            ServerAnswer::Refused
        }
    };
    HostMessage::Answer {
        request,
        answer,
        sealed: outcome.ok(),
    }
}
