//! The disk's thread: what has ended, what was asked for, what is next, and round again.
//!
//! It looks for more for a while before it sleeps ([`super::patience`]). Asleep it is woken by
//! the device, by the bells of clients and of the owner, or by the time that the scheduler
//! named. A channel that is quiet is armed, so that it rings, and not looked at any more: one
//! that nobody uses costs nothing, however long the thread stays awake for others.

use super::client::{Client, Taken, WINDOW};
use super::command::{Command, News, Told};
use super::patience::Patience;
use super::ring::{Ended, Ring};
use super::transaction::{Part, descriptor};
use super::{ChannelId, Settings, UsdError};
use crate::atropos::{Atropos, Decision, Job, Start};
use crate::model::Model;
use crate::time::{Nanos, Time};
use crate::trace::Writer;
use iochannel::RUN;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// How often a bell may ring with nothing asked for in between. Few of an honest client's do:
/// one that rang while its request was found anyway.
const IN_VAIN: u32 = 16;

/// For how long a bell is not listened to that did: ringing without end then costs others
/// nothing that they notice, and a request among it waits for so long at most.
const DEAF: Nanos = Nanos::millis(1);

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

/// What the scheduler decided in one turn.
#[derive(Default)]
struct Scheduled {
    /// Something was started.
    started: bool,
    /// As much is in flight as may be.
    full: bool,
    /// When to ask again.
    until: Option<Time>,
}

pub(super) struct Disk {
    device: Arc<dyn AsFd + Send + Sync>,
    model: Model,
    patience: Patience,
    pub(super) commands: Receiver<Command>,
    pub(super) bell: Arc<OwnedFd>,
    news: Sender<News>,
    told: Arc<Told>,
    began: Instant,
    pub(super) atropos: Atropos<Writer>,
    pub(super) ring: Ring,
    pub(super) clients: Vec<Option<Client>>,
    /// Those with channels to be looked at.
    awake: Vec<u32>,
    /// Bells that rang in vain too often, and when they are listened to again.
    deaf: Vec<(Time, Ended)>,
    ended: Vec<(Ended, i32)>,
    /// Channels with answers their clients may have to be rung for.
    answered: Vec<(u32, ChannelId)>,
    /// The number of the last bell that was listened to first.
    pub(super) bells: u32,
    pub(super) sleeps: u64,
    pub(super) stopping: bool,
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
            patience: Patience::new(spin.into()),
            commands: parts.commands,
            bell: parts.bell,
            news: parts.news,
            told: parts.told,
            began: parts.began,
            atropos: Atropos::new(model.capacity, bound, parts.trace),
            ring,
            clients: Vec::new(),
            awake: Vec::new(),
            deaf: Vec::new(),
            ended: Vec::with_capacity(256),
            answered: Vec::with_capacity(256),
            bells: 0,
            sleeps: 0,
            stopping: false,
        })
    }

    pub(super) fn run(mut self) {
        while !self.stopping || self.ring.in_flight() > 0 {
            let now = present(self.began);
            self.listen_again(now);
            let heard = self.hear(now);
            let taken = self.take(now);
            let next = self.schedule(now);
            self.ring.submit();
            self.announce();
            let in_flight = self.ring.in_flight() > 0;
            let full = next.full.then(|| self.atropos.bound());
            if heard || taken || next.started {
                self.patience.happened(present(self.began));
            } else if self.patience.looks(now, in_flight, full) {
                std::hint::spin_loop();
            } else {
                self.sleep(now, next.until);
            }
        }
    }

    /// What has ended, and what the owner says.
    fn hear(&mut self, now: Time) -> bool {
        let mut all = std::mem::take(&mut self.ended);
        self.ring.ended(&mut all);
        let mut any = false;
        for (ended, result) in all.drain(..) {
            match ended {
                Ended::Part {
                    client,
                    transaction,
                } => self.part_ended(now, client, transaction, result),
                Ended::Bell { client, number } if !self.rung(now, client, number) => continue,
                Ended::Orders => self.obey(now),
                Ended::Bell { .. } | Ended::Nothing => {}
            }
            any = true;
        }
        self.ended = all;
        any
    }

    pub(super) fn client(&mut self, at: u32) -> Option<&mut Client> {
        at_place(&mut self.clients, at)
    }

    fn part_ended(&mut self, now: Time, at: u32, transaction: u32, result: i32) {
        self.patience.ended();
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
        let Some(client) = at_place(&mut self.clients, at) else {
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
            channel.answer(slot, result);
            if channel.is_over() {
                channel.announce();
                return self.let_go(at);
            }
            if channel.unsaid == 1 {
                self.answered.push((at, id));
            }
        }
    }

    /// A client rings: its channels are looked at again. Whether it is to be believed that
    /// there is something.
    fn rung(&mut self, now: Time, at: u32, number: u32) -> bool {
        let Some(client) = at_place(&mut self.clients, at) else {
            return false;
        };
        let Some((doorbell, _)) = client.doorbell.as_ref().filter(|(_, own)| *own == number) else {
            return false;
        };
        let bell = Ended::Bell { client: at, number };
        doorbell.clear();
        client.in_vain += 1;
        let believed = client.in_vain < IN_VAIN;
        if believed {
            let listened = self.ring.listen(doorbell.as_fd().as_raw_fd(), bell);
            debug_assert!(listened.is_ok(), "{listened:?}");
        } else {
            self.deaf.push((now + DEAF, bell));
        }
        client.wake();
        self.wake(at);
        believed
    }

    /// Listens to bells whose time has come.
    fn listen_again(&mut self, now: Time) {
        let (clients, ring) = (&mut self.clients, &mut self.ring);
        self.deaf.retain(|&(due, bell)| {
            if due > now {
                return true;
            }
            if let Ended::Bell { client, number } = bell
                && let Some(client) = at_place(clients, client)
                && let Some((doorbell, own)) = &client.doorbell
                && *own == number
            {
                let listened = ring.listen(doorbell.as_fd().as_raw_fd(), bell);
                debug_assert!(listened.is_ok(), "{listened:?}");
            }
            false
        });
    }

    pub(super) fn wake(&mut self, at: u32) {
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
                let Some(client) = at_place(&mut self.clients, at) else {
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

    /// Starts what is next, as long as something is.
    fn schedule(&mut self, now: Time) -> Scheduled {
        let mut scheduled = Scheduled::default();
        while !self.stopping && self.ring.has_room(RUN) {
            match self.atropos.next(now) {
                Decision::Start(start) => self.start(now, &start),
                Decision::WaitUntil(until) => {
                    scheduled.until = Some(until);
                    break;
                }
                Decision::Full => {
                    scheduled.full = true;
                    break;
                }
                Decision::Idle => break,
            }
            scheduled.started = true;
        }
        scheduled
    }

    fn start(&mut self, now: Time, start: &Start) {
        let (at, number) = untag(start.job.tag);
        let Some(client) = at_place(&mut self.clients, at) else {
            return;
        };
        let transaction = &mut client.window[number as usize];
        transaction.started = now;
        client.counted.waited(now - transaction.taken);
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
            let Some(client) = at_place(&mut self.clients, at) else {
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
        let clients = &mut self.clients;
        self.answered.retain(|&(at, id)| {
            let client = at_place(clients, at);
            let channel = client.and_then(|client| client.channel(id));
            channel.is_some_and(|channel| !channel.announce())
        });
    }

    fn sleep(&mut self, now: Time, until: Option<Time>) {
        let clients = &mut self.clients;
        let mut more = false;
        self.awake.retain(|&at| {
            let Some(client) = at_place(clients, at) else {
                return false;
            };
            let asleep = client.sleep();
            more |= !asleep && client.has_room();
            !asleep
        });
        if !more {
            self.sleeps += 1;
            let deaf = self.deaf.iter().map(|&(due, _)| due);
            let until = deaf.chain(until).min();
            let time = until.map(|until| Duration::from(until - now));
            self.ring.sleep(time);
        }
    }

    pub(super) fn tell(&self, news: News) {
        if self.news.send(news).is_ok() {
            self.told.tell();
        }
    }

    /// Lets go of what a client has closed, and of the client if it is leaving.
    pub(super) fn let_go(&mut self, at: u32) {
        let (news, told) = (&self.news, &self.told);
        let Some(client) = at_place(&mut self.clients, at) else {
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
            // What it had is closed by who waits: the last close of a large file that has no
            // name any more takes long.
            let gone = self.clients[at as usize].take();
            self.awake.retain(|&other| other != at);
            let _ = answer.send(gone);
        }
    }
}

/// The client at a place, if there is one still.
pub(super) fn at_place(clients: &mut [Option<Client>], at: u32) -> Option<&mut Client> {
    clients.get_mut(at as usize)?.as_mut()
}

/// A transaction's name for the scheduler: the client's place, and its own in the window.
fn tag(client: u32, transaction: u32) -> u64 {
    (u64::from(client) << 32) | u64::from(transaction)
}

pub(super) fn untag(tag: u64) -> (u32, u32) {
    ((tag >> 32) as u32, tag as u32)
}
