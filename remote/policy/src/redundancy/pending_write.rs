//! When a write counts as acknowledged.
//!
//! Rule: when every server that holds a copy has it, and at least as many as the policy asks for.
//! A server that does not answer is removed from the copies before the write is acknowledged
//! without it, so any copy that can be read has every acknowledged write.

use crate::identity::HostId;
use std::collections::BTreeSet;

/// A write on its way to all copies of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingWrite {
    copies: BTreeSet<HostId>,
    arrived: BTreeSet<HostId>,
    least: usize,
}

/// What has become of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteState {
    /// Some copy's server has not answered, or too few copies are left.
    Pending,
    /// It is acknowledged.
    Acknowledged,
    /// No copy is left: the page is to be written elsewhere.
    Failed,
}

impl PendingWrite {
    /// A write to the servers that hold a copy now. It is acknowledged by at least `least` of
    /// them: with 1 a client goes on while a lost copy is rebuilt, with the number of replicas it
    /// waits for that.
    pub fn new(copies: BTreeSet<HostId>, least: usize) -> Self {
        Self {
            copies,
            arrived: BTreeSet::new(),
            least: least.max(1),
        }
    }

    /// What has become of it.
    pub fn state(&self) -> WriteState {
        if self.copies.is_empty() {
            WriteState::Failed
        } else if self.arrived == self.copies && self.arrived.len() >= self.least {
            WriteState::Acknowledged
        } else {
            WriteState::Pending
        }
    }

    /// The servers that it has to be sent to.
    pub fn missing(&self) -> impl Iterator<Item = HostId> + '_ {
        self.copies.difference(&self.arrived).copied()
    }

    /// A server has the write.
    pub fn on_written(&mut self, server: HostId) -> WriteState {
        if self.copies.contains(&server) {
            self.arrived.insert(server);
        }
        self.state()
    }

    /// A server does not hold a copy any more.
    pub fn on_copy_removed(&mut self, server: HostId) -> WriteState {
        self.copies.remove(&server);
        self.arrived.remove(&server);
        self.state()
    }

    /// A server holds a copy from now on: a rebuilt one, which may lack this write.
    pub fn on_copy_added(&mut self, server: HostId) -> WriteState {
        self.copies.insert(server);
        self.state()
    }
}
