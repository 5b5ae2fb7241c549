//! Clients come, change and go.

use super::client::{Client, ClientId, Place, View};
use super::contract::{Contract, Refusal, Share};
use super::{Atropos, Job};
use crate::time::Time;
use crate::trace::Trace;

impl<T: Trace> Atropos<T> {
    /// Promises a contract. The client is idle until its first job arrives.
    pub fn admit(&mut self, contract: Contract) -> Result<ClientId, Refusal> {
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

    /// Promises a client something else, from its next period on. Until then the greater of
    /// the two is what others cannot have.
    pub fn change(&mut self, now: Time, id: ClientId, contract: Contract) -> Result<(), Refusal> {
        contract.check()?;
        let at = self.find(id).ok_or(Refusal::Gone)?;
        self.renew(now);
        self.room_for(contract, Some(at))?;
        let client = &mut self.clients[at as usize];
        client.next_contract = Some(contract);
        if client.place == Place::Idle && (client.deadline <= now || client.contract.slice.0 == 0) {
            client.contract = contract;
            client.next_contract = None;
            // One that lived on slack alone may have work for its first slice.
            if !client.jobs.is_empty() {
                self.wake(now, at);
            }
        }
        self.share_slack(at);
        Ok(())
    }

    /// Ends a contract and hands back the jobs that were not started. What is in flight is
    /// finished as if nothing had happened, but counts for nobody. Its share can be promised
    /// again at once.
    pub fn remove(&mut self, now: Time, id: ClientId) -> Vec<Job> {
        let Some(at) = self.find(id) else {
            return Vec::new();
        };
        self.settle(now);
        self.let_go_of(at);
        self.dequeue(at);
        self.urgent.retain(|&other| other != at);
        let client = &mut self.clients[at as usize];
        client.place = Place::Gone;
        let jobs: Vec<_> = client.jobs.drain(..).collect();
        self.queued -= jobs.len();
        self.share_slack(at);
        self.bury(at);
        jobs
    }

    /// A client as it is, if it is there.
    pub fn client(&self, id: ClientId) -> Option<View> {
        self.find(id).map(|at| self.clients[at as usize].view())
    }

    /// What is promised to all clients together.
    pub fn reserved(&self) -> Share {
        self.reserved_but(None)
    }

    pub(super) fn find(&self, id: ClientId) -> Option<u32> {
        let client = self.clients.get(id.at as usize)?;
        (client.number == id.number && client.place != Place::Gone).then_some(id.at)
    }

    pub(super) fn id(&self, at: u32) -> ClientId {
        ClientId {
            at,
            number: self.clients[at as usize].number,
        }
    }

    /// Gives the place of one that is gone away, once nothing of it is in flight.
    pub(super) fn bury(&mut self, at: u32) {
        if self.clients[at as usize].in_flight == 0 {
            self.unused.push(at);
        }
    }

    /// Lets changes of idle clients take effect whose periods are over: nothing else does, as
    /// no allocation comes.
    fn renew(&mut self, now: Time) {
        for client in &mut self.clients {
            if client.place == Place::Idle && client.deadline <= now {
                client.contract = client.next_contract.take().unwrap_or(client.contract);
            }
        }
    }

    fn reserved_but(&self, but: Option<u32>) -> Share {
        let there = |(at, client): &(usize, &Client)| {
            client.place != Place::Gone && but != Some(*at as u32)
        };
        let clients = self.clients.iter().enumerate().filter(there);
        clients.fold(Share::default(), |sum, (_, client)| {
            let next = client.next_contract.map_or(Share::default(), |c| c.share());
            sum + client.share().max(next)
        })
    }

    fn room_for(&self, contract: Contract, but: Option<u32>) -> Result<(), Refusal> {
        let reserved = self.reserved_but(but);
        let asked = contract.share();
        if reserved + asked <= self.capacity {
            return Ok(());
        }
        let gone = |client: &&Client| client.place == Place::Gone;
        let there = self.clients.len() - self.clients.iter().filter(gone).count();
        Err(Refusal::Capacity {
            contract,
            asked,
            reserved,
            capacity: self.capacity,
            clients: there - usize::from(but.is_some()),
        })
    }
}
