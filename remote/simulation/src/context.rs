//! What a host's handler has beside its own state: the clock, the network, and what is counted.

use crate::audit::Auditor;
use crate::config::Config;
use crate::message::HostMessage;
use crate::network::Network;
use crate::policy_time::PolicyTime;
use crate::queue::EventQueue;
use crate::requests::RequestStats;
use crate::topology::Node;
use remote_policy::identity::{HostId, Incarnation, ObjectId, RequestId};
use std::time::Duration;

/// Something that happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message reaches a host's link.
    Arrive(Node, Node, Box<HostMessage>, u64),
    /// A host has read it.
    Deliver(Node, Node, Box<HostMessage>),
    /// A period of a server's candidate, in a life of it.
    Period(Node, u64),
    /// A client looks at its servers.
    Beat(Node),
    /// A client creates an object.
    NewObject(Node),
    /// A client's wait for an answer is over.
    Patience(Node, RequestId),
    /// A copy has all pages.
    Filled(Node, ObjectId, HostId),
    /// The membership protocol knows of a change.
    Membership,
}

/// What happened to objects and pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageStats {
    pub rebuilt_pages: u64,
    pub rebuilt_objects: u64,
    pub moved_pages: u64,
    pub moved_objects: u64,
    pub kept_moves: u64,
    pub lost_objects: u64,
}

/// The part of the simulation that all hosts share.
pub(crate) struct Context {
    pub config: Config,
    pub now: Duration,
    pub queue: EventQueue<Event>,
    pub network: Network,
    pub rng: fastrand::Rng,
    pub auditor: Auditor,
    pub policy_time: PolicyTime,
    pub requests: RequestStats,
    pub pages: PageStats,
    /// Each server's present life.
    pub incarnations: Vec<Incarnation>,
    /// When a client that moved was served near last.
    pub last_near: Duration,
}

impl Context {
    /// Sends a message.
    pub fn send(&mut self, from: Node, to: Node, message: HostMessage) {
        let bytes = message.wire_bytes();
        let is_resent = message.is_of_link();
        let arrives = self
            .network
            .send(from, to, (bytes, is_resent), self.now, &mut self.rng);
        if let Some(at) = arrives {
            let event = Event::Arrive(from, to, Box::new(message), bytes);
            self.queue.push(at, event);
        }
    }

    /// Sends a message to a host by its id.
    pub fn send_to(&mut self, from: Node, to: HostId, message: HostMessage) {
        let to = self.network.topology.node(to);
        self.send(from, to, message);
    }

    /// A server's present life.
    pub fn incarnation_of(&self, server: HostId) -> Incarnation {
        self.incarnations[self.network.topology.node(server).0]
    }

    /// Enters an event in a while.
    pub fn after(&mut self, wait: Duration, event: Event) {
        self.queue.push(self.now + wait, event);
    }

    /// A random part of a time.
    pub fn part_of(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.rng.f64())
    }
}
