//! Executes control commands on the disk's thread.

use super::background::Background;
use super::client::{Client, MOST_WAITING, client_at};
use super::command::{UsdCommand, UsdEvent};
use super::doorbells::Doorbells;
use super::ring::RingEvent;
use super::stats::DiskStats;
use super::thread::{DiskThread, untag};
use super::{ChannelId, IoTarget};
use crate::atropos::ClientId;
use crate::time::Time;
use iochannel::Doorbell;
use rustix::fd::AsRawFd;
use rustix::io::read;
use std::sync::mpsc::Sender;
use std::time::Duration;
use wired::clock::thread_time;
use wired::sched_class;

impl DiskThread {
    /// Executes all pending commands.
    pub(super) fn run_commands(&mut self, now: Time) {
        let _ = read(&self.bell, &mut [0; 8]);
        let listened = self
            .ring
            .watch(self.bell.as_raw_fd(), RingEvent::CommandSender);
        debug_assert!(listened.is_ok(), "{listened:?}");
        while let Ok(command) = self.commands.try_recv() {
            match command {
                UsdCommand::Admit {
                    user,
                    contract,
                    answer,
                } => {
                    let admitted = match user {
                        Some(user) => self.atropos.admit_for(now, user, contract),
                        None => self.atropos.admit(now, contract),
                    };
                    if let Ok(id) = admitted {
                        self.enter(id);
                    }
                    let _ = answer.send(admitted);
                }
                UsdCommand::AdmitBackground { contract, answer } => {
                    let admitted = Background::admit(now, &mut self.atropos, contract);
                    let admitted = admitted.map(|own| self.background.insert(own).client);
                    let _ = answer.send(admitted);
                }
                UsdCommand::Change {
                    client,
                    contract,
                    answer,
                } => _ = answer.send(self.atropos.change(now, client, contract)),
                UsdCommand::SetTarget {
                    client,
                    target,
                    doorbell,
                } => self.set_target(client, target, doorbell),
                UsdCommand::AddChannel { client, id, server } => match self.find(client) {
                    Some(at) => {
                        if let Some(client) = self.client(at) {
                            client.watch(id, server);
                        }
                        self.wake(at);
                    }
                    None => self.events.send(UsdEvent::Closed(id)),
                },
                UsdCommand::Close { id } => self.close(id),
                UsdCommand::Remove { client, answer } => self.remove(now, client, answer),
                UsdCommand::WaitingThreads { client, answer } => {
                    let own = self.find(client).and_then(|at| self.client(at));
                    let _ = answer.send(own.map(|own| own.waiting.clone()));
                }
                UsdCommand::SetCrowded { crowded } => self.poll_policy.set_crowded(crowded),
                UsdCommand::SetRealTime { priority } => self.priority_window.set(priority),
                UsdCommand::ClientStats { client, answer } => {
                    let view = self.atropos.client(client);
                    let own = self.find(client).and_then(|at| self.client(at));
                    let stats = own.zip(view).map(|(own, view)| own.counted.with(&view));
                    let _ = answer.send(stats);
                }
                UsdCommand::DiskStats { answer } => _ = answer.send(self.disk_stats()),
                UsdCommand::Stop => self.stopped = Some(now),
            }
        }
    }

    fn find(&self, id: ClientId) -> Option<u32> {
        let is_it = |client: &Client| client.id == id && client.removal.is_none();
        let found = |client: &Option<Client>| client.as_ref().is_some_and(is_it);
        self.clients.iter().position(found).map(|at| at as u32)
    }

    fn enter(&mut self, id: ClientId) {
        // A device completes what it has; the other end of a transport may not.
        let most_waiting = self.transport.as_ref().map_or(0, |_| MOST_WAITING);
        let client = Some(Client::new(id, most_waiting));
        match self.clients.iter().position(Option::is_none) {
            Some(at) => self.clients[at] = client,
            None => self.clients.push(client),
        }
    }

    fn set_target(&mut self, id: ClientId, target: IoTarget, doorbell: Doorbell) {
        let Some(at) = self.find(id) else {
            return;
        };
        let Some(client) = client_at(&mut self.clients, at) else {
            return;
        };
        Doorbells::unwatch(&mut self.ring, at, client);
        self.doorbells.watch(&mut self.ring, at, client, doorbell);
        client.target = Some(target);
        client.wake();
        self.wake(at);
    }

    fn close(&mut self, id: ChannelId) {
        let has = |client: &Client| client.channels.iter().any(|channel| channel.id == id);
        let found = |client: &Option<Client>| client.as_ref().is_some_and(has);
        let Some(at) = self.clients.iter().position(found) else {
            return;
        };
        if let Some(client) = &mut self.clients[at] {
            client.close(id);
        }
        self.release_closed(at as u32);
    }

    /// Releases a client's closed channels, and the client if it is being removed and drained.
    pub(super) fn release_closed(&mut self, at: u32) {
        let (events, closed) = (&self.events, &self.closed);
        let Some(client) = client_at(&mut self.clients, at) else {
            return;
        };
        for channel in client
            .channels
            .extract_if(.., |channel| channel.is_drained())
        {
            events.send(UsdEvent::Closed(channel.id));
            closed.free(channel.server);
        }
        if client.channels.is_empty()
            && let Some(answer) = client.removal.take()
        {
            // The waiting thread closes the client's file: the last close of a large unlinked file
            // takes long.
            let gone = self.clients[at as usize].take();
            self.awake.retain(|&other| other != at);
            let _ = answer.send(gone);
        }
    }

    fn remove(&mut self, now: Time, id: ClientId, answer: Sender<Option<Client>>) {
        let Some(at) = self.find(id) else {
            let _ = answer.send(None);
            return;
        };
        let jobs = self.atropos.remove(now, id);
        let Some(client) = client_at(&mut self.clients, at) else {
            return;
        };
        jobs.iter()
            .for_each(|job| client.release_slot(untag(job.tag).1));
        let channels: Vec<_> = client.channels.iter().map(|channel| channel.id).collect();
        channels.into_iter().for_each(|id| client.close(id));
        Doorbells::unwatch(&mut self.ring, at, client);
        client.removal = Some(answer);
        self.release_closed(at);
    }

    /// Gives this thread real-time priority, where the kernel permits it, or its own class again.
    pub(super) fn set_real_time(&mut self, priority: Option<i32>) {
        let is_real_time = match priority {
            Some(priority) => sched_class::set_real_time(0, priority).is_ok(),
            None => sched_class::set_class(0, sched_class::ORDINARY).is_err(),
        };
        self.poll_policy.set_real_time(is_real_time);
    }

    fn disk_stats(&self) -> DiskStats {
        DiskStats {
            in_flight: self.atropos.in_flight(),
            processor: Duration::from_nanos(thread_time().unwrap_or(0)),
            sleeps: self.sleeps,
        }
    }
}
