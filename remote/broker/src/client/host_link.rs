//! A client's connection to one host's control port.

use crate::frame::{self, FrameError, MAX_HELLO, MAX_MESSAGE};
use crate::link::{ControlLink, ControlLinks, explain_end, explain_handshake};
use crate::protocol::{Cluster, ClusterStatus, Hello, Reply, Request};
use remote_keys::{HandshakeError, LinkError};
use remote_policy::identity::Incarnation;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// How long one host may take to answer. A broker that is stopped is passed over in it.
pub(super) const ANSWER: Duration = Duration::from_millis(700);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// None is known.
    #[error("no name that was given has an address, and no host on the link answers")]
    NoHost,
    /// No answer in time.
    #[error("it does not answer for {ANSWER:?}")]
    Silent,
    /// An answer to something else.
    #[error("it answers what was not asked")]
    Answer,
    /// The host refuses the request itself.
    #[error("{0}")]
    Invalid(String),
}

impl ClientError {
    /// Returns true if the host refuses this one, since it does not know its key.
    pub fn is_unknown_key(&self) -> bool {
        let Self::Frame(FrameError::Stream(why)) = self else {
            return false;
        };
        let why = why.get_ref();
        let handshake = why.and_then(|why| why.downcast_ref::<HandshakeError>());
        matches!(handshake, Some(HandshakeError::Link(LinkError::NotMember)))
    }
}

impl From<std::io::Error> for ClientError {
    fn from(error: std::io::Error) -> Self {
        Self::Frame(error.into())
    }
}

/// A connection to one host's control port.
pub struct HostLink {
    link: ControlLink,
    has_answered: bool,
}

impl HostLink {
    /// Connects, as a client, or to look.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(
        links: &ControlLinks,
        address: SocketAddr,
        client: Option<Incarnation>,
        name: &str,
    ) -> Result<Self, ClientError> {
        let mut link = links.connect(address).await?;
        let hello = Hello::Client {
            client,
            name: name.to_owned(),
        };
        match frame::write(link.stream(), &hello).await {
            Ok(()) => Ok(Self {
                link,
                has_answered: false,
            }),
            Err(why) => Err(refusal(&mut link, false, why).await),
        }
    }

    /// Sends a request and waits for its reply, for `limit` at most. After an error the connection is of
    /// no use.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn ask(&mut self, request: &Request, limit: Duration) -> Result<Reply, ClientError> {
        let (link, has_answered) = (&mut self.link, self.has_answered);
        let exchange = async {
            if let Err(why) = frame::write(link.stream(), request).await {
                return Err(refusal(link, has_answered, why).await);
            }
            Ok(frame::read(link.stream(), MAX_MESSAGE).await?)
        };
        let outcome = timeout(limit, exchange).await;
        self.has_answered |= matches!(outcome, Ok(Ok(_)));
        match outcome {
            Ok(Ok(Reply::Invalid(why))) => Err(ClientError::Invalid(why)),
            // The host's refusal of this one's key arrives with the first answer.
            Ok(Err(ClientError::Frame(FrameError::Stream(why)))) => {
                Err(explain(&self.link, self.has_answered, why))
            }
            Ok(outcome) => outcome,
            Err(_) => Err(ClientError::Silent),
        }
    }
}

/// Why a host has closed a link: what it sent before is worth more than the failure to write to it.
async fn refusal(link: &mut ControlLink, has_answered: bool, failure: FrameError) -> ClientError {
    let last = frame::read(link.stream(), MAX_HELLO);
    match timeout(ANSWER, last).await {
        Ok(Ok(Reply::Invalid(why))) => ClientError::Invalid(why),
        Ok(Err(FrameError::Stream(why))) => explain(link, has_answered, why),
        _ => failure.into(),
    }
}

fn explain(link: &ControlLink, has_answered: bool, why: std::io::Error) -> ClientError {
    match has_answered || link.key().is_some() {
        true => explain_end(why).into(),
        false => explain_handshake(why).into(),
    }
}

/// The hosts that the one at `address` knows. It is told of `others`.
///
/// # Errors
/// [`ClientError`].
pub async fn find_cluster(
    links: &ControlLinks,
    address: SocketAddr,
    others: &[SocketAddr],
) -> Result<Cluster, ClientError> {
    let others = others.to_vec();
    let ask = async {
        let mut link = HostLink::connect(links, address, None, "").await?;
        link.ask(&Request::FindBroker { others }, ANSWER).await
    };
    match timeout(ANSWER, ask)
        .await
        .map_err(|_| ClientError::Silent)??
    {
        Reply::Cluster(cluster) => Ok(cluster),
        _ => Err(ClientError::Answer),
    }
}

/// The state of everything, as the broker of the host at `address` knows it.
///
/// # Errors
/// [`ClientError`].
pub async fn status(
    links: &ControlLinks,
    address: SocketAddr,
) -> Result<ClusterStatus, ClientError> {
    let first = status_of(links, address).await?;
    let broker = first.cluster.broker().map(|member| member.control);
    match broker {
        Some(broker) if !first.is_broker => Ok(status_of(links, broker).await.unwrap_or(first)),
        _ => Ok(first),
    }
}

async fn status_of(
    links: &ControlLinks,
    address: SocketAddr,
) -> Result<ClusterStatus, ClientError> {
    let mut link = HostLink::connect(links, address, None, "").await?;
    match link.ask(&Request::Status, ANSWER).await? {
        Reply::Status(status) => Ok(status),
        _ => Err(ClientError::Answer),
    }
}
