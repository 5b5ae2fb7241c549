//! A seat in etcd: the host that holds a lease there is broker.
//!
//! The policy is [`remote_policy::election::LeasedCandidate`]; here a thread ([`campaign`]) keeps a lease, campaigns
//! for a key and sends news of it as events, by etcd's JSON gateway ([`gateway`]).
//!
//! Rule: nothing waits for etcd but that thread. With etcd gone the broker goes on, and pages go on without
//! either; what waits is the election of another broker.

mod campaign;
mod gateway;

use crate::host::Event;
use crate::protocol::Member;
use crate::seat::{LeaseEvent, Seat};
use campaign::{Campaign, SeatRequest};
use remote_policy::election::{ElectionAction, LeasedAction, LeasedCandidate, Message};
use remote_policy::identity::{Epoch, HostId};
use std::io;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

/// The key of the lease's holder, unless another is configured.
const KEY: &str = "selfpage/broker";

/// Where a cluster's lease is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// HOST:PORT of etcd's members.
    endpoints: Vec<String>,
    /// The key whose holder is broker.
    key: String,
}

/// Text that is no address of etcd.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid address of etcd {0:?}: expected HOST:PORT[,HOST:PORT...][/KEY], as in 10.0.0.1:2379; links to etcd are \
     in the clear"
)]
pub struct InvalidEtcdAddress(String);

impl FromStr for EtcdAddress {
    type Err = InvalidEtcdAddress;
    fn from_str(text: &str) -> Result<Self, InvalidEtcdAddress> {
        let invalid = || InvalidEtcdAddress(text.to_owned());
        let (hosts, key) = text.split_once('/').unwrap_or((text, KEY));
        let is_endpoint = |endpoint: &&str| {
            let parts = endpoint.rsplit_once(':');
            parts.is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        let endpoints: Vec<_> = hosts.split(',').collect();
        if key.is_empty() || key.starts_with('/') || !endpoints.iter().all(is_endpoint) {
            return Err(invalid());
        }
        Ok(Self {
            endpoints: endpoints.into_iter().map(str::to_owned).collect(),
            key: key.to_owned(),
        })
    }
}

/// How long the end of a seat waits for the end of its lease. An etcd that is silent, at each of its endpoints for a second,
/// ends the lease by itself.
const END: Duration = Duration::from_secs(1);

/// The seat, and the thread that campaigns for it. The lease ends with it.
pub struct EtcdSeat {
    candidate: LeasedCandidate,
    commands: Option<Sender<SeatRequest>>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
    /// Hosts with a tournament have been warned of.
    has_warned: bool,
}

impl EtcdSeat {
    /// Starts to campaign. News of the lease goes to `events`.
    ///
    /// # Errors
    /// Where there is no thread for it.
    pub fn start(
        address: &EtcdAddress,
        own: watch::Receiver<Member>,
        events: UnboundedSender<Event>,
    ) -> io::Result<Self> {
        let server = own.borrow().server;
        let (commands, received) = channel();
        let (running, ended) = channel();
        let campaign = Campaign::new(address, own, events);
        std::thread::Builder::new()
            .name("selfpage-etcd".to_owned())
            .spawn(move || {
                let _running = running;
                campaign.run(&received);
            })?;
        Ok(Self {
            candidate: LeasedCandidate::new(server),
            commands: Some(commands),
            ended,
            has_warned: false,
        })
    }

    /// Sends the thread what is for etcd, and returns the rest.
    fn carry_out(&self, actions: Vec<LeasedAction>) -> Vec<ElectionAction> {
        let mut rest = Vec::new();
        for action in actions {
            let command = match action {
                LeasedAction::Election(action) => {
                    rest.push(action);
                    continue;
                }
                LeasedAction::ConfirmAbove(number) => SeatRequest::ConfirmAbove(number),
                LeasedAction::EndLeaseOf(host) => SeatRequest::EndLeaseOf(host),
                LeasedAction::OfferLease => SeatRequest::OfferLease,
            };
            // The thread ends after this.
            let _ = self.commands.as_ref().map(|it| it.send(command));
        }
        rest
    }
}

impl Drop for EtcdSeat {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.ended.recv_timeout(END);
    }
}

impl Seat for EtcdSeat {
    fn on_membership(&mut self, hosts: &[HostId]) -> Vec<ElectionAction> {
        let actions = self.candidate.on_membership(hosts.iter().copied());
        self.carry_out(actions)
    }

    fn on_tick(&mut self) -> Vec<ElectionAction> {
        let actions = self.candidate.on_tick();
        self.carry_out(actions)
    }

    fn repeat_signs(&mut self) -> Vec<ElectionAction> {
        self.carry_out(self.candidate.repeat_signs())
    }

    fn on_host_gone(&mut self, host: HostId) -> Vec<ElectionAction> {
        let actions = self.candidate.on_host_gone(host);
        self.carry_out(actions)
    }

    fn on_message(&mut self, from: HostId, message: Message) -> Vec<ElectionAction> {
        if matches!(message, Message::Bid(_)) && !self.has_warned {
            self.has_warned = true;
            tracing::warn!("{from} elects by a tournament: start it with the --seat of this host");
        }
        let actions = self.candidate.on_message(from, &message);
        self.carry_out(actions)
    }

    fn on_lease(&mut self, event: &LeaseEvent) -> Vec<ElectionAction> {
        let actions = match event {
            LeaseEvent::Held { number } => self.candidate.on_elected(*number),
            LeaseEvent::HeldBy(holder) => self.candidate.on_leader(holder.host()),
        };
        self.carry_out(actions)
    }

    fn broker(&self) -> Option<(HostId, Epoch)> {
        self.candidate.broker()
    }

    fn has_server(&self, host: HostId) -> bool {
        self.candidate.has_server(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_hosts_with_ports_and_a_key() {
        let plain: EtcdAddress = "10.0.0.1:2379".parse().unwrap();
        assert_eq!(plain.endpoints, ["10.0.0.1:2379"]);
        assert_eq!(plain.key, KEY);
        let several: EtcdAddress = "a:1,[::1]:2/b/c".parse().unwrap();
        assert_eq!(several.endpoints, ["a:1", "[::1]:2"]);
        assert_eq!(several.key, "b/c");
        for text in ["", "a", "a:b", "a:1,", "a:1/", "http://a:1", ":1", "a:0"] {
            assert!(text.parse::<EtcdAddress>().is_err(), "{text}");
        }
    }
}
