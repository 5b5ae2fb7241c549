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
            // The word of the broker is the client's first contact where the client comes from a broker. It ends no
            // permits of another life of the client: the client's own greeting does, by its key.
            let issued = issuer.capacity().check_holder(epoch);
            let issued = issued.and_then(|()| issuer.on_broker_contact(request.id.client));
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
            tracing::debug!("a broker's request is refused: {why}");
            match why {
                AllocateError::Pages { .. } => ServerAnswer::Refused,
                _ => ServerAnswer::Unable,
            }
        }
    };
    HostMessage::Answer {
        request,
        answer,
        sealed: outcome.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::atropos::DiskContract;
    use disk::time::Nanos;
    use remote_policy::identity::Incarnation;
    use remote_server::{MAX_CONNECTIONS, Server, ServerConfig};
    use remote_wire::Link;
    use std::time::Duration;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn incarnation(host: u64, boot: u128) -> Incarnation {
        Incarnation::new(HostId(host), boot, 1)
    }

    fn server() -> Server {
        Server::start(ServerConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            server: incarnation(1000, 1),
            name: "server".to_owned(),
            ram: 64 << 12,
            disk: None,
            capacity: ServerConfig::default_capacity(),
            host: None,
            most_connections: MAX_CONNECTIONS,
            patience: Duration::from_secs(5),
            acceptor: Box::new(Link::plain),
        })
        .unwrap()
    }

    fn epoch() -> Epoch {
        let broker = incarnation(1, 1);
        Epoch { number: 2, broker }
    }

    /// A paging server that is granted to an epoch, and its answers.
    fn held_by(epoch: Epoch) -> (Server, PagingServer, UnboundedReceiver<Event>) {
        let server = server();
        let (events, answers) = unbounded_channel();
        let paging = PagingServer::new(server.handle(), events);
        paging.grant_to(epoch);
        (server, paging, answers)
    }

    fn request(boot: u128, number: u64) -> PermitRequest {
        let client = incarnation(7, boot);
        PermitRequest {
            id: RequestId { client, number },
            object: None,
            pages: 8,
            qos: DiskContract::new(Nanos::millis(10), Nanos::millis(100)),
        }
    }

    fn answer(answers: &mut UnboundedReceiver<Event>) -> ServerAnswer {
        loop {
            match answers.blocking_recv() {
                Some(Event::FromServer {
                    message: HostMessage::Answer { answer, .. },
                    ..
                }) => return answer,
                Some(_) => {}
                None => panic!("the server has ended"),
            }
        }
    }

    #[test]
    fn a_host_that_is_not_the_broker_ends_no_clients_permits() {
        let (_server, paging, mut answers) = held_by(epoch());
        let (broker, epoch) = (epoch().broker, epoch());
        paging.allocate(broker.host, epoch, request(1, 1));
        assert!(matches!(answer(&mut answers), ServerAnswer::Permit { .. }));
        for number in [0, 2, 9] {
            let broker = incarnation(2, 1);
            let other = Epoch { number, broker };
            paging.allocate(broker.host, other, request(2, 1));
            let refused = answer(&mut answers);
            assert!(matches!(refused, ServerAnswer::WrongEpoch { held } if held == epoch));
        }
        paging.allocate(broker.host, epoch, request(1, 2));
        assert!(matches!(answer(&mut answers), ServerAnswer::Permit { .. }));
    }

    #[test]
    fn a_brokers_word_begins_no_other_life_of_a_client_that_has_permits() {
        let (_server, paging, mut answers) = held_by(epoch());
        let (broker, epoch) = (epoch().broker, epoch());
        paging.allocate(broker.host, epoch, request(1, 1));
        assert!(matches!(answer(&mut answers), ServerAnswer::Permit { .. }));
        paging.allocate(broker.host, epoch, request(2, 1));
        assert_eq!(answer(&mut answers), ServerAnswer::Unable);
        paging.allocate(broker.host, epoch, request(1, 2));
        assert!(matches!(answer(&mut answers), ServerAnswer::Permit { .. }));
    }
}
