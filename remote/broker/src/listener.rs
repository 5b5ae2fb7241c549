//! The control port: connections of hosts and of clients.
//!
//! Rule: what a connection can hold is bounded: its number of all, the time until its Hello, the length of
//! each message, one request at a time. A connection that sends what is no message is closed, with a line.

use crate::frame::{self, FrameError, MAX_HELLO, MAX_MESSAGE};
use crate::host::Event;
use crate::link::{self, ControlLink};
use crate::protocol::{Hello, HostMessage, Member, Reply, Request};
use remote_policy::identity::Incarnation;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc::Sender;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Most connections at once: each has a descriptor and a message.
const MAX_CONNECTIONS: usize = 1024;
/// How long a connection may take to introduce itself.
const HELLO: Duration = Duration::from_secs(2);
/// How long a client may send nothing, or leave a reply unread.
const IDLE: Duration = Duration::from_secs(60);
/// How long a request for a permit waits for its server, before the client is left to ask again.
const ANSWER: Duration = Duration::from_secs(2);

/// Accepts connections until the host ends.
pub async fn listen(listener: TcpListener, events: Sender<Event>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match link::accept(&listener).await {
            Ok((link, peer)) => {
                let events = events.clone();
                tokio::spawn(async move {
                    serve(link, peer, events).await;
                    drop(place);
                });
            }
            Err(why) => {
                tracing::warn!("the control port accepts no connection: {why}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(mut link: ControlLink, peer: SocketAddr, events: Sender<Event>) {
    let hello = timeout(HELLO, frame::read(&mut link, MAX_HELLO)).await;
    let served = match hello {
        Ok(Ok(Hello::Host(member))) => serve_host(link, member, events).await,
        Ok(Ok(Hello::Client { client, name })) => serve_client(link, client, name, events).await,
        Ok(Err(why)) => Err(why),
        Err(_) => Ok(()),
    };
    match served {
        Err(FrameError::Stream(why)) => tracing::debug!("{peer}: {why}"),
        Err(why) => tracing::warn!("the control connection of {peer} is closed: {why}"),
        Ok(()) => {}
    }
}

async fn serve_host(
    mut link: ControlLink,
    member: Member,
    events: Sender<Event>,
) -> Result<(), FrameError> {
    let from = member.host();
    if events.send(Event::Introduced(member)).await.is_err() {
        return Ok(());
    }
    loop {
        let message: HostMessage = frame::read(&mut link, MAX_MESSAGE).await?;
        if events
            .send(Event::FromHost { from, message })
            .await
            .is_err()
        {
            return Ok(());
        }
    }
}

async fn serve_client(
    mut link: ControlLink,
    client: Option<Incarnation>,
    name: String,
    events: Sender<Event>,
) -> Result<(), FrameError> {
    let name = remote_wire::control::short_name(&name);
    loop {
        let request = timeout(IDLE, frame::read::<Request>(&mut link, MAX_MESSAGE)).await;
        let Ok(request) = request else {
            return Ok(());
        };
        let (reply, replied) = oneshot::channel();
        let event = Event::FromClient {
            client,
            name: name.clone(),
            request: request?,
            reply,
        };
        if events.send(event).await.is_err() {
            return Ok(());
        }
        let Ok(Ok(reply)) = timeout(ANSWER, replied).await else {
            // The client sees the end of the connection, and asks again.
            return Ok(());
        };
        let is_last = matches!(reply, Reply::Invalid(_));
        match timeout(IDLE, frame::write(&mut link, &reply)).await {
            Ok(written) => written?,
            Err(_) => return Ok(()),
        }
        if is_last {
            return Ok(());
        }
    }
}
