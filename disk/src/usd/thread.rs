//! The disk's thread: what has ended, what was asked for, what is next, and round again.
//!
//! It looks for more for a while before it sleeps. Asleep it is woken by the device, by the
//! bells of clients and of the owner, or by the time that the scheduler named. A channel that
//! is quiet is armed, so that it rings, and not looked at any more: one that nobody uses costs
//! nothing, however long the thread stays awake for others.

use super::client::{Client, Taken, WINDOW};
use super::command::{Command, News, Told};
use super::figures::Whole;
use super::ring::{Ended, Ring};
use super::transaction::{Part, descriptor};
use super::{Backing, ChannelId, Settings, UsdError};
use crate::atropos::{Atropos, ClientId, Decision, Job, Start};
use crate::model::Model;
use crate::time::{Nanos, Time};
use crate::trace::Writer;
use iochannel::{Doorbell, RUN};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::{Errno, read};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// What a thread is made of.
pub(super) struct Parts {
    pub device: Arc<dyn AsFd + Send + Sync>,
    pub settings: Settings,
    pub commands: Receiver<Command>,
    pub bell: Arc<OwnedFd>,
    pub news: Sender<News>,
    pub told: Arc<Told>,
    pub trace: Writer,
    pub began: Instant,
}

pub(super) struct Disk {
    device: Arc<dyn AsFd + Send + Sync>,
    model: Model,
    spin: Nanos,
    commands: Receiver<Command>,
    bell: Arc<OwnedFd>,
    news: Sender<News>,
    told: Arc<Told>,
    began: Instant,
    atropos: Atropos<Writer>,
    ring: Ring,
    clients: Vec<Option<Client>>,
    /// Those with channels to be looked at.
    awake: Vec<u32>,
    ended: Vec<(Ended, i32)>,
    /// Channels with answers their clients may have to be rung for.
    answered: Vec<(u32, ChannelId)>,
    sleeps: u64,
    stopping: bool,
}

/// The present, on a clock that began then.
pub(super) fn present(began: Instant) -> Time {
    Time(0) + Nanos::from(began.elapsed())
}

impl Disk {
    pub(super) fn new(parts: Parts) -> Result<Self, UsdError> {
        let Settings { model, bound, spin } = parts.settings;
        let mut ring = Ring::new()?;
        ring.listen(parts.bell.as_raw_fd(), Ended::Orders)
            .map_err(|errno| UsdError::Ring { errno })?;
        Ok(Self {
            device: parts.device,
            model,
            spin: spin.into(),
            commands: parts.commands,
            bell: parts.bell,
            news: parts.news,
            told: parts.told,
            began: parts.began,
            atropos: Atropos::new(model.capacity, bound, parts.trace),
            ring,
            clients: Vec::new(),
            awake: Vec::new(),
            ended: Vec::with_capacity(256),
            answered: Vec::with_capacity(256),
            sleeps: 0,
            stopping: false,
        })
    }

    pub(super) fn run(mut self) {
        let mut last = Time(0);
        while !self.stopping || self.ring.in_flight() > 0 {
            let now = present(self.began);
            let heard = self.hear(now);
            let taken = self.take(now);
            let (started, until) = self.schedule(now);
            self.ring.submit();
            self.announce();
            if heard || taken || started {
                last = now;
            } else if now - last < self.spin {
                std::hint::spin_loop();
            } else {
                self.sleep(now, until);
            }
        }
    }

    /// What has ended, and what the owner says.
    fn hear(&mut self, now: Time) -> bool {
        let mut all = std::mem::take(&mut self.ended);
        self.ring.ended(&mut all);
        let any = !all.is_empty();
        for (ended, result) in all.drain(..) {
            match ended {
                Ended::Part {
                    client,
                    transaction,
                } => self.part_ended(now, client, transaction, result),
                Ended::Bell { client, number } => self.rung(client, number),
                Ended::Orders => self.obey(now),
                Ended::Nothing => {}
            }
        }
        self.ended = all;
        any
    }

    fn client(&mut self, at: u32) -> Option<&mut Client> {
        self.clients.get_mut(at as usize)?.as_mut()
    }

    fn part_ended(&mut self, now: Time, at: u32, transaction: u32, result: i32) {
        let Some(client) = self.client(at) else {
            return;
        };
        let ended = &mut client.window[transaction as usize];
        ended.ended(result);
        let (over, channel) = (ended.in_flight == 0, ended.channel);
        if let Some(channel) = client.channel(channel) {
            channel.in_flight -= 1;
        }
        if over {
            self.answer(now, at, transaction);
        }
    }

    /// Answers a transaction of which nothing is in flight any more.
    fn answer(&mut self, now: Time, at: u32, transaction: u32) {
        let Some(client) = self.clients.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        let over = &client.window[transaction as usize];
        let result = match &client.backing {
            Some(backing) => over.answer(backing),
            None => over.result,
        };
        let (id, slot) = (over.channel, over.slot);
        self.atropos.finish(now, over.ticket, now - over.started);
        client.counted.answered(now - over.taken, result < 0);
        client.give_back(transaction);
        if let Some(channel) = client.channel(id) {
            channel.server.finish(slot, result);
            self.answered.push((at, id));
            if channel.is_over() {
                self.let_go(at);
            }
        }
    }

    /// A client rings: its channels are looked at again.
    fn rung(&mut self, at: u32, number: u32) {
        let Some(client) = self.clients.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        let Some((doorbell, _)) = client.doorbell.as_ref().filter(|(_, own)| *own == number) else {
            return;
        };
        doorbell.clear();
        let listened = self.ring.listen(
            doorbell.as_fd().as_raw_fd(),
            Ended::Bell { client: at, number },
        );
        debug_assert!(listened.is_ok(), "{listened:?}");
        client.wake();
        self.wake(at);
    }

    fn wake(&mut self, at: u32) {
        if !self.awake.contains(&at) {
            self.awake.push(at);
        }
    }

    /// Takes what was asked for, as far as there is room to remember it.
    fn take(&mut self, now: Time) -> bool {
        if self.stopping {
            return false;
        }
        let mut any = false;
        for place in 0..self.awake.len() {
            let at = self.awake[place];
            // No client keeps the thread from the others for longer than a window takes.
            for _ in 0..WINDOW {
                let Some(client) = self.clients.get_mut(at as usize).and_then(Option::as_mut)
                else {
                    break;
                };
                match client.take(now) {
                    Taken::Request(transaction) => {
                        let asked = &client.window[transaction as usize];
                        let (op, bytes) = (asked.model_op(), asked.bytes());
                        let job = Job {
                            op,
                            bytes,
                            cost: self.model.cost(op, bytes),
                            tag: tag(at, transaction),
                        };
                        self.atropos.arrive(now, client.id, job);
                    }
                    Taken::Refused(channel) => {
                        client.counted.answered(Nanos::ZERO, true);
                        self.answered.push((at, channel));
                    }
                    Taken::Corrupt(channel, why) => {
                        client.close(channel);
                        self.tell(News::CutOff { channel, why });
                        self.let_go(at);
                    }
                    Taken::Nothing => break,
                }
                any = true;
            }
        }
        any
    }

    /// Starts what is next, as long as something is. Whether something was, and the time when
    /// to ask again.
    fn schedule(&mut self, now: Time) -> (bool, Option<Time>) {
        let mut any = false;
        while !self.stopping && self.ring.has_room(RUN) {
            match self.atropos.next(now) {
                Decision::Start(start) => self.start(now, &start),
                Decision::WaitUntil(until) => return (any, Some(until)),
                Decision::Full | Decision::Idle => return (any, None),
            }
            any = true;
        }
        (any, None)
    }

    fn start(&mut self, now: Time, start: &Start) {
        let (at, number) = untag(start.job.tag);
        let Some(client) = self.clients.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        let transaction = &mut client.window[number as usize];
        transaction.started = now;
        transaction.ticket = start.ticket;
        if transaction.orphan {
            client.give_back(number);
            return self.atropos.finish(now, start.ticket, Nanos::ZERO);
        }
        let mut parts = [Part::default(); RUN];
        let made = match &client.backing {
            Some(backing) => transaction.parts(backing, &mut parts),
            None => Err(Errno::INVAL),
        };
        let (made, fd) = match (made, &client.backing) {
            (Ok(made), Some(backing)) => {
                (made, descriptor(backing, self.device.as_fd().as_raw_fd()))
            }
            (made, _) => {
                let errno = made.err().unwrap_or(Errno::INVAL);
                transaction.result = -errno.raw_os_error();
                return self.answer(now, at, number);
            }
        };
        transaction.in_flight = made;
        let (op, id) = (transaction.op, transaction.channel);
        if let Some(channel) = client.channel(id) {
            channel.in_flight += made;
        }
        for part in &parts[..made] {
            let then = Ended::Part {
                client: at,
                transaction: number,
            };
            let Some(client) = self.clients.get(at as usize).and_then(Option::as_ref) else {
                return;
            };
            let pieces = client.window[number as usize].memory(part);
            // SAFETY: the memory is a channel's, which is let go of when nothing of it is in
            // flight; the pieces stay in the window until the transaction is answered.
            let started = unsafe { self.ring.start(op, fd, pieces, part.at, then) };
            if let Err(errno) = started {
                self.part_ended(now, at, number, -errno.raw_os_error());
            }
        }
    }

    /// Rings clients that sleep and have answers.
    fn announce(&mut self) {
        for (at, id) in self.answered.drain(..) {
            let client = self.clients.get_mut(at as usize).and_then(Option::as_mut);
            if let Some(channel) = client.and_then(|client| client.channel(id)) {
                channel.server.announce();
            }
        }
    }

    fn sleep(&mut self, now: Time, until: Option<Time>) {
        let clients = &mut self.clients;
        let mut more = false;
        self.awake.retain(|&at| {
            let Some(client) = clients.get_mut(at as usize).and_then(Option::as_mut) else {
                return false;
            };
            let asleep = client.sleep();
            more |= !asleep && client.has_room();
            !asleep
        });
        if !more {
            self.sleeps += 1;
            let time = until.map(|until| Duration::from(until - now));
            self.ring.sleep(time);
        }
    }

    fn tell(&self, news: News) {
        if self.news.send(news).is_ok() {
            self.told.tell();
        }
    }

    /// Lets go of what a client has closed, and of the client if it is leaving.
    fn let_go(&mut self, at: u32) {
        let (news, told) = (&self.news, &self.told);
        let Some(client) = self.clients.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        client.let_go(&mut |item| {
            if news.send(item).is_ok() {
                told.tell();
            }
        });
        if client.channels.is_empty()
            && let Some(answer) = client.leaving.take()
        {
            self.clients[at as usize] = None;
            self.awake.retain(|&other| other != at);
            let _ = answer.send(());
        }
    }

    /// Does what the owner says.
    fn obey(&mut self, now: Time) {
        let _ = read(&self.bell, &mut [0; 8]);
        let listened = self.ring.listen(self.bell.as_raw_fd(), Ended::Orders);
        debug_assert!(listened.is_ok(), "{listened:?}");
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Admit { contract, answer } => {
                    let admitted = self.atropos.admit(contract);
                    if let Ok(id) = admitted {
                        self.enter(id);
                    }
                    let _ = answer.send(admitted);
                }
                Command::Change {
                    client,
                    contract,
                    answer,
                } => _ = answer.send(self.atropos.change(now, client, contract)),
                Command::Back {
                    client,
                    backing,
                    doorbell,
                } => self.back(client, backing, doorbell),
                Command::Listen { client, id, server } => match self.find(client) {
                    Some(at) => {
                        if let Some(client) = self.client(at) {
                            client.listen(id, server);
                        }
                        self.wake(at);
                    }
                    None => self.tell(News::Closed(id)),
                },
                Command::Close { id } => self.close(id),
                Command::Remove { client, answer } => self.remove(now, client, answer),
                Command::Figures { client, answer } => {
                    let view = self.atropos.client(client);
                    let own = self.find(client).and_then(|at| self.client(at));
                    let figures = own.zip(view).map(|(own, view)| own.counted.with(&view));
                    let _ = answer.send(figures);
                }
                Command::Whole { answer } => _ = answer.send(self.whole()),
                Command::Stop => self.stopping = true,
            }
        }
    }

    fn find(&self, id: ClientId) -> Option<u32> {
        let is_it = |client: &Client| client.id == id && client.leaving.is_none();
        let found = |client: &Option<Client>| client.as_ref().is_some_and(is_it);
        self.clients.iter().position(found).map(|at| at as u32)
    }

    fn enter(&mut self, id: ClientId) {
        let client = Some(Client::new(id));
        match self.clients.iter().position(Option::is_none) {
            Some(at) => self.clients[at] = client,
            None => self.clients.push(client),
        }
    }

    fn back(&mut self, id: ClientId, backing: Backing, doorbell: Doorbell) {
        let Some(at) = self.find(id) else {
            return;
        };
        let Some(client) = self.clients.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        let number = match &client.doorbell {
            Some((_, number)) => {
                let number = *number;
                self.ring.listen_no_more(Ended::Bell { client: at, number });
                number + 1
            }
            None => id.number() << 8,
        };
        let fd = doorbell.as_fd().as_raw_fd();
        let listened = self.ring.listen(fd, Ended::Bell { client: at, number });
        debug_assert!(listened.is_ok(), "{listened:?}");
        client.backing = Some(backing);
        client.doorbell = Some((doorbell, number));
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
        self.let_go(at as u32);
    }

    fn remove(&mut self, now: Time, id: ClientId, answer: Sender<()>) {
        let Some(at) = self.find(id) else {
            let _ = answer.send(());
            return;
        };
        let jobs = self.atropos.remove(now, id);
        let Some(client) = self.clients.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        jobs.iter()
            .for_each(|job| client.give_back(untag(job.tag).1));
        let channels: Vec<_> = client.channels.iter().map(|channel| channel.id).collect();
        channels.into_iter().for_each(|id| client.close(id));
        if let Some((_, number)) = client.doorbell.take() {
            self.ring.listen_no_more(Ended::Bell { client: at, number });
        }
        client.leaving = Some(answer);
        self.let_go(at);
    }

    fn whole(&self) -> Whole {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        Whole {
            capacity: self.atropos.capacity(),
            reserved: self.atropos.reserved(),
            correction: self.atropos.correction().factor(),
            in_flight: self.atropos.in_flight(),
            cost_in_flight: self.atropos.cost_in_flight(),
            processor: Duration::new(used.tv_sec as u64, used.tv_nsec as u32),
            sleeps: self.sleeps,
        }
    }
}

/// A transaction's name for the scheduler: the client's place, and its own in the window.
fn tag(client: u32, transaction: u32) -> u64 {
    (u64::from(client) << 32) | u64::from(transaction)
}

fn untag(tag: u64) -> (u32, u32) {
    ((tag >> 32) as u32, tag as u32)
}
