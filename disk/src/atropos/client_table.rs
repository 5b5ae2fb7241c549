//! The clients by index, and the sum of what their contracts promise.

use super::client::{Client, ClientId, QueueState};
use super::contract::{AdmissionError, DiskContract, Utilization};
use super::ended::EndedContracts;
use crate::time::Time;
use std::ops::{Index, IndexMut};

/// All clients. The index of a removed client is used again once nothing of it is in flight.
#[derive(Debug, Default)]
pub(super) struct ClientTable {
    clients: Vec<Client>,
    /// Free indices of `clients`.
    unused: Vec<u32>,
    admitted: u32,
    ended: EndedContracts,
}

impl Index<u32> for ClientTable {
    type Output = Client;
    fn index(&self, at: u32) -> &Client {
        &self.clients[at as usize]
    }
}

impl IndexMut<u32> for ClientTable {
    fn index_mut(&mut self, at: u32) -> &mut Client {
        &mut self.clients[at as usize]
    }
}

impl ClientTable {
    /// Adds an idle client, whose first period begins at `begins` or later.
    pub(super) fn insert(&mut self, contract: DiskContract, begins: Time) -> ClientId {
        let number = self.admitted;
        self.admitted += 1;
        let client = Client::new(number, contract, begins);
        let at = match self.unused.pop() {
            Some(at) => {
                self[at] = client;
                at
            }
            None => {
                self.clients.push(client);
                self.clients.len() as u32 - 1
            }
        };
        ClientId { at, number }
    }

    pub(super) fn find(&self, id: ClientId) -> Option<u32> {
        let client = self.clients.get(id.at as usize)?;
        (client.number == id.number && client.place != QueueState::Gone).then_some(id.at)
    }

    pub(super) fn id(&self, at: u32) -> ClientId {
        ClientId {
            at,
            number: self[at].number,
        }
    }

    /// The indices of all clients.
    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        0..self.clients.len() as u32
    }

    /// Ends a client's contract.
    pub(super) fn end(&mut self, now: Time, at: u32) {
        let client = &mut self.clients[at as usize];
        client.place = QueueState::Gone;
        self.ended.enter(now, client);
    }

    /// Frees the index of a removed client once nothing of it is in flight.
    pub(super) fn free_index(&mut self, at: u32) {
        if self[at].in_flight == 0 {
            self.unused.push(at);
        }
    }

    /// Applies changes of idle clients whose periods are over: nothing else does, as no allocation
    /// comes.
    fn renew(&mut self, now: Time) {
        for client in &mut self.clients {
            if client.place == QueueState::Idle && client.deadline <= now {
                client.apply_change(now);
            }
        }
    }

    /// The sum of shares of all clients but one.
    pub(super) fn reserved_but(&self, but: Option<u32>) -> Utilization {
        let there = |(at, client): &(usize, &Client)| {
            client.place != QueueState::Gone && but != Some(*at as u32)
        };
        let clients = self.clients.iter().enumerate().filter(there);
        clients.fold(Utilization::default(), |sum, (_, client)| {
            let next = client
                .next_contract
                .map_or(Utilization::default(), |c| c.share());
            sum + client.share().max(next)
        })
    }

    /// When the contract may begin beside those of all clients but one.
    ///
    /// # Errors
    /// Where they exceed the capacity.
    pub(super) fn room_for(
        &mut self,
        now: Time,
        contract: DiskContract,
        but: Option<u32>,
        capacity: Utilization,
    ) -> Result<Time, AdmissionError> {
        self.renew(now);
        let reserved = self.reserved_but(but);
        let asked = contract.share();
        if reserved + asked <= capacity {
            return Ok(self.ended.free_at(now, asked, capacity - reserved));
        }
        let gone = |client: &&Client| client.place == QueueState::Gone;
        let there = self.clients.len() - self.clients.iter().filter(gone).count();
        Err(AdmissionError::Capacity {
            contract,
            asked,
            reserved,
            capacity,
            clients: there - usize::from(but.is_some()),
        })
    }
}
