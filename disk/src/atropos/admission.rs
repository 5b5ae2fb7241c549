//! Admission, change and removal of clients' contracts.

use super::client::{Client, ClientId, ClientState, QueueState};
use super::contract::{AdmissionError, DiskContract, Utilization};
use super::{Atropos, TransactionDesc};
use crate::time::Time;
use crate::trace::Trace;

impl<T: Trace> Atropos<T> {
    /// Admits a contract. The client is idle until its first transaction arrives.
    pub fn admit(&mut self, contract: DiskContract) -> Result<ClientId, AdmissionError> {
        contract.check()?;
        self.room_for(contract, None)?;
        let number = self.admitted;
        self.admitted += 1;
        let client = Client::new(number, contract);
        let at = match self.unused.pop() {
            Some(at) => {
                self.clients[at as usize] = client;
                at
            }
            None => {
                self.clients.push(client);
                self.clients.len() as u32 - 1
            }
        };
        Ok(ClientId { at, number })
    }

    /// Replaces a client's contract from its next period on. Until then the greater of the two
    /// counts as reserved.
    pub fn change(
        &mut self,
        now: Time,
        id: ClientId,
        contract: DiskContract,
    ) -> Result<(), AdmissionError> {
        contract.check()?;
        let at = self.find(id).ok_or(AdmissionError::Gone)?;
        self.renew(now);
        self.room_for(contract, Some(at))?;
        let client = &mut self.clients[at as usize];
        client.next_contract = Some(contract);
        if client.place == QueueState::Idle
            && (client.deadline <= now || client.contract.slice.0 == 0)
        {
            client.contract = contract;
            client.next_contract = None;
            // A client that lived on slack alone may have work for its first slice.
            if !client.jobs.is_empty() {
                self.wake(now, at);
            }
        }
        self.share_slack(at);
        Ok(())
    }

    /// Ends a contract and returns the transactions that were not started. Transactions in flight
    /// complete as usual, but are charged to no client. The contract's share can be promised again
    /// at once.
    pub fn remove(&mut self, now: Time, id: ClientId) -> Vec<TransactionDesc> {
        let Some(at) = self.find(id) else {
            return Vec::new();
        };
        self.charge_hold(now);
        self.release_hold(at);
        self.dequeue(at);
        self.urgent.retain(|&other| other != at);
        let client = &mut self.clients[at as usize];
        client.place = QueueState::Gone;
        let jobs: Vec<_> = client.jobs.drain(..).collect();
        self.queued -= jobs.len();
        self.share_slack(at);
        self.bury(at);
        jobs
    }

    /// A client's present state, if it exists.
    pub fn client(&self, id: ClientId) -> Option<ClientState> {
        self.find(id).map(|at| self.clients[at as usize].state())
    }

    /// The sum of all clients' shares.
    pub fn reserved(&self) -> Utilization {
        self.reserved_but(None)
    }

    pub(super) fn find(&self, id: ClientId) -> Option<u32> {
        let client = self.clients.get(id.at as usize)?;
        (client.number == id.number && client.place != QueueState::Gone).then_some(id.at)
    }

    pub(super) fn id(&self, at: u32) -> ClientId {
        ClientId {
            at,
            number: self.clients[at as usize].number,
        }
    }

    /// Frees the index of a removed client once nothing of it is in flight.
    pub(super) fn bury(&mut self, at: u32) {
        if self.clients[at as usize].in_flight == 0 {
            self.unused.push(at);
        }
    }

    /// Applies changes of idle clients whose periods are over: nothing else does, as no allocation
    /// comes.
    fn renew(&mut self, now: Time) {
        for client in &mut self.clients {
            if client.place == QueueState::Idle && client.deadline <= now {
                client.contract = client.next_contract.take().unwrap_or(client.contract);
            }
        }
    }

    fn reserved_but(&self, but: Option<u32>) -> Utilization {
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

    fn room_for(&self, contract: DiskContract, but: Option<u32>) -> Result<(), AdmissionError> {
        let reserved = self.reserved_but(but);
        let asked = contract.share();
        if reserved + asked <= self.capacity {
            return Ok(());
        }
        let gone = |client: &&Client| client.place == QueueState::Gone;
        let there = self.clients.len() - self.clients.iter().filter(gone).count();
        Err(AdmissionError::Capacity {
            contract,
            asked,
            reserved,
            capacity: self.capacity,
            clients: there - usize::from(but.is_some()),
        })
    }
}
