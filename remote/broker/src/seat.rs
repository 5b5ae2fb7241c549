//! The seat of the broker: what decides which host has it.
//!
//! Rule: a seat decides and does nothing else: what it decides comes out as the election's actions, so that
//! a host does the same for each kind of seat. Whatever a seat decides, each server obeys the highest epoch
//! alone; so a seat that is wrong costs refusals, not promises that cannot be kept.

use crate::etcd::{EtcdAddress, EtcdSeat, InvalidEtcdAddress};
use crate::host::Event;
use crate::protocol::Member;
use remote_policy::election::{Candidate, ElectionAction, Message, Role};
use remote_policy::identity::{Epoch, HostId, Incarnation};
use std::io;
use std::str::FromStr;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

/// Decides which host has the broker, together with the seats of the other hosts.
///
/// The tournament needs nothing but the hosts. A seat in a store of others (a lease of etcd or of Kubernetes)
/// learns by `LeaseEvent`s which host holds the lease; the epoch's number is the store's revision.
pub trait Seat: Send {
    /// The other hosts in reach, first those that are the most sure to be there.
    fn on_membership(&mut self, hosts: &[HostId]) -> Vec<ElectionAction>;
    /// A period has passed, in which this host's process had a processor.
    fn on_tick(&mut self) -> Vec<ElectionAction>;
    /// Signs of life are due, and the silence of others counts for nothing.
    fn repeat_signs(&mut self) -> Vec<ElectionAction>;
    /// The process of another host has ended.
    fn on_host_gone(&mut self, host: HostId) -> Vec<ElectionAction>;
    /// A message of another host's seat.
    fn on_message(&mut self, from: HostId, message: Message) -> Vec<ElectionAction>;
    /// The store has another holder of the lease than it had. The tournament has no store.
    fn on_lease(&mut self, event: &LeaseEvent) -> Vec<ElectionAction> {
        let _ = event;
        Vec::new()
    }
    /// The broker that this host's server obeys, or is about to. None where there is none.
    fn broker(&self) -> Option<(HostId, Epoch)>;
    /// Returns true if this host is broker, and has a host's server.
    fn has_server(&self, host: HostId) -> bool;
}

/// News of a lease that decides which host has the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// This host holds it.
    Held {
        /// The epoch's number: the revision of the store at which it was taken, or one above epochs that servers had.
        number: u64,
    },
    /// Another host holds it.
    HeldBy(Member),
}

/// The kind of a host's seat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SeatConfig {
    /// The hosts elect the broker among themselves.
    #[default]
    Tournament,
    /// The host that holds a lease in etcd is broker.
    Etcd(EtcdAddress),
}

/// Text that names no seat.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSeat {
    /// The kind.
    #[error("unknown seat {0:?}: expected tournament or etcd:HOST:PORT[,HOST:PORT...][/KEY]")]
    Kind(String),
    /// The address.
    #[error(transparent)]
    Etcd(#[from] InvalidEtcdAddress),
}

impl FromStr for SeatConfig {
    type Err = InvalidSeat;
    fn from_str(text: &str) -> Result<Self, InvalidSeat> {
        match text.split_once(':') {
            None if text == "tournament" => Ok(Self::Tournament),
            Some(("etcd", address)) => Ok(Self::Etcd(address.parse()?)),
            _ => Err(InvalidSeat::Kind(text.to_owned())),
        }
    }
}

impl SeatConfig {
    /// The seat of a host that has just started, and what it does first. News of its lease goes to `events`.
    ///
    /// # Errors
    /// Where there is no thread for it.
    pub(crate) fn start(
        &self,
        own: &watch::Receiver<Member>,
        events: UnboundedSender<Event>,
    ) -> io::Result<(Box<dyn Seat>, Vec<ElectionAction>)> {
        match self {
            Self::Tournament => {
                let (seat, first) = Tournament::new(own.borrow().server);
                Ok((Box::new(seat), first))
            }
            Self::Etcd(address) => {
                let seat = EtcdSeat::start(address, own.clone(), events)?;
                Ok((Box::new(seat), Vec::new()))
            }
        }
    }
}

/// The tournament of *Adaptive Remote Paging for Mobile Computers*, section 3.5.1.
pub struct Tournament(Candidate);

impl Tournament {
    /// The seat of a host that has just started, and what it does first.
    pub fn new(server: Incarnation) -> (Self, Vec<ElectionAction>) {
        let (candidate, actions) = Candidate::new(server, None);
        (Self(candidate), actions)
    }
}

impl Seat for Tournament {
    fn on_membership(&mut self, hosts: &[HostId]) -> Vec<ElectionAction> {
        self.0.on_membership(hosts.iter().copied());
        Vec::new()
    }

    fn on_tick(&mut self) -> Vec<ElectionAction> {
        self.0.on_tick()
    }

    fn repeat_signs(&mut self) -> Vec<ElectionAction> {
        self.0.repeat_signs()
    }

    fn on_host_gone(&mut self, host: HostId) -> Vec<ElectionAction> {
        self.0.on_host_gone(host)
    }

    fn on_message(&mut self, from: HostId, message: Message) -> Vec<ElectionAction> {
        self.0.on_message(from, message)
    }

    fn broker(&self) -> Option<(HostId, Epoch)> {
        match self.0.role() {
            Role::Broker { epoch, .. } => Some((self.0.host(), *epoch)),
            Role::Follower { broker, .. } => Some((*broker, self.0.held())),
        }
    }

    fn has_server(&self, host: HostId) -> bool {
        matches!(self.0.role(), Role::Broker { servers, .. } if servers.contains_key(&host))
    }
}
