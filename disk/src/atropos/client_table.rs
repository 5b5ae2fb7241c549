//! The clients by index, and the sum of what their contracts promise.

use super::client::{Client, ClientId, QueueState};
use super::contract::{AdmissionError, DiskContract, Utilization};
use crate::time::Time;
use std::ops::{Index, IndexMut};

/// All clients. The index of a removed client is used again once nothing of it is in flight.
#[derive(Debug, Default)]
pub(super) struct ClientTable {
    clients: Vec<Client>,
    /// Free indices of `clients`.
    unused: Vec<u32>,
    admitted: u32,
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
    /// Adds an idle client.
    pub(super) fn insert(&mut self, contract: DiskContract) -> ClientId {
        let number = self.admitted;
        self.admitted += 1;
        let client = Client::new(number, contract);
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

    /// Frees the index of a removed client once nothing of it is in flight.
    pub(super) fn free_index(&mut self, at: u32) {
        if self[at].in_flight == 0 {
            self.unused.push(at);
        }
    }

    /// Applies changes of idle clients whose periods are over: nothing else does, as no allocation
    /// comes.
    pub(super) fn renew(&mut self, now: Time) {
        for client in &mut self.clients {
            if client.place == QueueState::Idle && client.deadline <= now {
                client.contract = client.next_contract.take().unwrap_or(client.contract);
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

    /// Returns an error if the contract and those of all clients but one exceed the capacity.
    pub(super) fn room_for(
        &self,
        contract: DiskContract,
        but: Option<u32>,
        capacity: Utilization,
    ) -> Result<(), AdmissionError> {
        let reserved = self.reserved_but(but);
        let asked = contract.share();
        if reserved + asked <= capacity {
            return Ok(());
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
