//! First contacts: a host is introduced to the hosts that it was told of, or that answer on the link.
//!
//! Rule: it goes on for ever, since a host that was told of may start later, and two sides of a network that
//! was divided from the start have not heard of each other.

use crate::client::{ClientError, find_cluster};
use crate::discovery;
use crate::frame::FrameError;
use crate::link::ControlLinks;
use crate::protocol::{Cluster, Member};
use crate::resolver::Resolver;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc::Sender, watch};
use tokio::task::JoinSet;

/// The least pause between two rounds, and that while a host is alone, and when it is not.
const LEAST: Duration = Duration::from_millis(200);
const ALONE: Duration = Duration::from_secs(1);
const PEACE: Duration = Duration::from_secs(5);
/// How long answers on the link are waited for.
const ANSWERS: Duration = Duration::from_millis(200);
/// Most addresses that clients name: their oldest are forgotten.
const MAX_NAMED: usize = 32;

/// What a host introduces itself to.
pub struct Introduction {
    /// This host, which needs no introduction.
    pub own: watch::Receiver<Member>,
    /// How it connects.
    pub links: ControlLinks,
    /// Control ports, HOST:PORT.
    pub peers: Vec<String>,
    /// Whether questions are asked on the link.
    pub asks_on_link: bool,
    /// Control ports that clients name.
    pub named: watch::Receiver<Vec<SocketAddr>>,
    /// Control ports of the members.
    pub known: watch::Receiver<BTreeSet<SocketAddr>>,
    /// Where members are announced.
    pub introduced: Sender<Member>,
}

impl Introduction {
    /// Introduces until the host ends.
    pub async fn run(mut self) {
        let mut from_clients: Vec<SocketAddr> = Vec::new();
        let (mut unknown, mut others) = (BTreeSet::new(), BTreeSet::new());
        let mut resolver = Resolver::default();
        loop {
            let mut addresses: BTreeSet<SocketAddr> = from_clients.iter().copied().collect();
            for (peer, found) in resolver.resolve(&self.peers).await {
                match found {
                    Ok(found) => addresses.extend(found),
                    Err(why) if unknown.insert(peer.clone()) => {
                        tracing::warn!(
                            "--peers {peer}: no address is found ({why}); it is looked up again and again"
                        );
                    }
                    Err(_) => {}
                }
            }
            if self.asks_on_link {
                addresses.extend(discovery::find(ANSWERS).await.unwrap_or_default());
            }
            let known = self.known.borrow().clone();
            let own = self.own.borrow().control;
            // All at once: those that a client names may be of no host, and those of the operator do not wait for them.
            let mut asked = JoinSet::new();
            for address in addresses.difference(&known).copied() {
                let links = self.links.clone();
                if address != own {
                    asked.spawn(async move { (address, find_cluster(&links, address, &[]).await) });
                }
            }
            while let Some(answer) = asked.join_next().await {
                let Ok((address, answer)) = answer else {
                    continue;
                };
                if self.introduce(address, answer, &mut others).await.is_err() {
                    return;
                }
            }
            let pause = match known.is_empty() {
                true => ALONE,
                false => PEACE,
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = self.named.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    from_clients.extend(self.named.borrow_and_update().iter().take(MAX_NAMED));
                    // A client may name others again and again.
                    tokio::time::sleep(LEAST).await;
                    let excess = from_clients.len().saturating_sub(MAX_NAMED);
                    from_clients.drain(..excess);
                }
            }
        }
    }

    /// Announces the hosts that one knows. `Err` if the host has ended. A line says once of each of `others` that it runs another version.
    async fn introduce(
        &self,
        address: SocketAddr,
        answer: Result<Cluster, ClientError>,
        others: &mut BTreeSet<SocketAddr>,
    ) -> Result<(), ()> {
        let cluster = match answer {
            Ok(cluster) => cluster,
            Err(why) => {
                let is_other = matches!(why, ClientError::Frame(FrameError::Version(_)));
                match is_other && others.len() < MAX_NAMED && others.insert(address) {
                    true => tracing::warn!("the host at {address} is left out: {why}"),
                    false => tracing::debug!("{address}: {why}"),
                }
                return Ok(());
            }
        };
        let known = self.known.borrow().clone();
        let own = self.own.borrow().host();
        for member in cluster.members {
            if member.host() != own && !known.contains(&member.control) {
                self.introduced.send(member).await.map_err(drop)?;
            }
        }
        Ok(())
    }
}
