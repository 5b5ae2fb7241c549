//! All connections of a server, and those to look at in a turn.

use crate::connection::{Connection, ConnectionId};
use remote_keys::MemberList;
use remote_wire::{Link, network_of};
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

/// Most connections of a server that has the memory for them.
pub const MAX_CONNECTIONS: usize = 256;
/// The part of the connections that one address has, so that no host keeps others out, and what it has at least: its
/// programs have one each.
const ADDRESS_PART: usize = 4;
const LEAST_OF_ADDRESS: usize = 8;

/// The connections, each in a slot.
pub(crate) struct ConnectionTable {
    most: usize,
    slots: Vec<Option<Connection>>,
    stamp: u32,
    /// Those to look at.
    active: Vec<u32>,
    /// Those of the last turn, so that its memory is used again.
    spare: Vec<u32>,
}

impl ConnectionTable {
    /// No connections, of `most`.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.min(MAX_CONNECTIONS),
            slots: Vec::with_capacity(MAX_CONNECTIONS),
            stamp: 0,
            active: Vec::with_capacity(MAX_CONNECTIONS),
            spare: Vec::with_capacity(MAX_CONNECTIONS),
        }
    }

    /// Checks that there may be another connection of an address.
    pub fn check_room(&self, address: IpAddr) -> io::Result<()> {
        let open = || self.slots.iter().flatten();
        if open().count() >= self.most {
            let text = format!("{} are open, the most that this server has", self.most);
            return Err(io::Error::other(text));
        }
        let network = |connection: &&Connection| network_of(connection.link.peer_address().ip());
        let own = open().filter(|connection| network(connection) == network_of(address));
        let of_address = (self.most / ADDRESS_PART).max(LEAST_OF_ADDRESS);
        if own.count() >= of_address {
            let text = format!("{address} has {of_address}, the most of one address");
            return Err(io::Error::other(text));
        }
        Ok(())
    }

    /// Adds a connection.
    pub fn add(&mut self, link: Link, now: Duration) -> io::Result<&mut Connection> {
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.slots.len());
        self.stamp = self.stamp.wrapping_add(1) & (u32::MAX >> 1);
        let id = ConnectionId {
            slot: slot as u32,
            stamp: self.stamp,
        };
        let connection = Connection::new(id, link, now)?;
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        Ok(self.slots[slot].insert(connection))
    }

    /// The connection in a slot.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// A connection, unless it was closed.
    pub fn find(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.get_mut(id.slot)
            .filter(|connection| connection.id == id)
    }

    /// Removes the connection in a slot.
    pub fn remove(&mut self, slot: u32) -> Option<Connection> {
        self.slots.get_mut(slot as usize)?.take()
    }

    /// The slots of links with keys that are no members'.
    pub fn of_no_member(&self, members: &MemberList) -> Vec<u32> {
        let is_removed = |it: &&Connection| {
            let key = it.link.peer_key();
            key.is_some_and(|key| !members.is_member(&key))
        };
        let removed = self.iter().filter(is_removed);
        removed.map(|it| it.id.slot).collect()
    }

    /// The slots that connections may be in.
    pub fn slots(&self) -> Range<u32> {
        0..self.slots.len() as u32
    }

    /// All connections.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().flatten()
    }

    /// All connections.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.slots.iter_mut().flatten()
    }

    /// Has the connection in a slot looked at in this turn, or the next one.
    pub fn activate(&mut self, slot: u32) {
        if let Some(connection) = self.get_mut(slot)
            && !connection.is_queued
        {
            connection.is_queued = true;
            self.active.push(slot);
        }
    }

    /// The connections to look at, in the order in which they became so.
    pub fn active(&self) -> &[u32] {
        &self.active
    }

    /// Ends a turn: returns those that were looked at, for [`ConnectionTable::put_back`]. Others may become active meanwhile.
    pub fn take_active(&mut self) -> Vec<u32> {
        std::mem::replace(&mut self.active, std::mem::take(&mut self.spare))
    }

    /// Returns the memory of [`ConnectionTable::take_active`].
    pub fn put_back(&mut self, mut slots: Vec<u32>) {
        slots.clear();
        self.spare = slots;
    }
}
