//! Connections to other hosts: one to each, made when there is something to send.
//!
//! Rule: a message that cannot be sent is dropped, and the sender goes on: the election and the broker repeat
//! what matters. So a host that is stopped or out of reach delays no other one, and receives later what the
//! connection's buffers held alone, whose epochs and serial numbers show its age. A connection that ends, and a
//! kernel that refuses the next one, say that the host's process has ended; silence says so after some time.

use crate::frame::{self, FrameError};
use crate::host::Event;
use crate::link::{ControlLink, ControlLinks};
use crate::protocol::{Hello, HostMessage, Member};
use remote_policy::identity::HostId;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedSender, channel};
use tokio::time::{Instant, timeout};

/// Messages that wait for a host at most.
const QUEUED: usize = 256;
/// How long a message may take to be written, and how old one may be.
const WRITE: Duration = Duration::from_millis(1000);
/// A link that has lasted so long is made again as soon as it ends. A host that closes links sooner, at its bound of
/// connections or for another version of messages, would be greeted without end.
const SETTLED: Duration = Duration::from_millis(500);

/// A message, and since when it waits.
type Queued = (Instant, HostMessage);

/// The connections of one host.
pub struct Peers {
    own: Member,
    via: ControlLinks,
    events: UnboundedSender<Event>,
    links: BTreeMap<HostId, (SocketAddr, Sender<Queued>)>,
}

impl Peers {
    /// No connections.
    pub fn new(own: Member, via: ControlLinks, events: UnboundedSender<Event>) -> Self {
        let links = BTreeMap::new();
        Self {
            own,
            via,
            events,
            links,
        }
    }

    /// This host is reached at other addresses now: it introduces itself anew.
    pub fn set_own(&mut self, own: Member) {
        self.own = own;
        self.links.clear();
    }

    /// Sends a message to a host at an address.
    pub fn send(&mut self, to: HostId, address: SocketAddr, message: HostMessage) {
        let is_other = |(known, _): &(SocketAddr, Sender<Queued>)| *known != address;
        if self.links.get(&to).is_none_or(is_other) {
            let (sender, messages) = channel(QUEUED);
            let carrier = Carrier {
                host: to,
                address,
                hello: Hello::Host(self.own.clone()),
                via: self.via.clone(),
                events: self.events.clone(),
            };
            tokio::spawn(carrier.run(messages));
            self.links.insert(to, (address, sender));
        }
        if let Some((_, link)) = self.links.get(&to)
            && link.try_send((Instant::now(), message)).is_err()
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
struct Carrier {
    host: HostId,
    address: SocketAddr,
    hello: Hello,
    via: ControlLinks,
    events: UnboundedSender<Event>,
}

impl Carrier {
    async fn run(self, mut messages: Receiver<Queued>) {
        let mut link: Option<ControlLink> = None;
        let mut opened = Instant::now();
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Some((since, message)) if since.elapsed() < WRITE => {
                        if link.is_none() {
                            opened = Instant::now();
                        }
                        link = self.send(link, &message).await;
                        if link.is_none() {
                            while messages.try_recv().is_ok() {}
                        }
                    }
                    Some(_) => {}
                    None => return,
                },
                () = ended(&mut link), if link.is_some() => {
                    let was_served = opened.elapsed() >= SETTLED;
                    opened = Instant::now();
                    link = match was_served {
                        // A refusal says that the host's process has ended, too.
                        true => self.in_time(self.greet()).await,
                        // The next message makes another.
                        false => None,
                    };
                }
            }
        }
    }

    /// Sends a message. Returns the link, if it is of use still.
    async fn send(&self, link: Option<ControlLink>, message: &HostMessage) -> Option<ControlLink> {
        let write = async {
            let mut open = match link {
                Some(open) => open,
                None => self.greet().await?,
            };
            frame::write(open.stream(), message).await?;
            Ok::<_, FrameError>(open)
        };
        self.in_time(write).await
    }

    fn on_error(&self, why: &FrameError) {
        tracing::debug!("{}: {why}", self.address);
        if matches!(why, FrameError::Stream(why) if why.kind() == ErrorKind::ConnectionRefused) {
            // The host's task ends before the way to it does.
            let _ = self.events.send(Event::Ended(self.host));
        }
    }

    /// The link that `use_link` makes or writes to, unless that fails or takes longer than a message may.
    async fn in_time(
        &self,
        use_link: impl Future<Output = Result<ControlLink, FrameError>>,
    ) -> Option<ControlLink> {
        match timeout(WRITE, use_link).await {
            Ok(Ok(open)) => Some(open),
            Ok(Err(why)) => {
                self.on_error(&why);
                None
            }
            Err(_) => {
                tracing::debug!("{} takes no message for {WRITE:?}", self.address);
                None
            }
        }
    }

    async fn greet(&self) -> Result<ControlLink, FrameError> {
        let mut open = self.via.connect(self.address).await?;
        frame::write(open.stream(), &self.hello).await?;
        Ok(open)
    }
}

/// Returns when a link has ended: the other side sends nothing, so what can be read is its end.
async fn ended(link: &mut Option<ControlLink>) {
    if let Some(link) = link {
        let _ = link.stream().read_u8().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_member::{member_at, runtime};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc::unbounded_channel;

    #[test]
    fn a_host_that_closes_each_link_is_greeted_once_a_message() {
        const MESSAGES: u32 = 3;
        runtime().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (events, _events) = unbounded_channel();
            let own = member_at(1, address);
            let mut peers = Peers::new(own, ControlLinks::in_clear(), events);
            let mut greetings = 0;
            for _ in 0..MESSAGES {
                peers.send(HostId(2), address, HostMessage::RequestReport);
                while greetings <= MESSAGES
                    && let Ok(link) = timeout(SETTLED / 2, listener.accept()).await
                {
                    let (mut link, _) = link.unwrap();
                    // The greeting, and the message behind it.
                    for _ in 0..2 {
                        let _ = timeout(SETTLED / 20, link.read(&mut [0; 1024])).await;
                    }
                    greetings += 1;
                }
            }
            assert!((1..=MESSAGES).contains(&greetings), "{greetings}");
        });
    }
}
