//! Connections to other hosts: one to each, made when there is something to send.
//!
//! Rule: a message that cannot be sent is dropped, and the sender goes on: the election and the broker repeat
//! what matters. So a host that is stopped or out of reach delays no other one.

use crate::frame;
use crate::link::{self, ControlLink};
use crate::protocol::{Hello, HostMessage, Member};
use remote_policy::identity::HostId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

/// Messages that wait for a host at most.
const QUEUED: usize = 256;
/// How long a message may take to be written.
const WRITE: Duration = Duration::from_millis(1000);

/// The connections of one host.
pub struct Peers {
    own: Member,
    links: BTreeMap<HostId, (SocketAddr, Sender<HostMessage>)>,
}

impl Peers {
    /// No connections.
    pub fn new(own: Member) -> Self {
        let links = BTreeMap::new();
        Self { own, links }
    }

    /// Sends a message to a host at an address.
    pub fn send(&mut self, to: HostId, address: SocketAddr, message: HostMessage) {
        let is_other = |(known, _): &(SocketAddr, Sender<HostMessage>)| *known != address;
        if self.links.get(&to).is_none_or(is_other) {
            let (sender, messages) = channel(QUEUED);
            let hello = Hello::Host(self.own.clone());
            tokio::spawn(carry(address, hello, messages));
            self.links.insert(to, (address, sender));
        }
        if let Some((_, link)) = self.links.get(&to)
            && link.try_send(message).is_err()
        {
            tracing::debug!("{to} takes no more messages");
        }
    }

    /// Ends the connections to hosts that are not known any more.
    pub fn retain(&mut self, is_known: impl Fn(HostId) -> bool) {
        self.links.retain(|host, _| is_known(*host));
    }
}

/// Carries messages to one host.
async fn carry(address: SocketAddr, hello: Hello, mut messages: Receiver<HostMessage>) {
    let mut link: Option<ControlLink> = None;
    while let Some(message) = messages.recv().await {
        // The other side sends nothing: what can be read is its end.
        if link
            .as_ref()
            .is_some_and(|link| link.try_read(&mut [0]).is_ok())
        {
            link = None;
        }
        let write = async {
            let mut open = match link.take() {
                Some(open) => open,
                None => greet(address, &hello).await?,
            };
            frame::write(&mut open, &message).await?;
            Ok::<_, frame::FrameError>(open)
        };
        match timeout(WRITE, write).await {
            Ok(Ok(open)) => link = Some(open),
            Ok(Err(why)) => tracing::debug!("{address}: {why}"),
            Err(_) => tracing::debug!("{address} takes no message for {WRITE:?}"),
        }
    }
}

async fn greet(address: SocketAddr, hello: &Hello) -> Result<ControlLink, frame::FrameError> {
    let mut open = link::connect(address).await?;
    frame::write(&mut open, hello).await?;
    Ok(open)
}
