//! The disk's thread: reaps completions, takes requests, schedules, and round again.
//!
//! It polls for a while before it sleeps ([`super::poll_policy`]). Asleep it is woken by the
//! device, by the doorbells of clients and of the owner, or at the time that the scheduler named. A
//! quiet channel is armed, so that it rings, and not polled any more: an unused channel costs
//! nothing, however long the thread stays awake for other clients.

use super::background::Background;
use super::channel::LONGEST_UNSIGNALLED;
use super::client::{Client, Received, WINDOW, client_at};
use super::closed_channels::ClosedChannels;
use super::command::{EventSender, UsdCommand, UsdEvent};
use super::doorbells::{Doorbells, Rang};
use super::poll_policy::PollPolicy;
use super::priority_window::PriorityWindow;
use super::ring::{Ring, RingEvent};
use super::transport::Transport;
use super::{ChannelId, UsdConfig, UsdError};
use crate::atropos::{Atropos, TransactionDesc};
use crate::cost_model::CostModel;
use crate::time::{Nanos, Time};
use crate::trace::Writer;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long parts of a transport may still complete after the disk is dropped. A device moves memory and is waited for; a
/// transport ends with this thread, and its other end may never answer.
const TRANSPORT_GRACE: Nanos = Nanos::seconds(1);

/// What a thread is made of.
pub(super) struct UsdParts {
    pub device: Option<Arc<dyn AsFd + Send + Sync>>,
    pub transport: Option<Box<dyn Transport>>,
    pub config: UsdConfig,
    pub commands: Receiver<UsdCommand>,
    pub bell: Arc<OwnedFd>,
    pub events: EventSender,
    pub trace: Writer,
    pub began: Instant,
}

pub(super) struct DiskThread {
    pub(super) device: Option<Arc<dyn AsFd + Send + Sync>>,
    pub(super) transport: Option<Box<dyn Transport>>,
    pub(super) background: Option<Background>,
    model: CostModel,
    pub(super) poll_policy: PollPolicy,
    pub(super) priority_window: PriorityWindow,
    pub(super) commands: Receiver<UsdCommand>,
    pub(super) bell: Arc<OwnedFd>,
    pub(super) events: EventSender,
    began: Instant,
    pub(super) atropos: Atropos<Writer>,
    pub(super) ring: Ring,
    pub(super) clients: Vec<Option<Client>>,
    /// Clients with channels to poll.
    pub(super) awake: Vec<u32>,
    ended: Vec<(RingEvent, i32)>,
    /// Channels with completions that may have to be signalled.
    answered: Vec<(u32, ChannelId, Time)>,
    pub(super) doorbells: Doorbells,
    pub(super) closed: ClosedChannels,
    pub(super) sleeps: u64,
    /// When the disk was dropped.
    pub(super) stopped: Option<Time>,
}

/// The present time on a clock that began at `began`.
pub(super) fn time_since(began: Instant) -> Time {
    Time(0) + Nanos::from(began.elapsed())
}

impl DiskThread {
    pub(super) fn new(parts: UsdParts) -> Result<Self, UsdError> {
        let UsdConfig { model, bound, spin } = parts.config;
        let mut ring = Ring::new()?;
        ring.watch(parts.bell.as_raw_fd(), RingEvent::CommandSender)
            .map_err(|errno| UsdError::Ring { errno })?;
        if let Some(transport) = &parts.transport {
            ring.watch(transport.poll_fd().as_raw_fd(), RingEvent::Transport)
                .map_err(|errno| UsdError::Ring { errno })?;
        }
        Ok(Self {
            device: parts.device,
            transport: parts.transport,
            background: None,
            model,
            poll_policy: PollPolicy::new(spin.into()),
            priority_window: PriorityWindow::default(),
            commands: parts.commands,
            bell: parts.bell,
            events: parts.events,
            began: parts.began,
            atropos: Atropos::new(model.capacity, bound, parts.trace),
            ring,
            clients: Vec::new(),
            awake: Vec::new(),
            ended: Vec::with_capacity(256),
            answered: Vec::with_capacity(256),
            doorbells: Doorbells::default(),
            closed: ClosedChannels::start().map_err(|why| UsdError::thread(&why))?,
            sleeps: 0,
            stopped: None,
        })
    }

    pub(super) fn run(mut self) {
        loop {
            let now = time_since(self.began);
            if self.stopped.is_some_and(|since| self.is_over(since, now)) {
                return;
            }
            if let Some(priority) = self.priority_window.on_iteration(now) {
                self.set_real_time(priority);
            }
            if self.priority_window.is_turn_over(now) {
                rustix::thread::sched_yield();
            }
            self.doorbells.rearm(&mut self.ring, now, &mut self.clients);
            let heard = self.drain_events(now);
            let taken = self.take_requests(now);
            if let (Some(own), Some(transport)) = (&mut self.background, &mut self.transport) {
                if taken {
                    own.note_client(now);
                }
                own.queue(now, &mut self.atropos, &mut **transport, &self.model);
            }
            let next = self.schedule(now);
            self.ring.submit();
            if let Some(transport) = &mut self.transport {
                transport.flush(now);
            }
            self.notify_completions(now);
            let in_flight = self.in_flight();
            let full = next.full.then(|| self.atropos.bound());
            if heard || taken || next.started {
                let now = time_since(self.began);
                self.poll_policy.on_activity(now, taken);
            } else if self.poll_policy.should_poll(now, in_flight, full) {
                self.pause();
            } else {
                self.sleep(now, next.until);
            }
        }
    }

    /// Between two probes. The peer of a transport may wait for this very processor, and so may a thread with
    /// the same real-time priority that a completion woke. An ordinary thread that yields to programs
    /// that compute has its processor back at the next tick, after 4 ms: pages were read at a third of
    /// the rate.
    fn pause(&self) {
        match self.transport.is_some() || self.priority_window.is_held() {
            true => rustix::thread::sched_yield(),
            false => std::hint::spin_loop(),
        }
    }

    /// Parts of transactions in flight.
    fn in_flight(&self) -> usize {
        let transport = self.transport.as_ref();
        self.ring.in_flight() + transport.map_or(0, |transport| transport.in_flight())
    }

    /// Returns true if the thread, which was stopped at a time, waits for no part any more.
    fn is_over(&self, stopped: Time, now: Time) -> bool {
        let is_grace_over = now >= stopped + TRANSPORT_GRACE;
        match is_grace_over {
            true => self.ring.in_flight() == 0,
            false => self.in_flight() == 0,
        }
    }

    /// Handles completions, rings and commands. Returns true if there were any.
    fn drain_events(&mut self, now: Time) -> bool {
        let mut all = std::mem::take(&mut self.ended);
        self.ring.reap(&mut all);
        let mut any = false;
        for (ended, result) in all.drain(..) {
            match ended {
                RingEvent::Part {
                    client,
                    transaction,
                } => self.on_part_completed(now, client, transaction, result),
                RingEvent::Bell { client, number } if !self.on_doorbell(now, client, number) => {
                    continue;
                }
                RingEvent::CommandSender => self.run_commands(now),
                RingEvent::Transport => self.watch_transport(),
                RingEvent::Bell { .. } | RingEvent::Nothing => {}
            }
            any = true;
        }
        self.ended = all;
        while let Some((part, result)) = self.transport.as_mut().and_then(|it| it.reap(now)) {
            self.on_part_completed(now, part.client, part.transaction, result);
            any = true;
        }
        any |= self.set_waiting_aside(now);
        if let (Some(own), Some(transport)) = (&mut self.background, &mut self.transport) {
            any |= own.complete(now, &mut self.atropos, &mut **transport);
        }
        any
    }

    /// Watches the transport anew: what is readable now is reaped after this.
    fn watch_transport(&mut self) {
        if let Some(transport) = &self.transport {
            let fd = transport.poll_fd().as_raw_fd();
            let watched = self.ring.watch(fd, RingEvent::Transport);
            debug_assert!(watched.is_ok(), "{watched:?}");
        }
    }

    pub(super) fn client(&mut self, at: u32) -> Option<&mut Client> {
        client_at(&mut self.clients, at)
    }

    pub(super) fn on_part_completed(&mut self, now: Time, at: u32, transaction: u32, result: i32) {
        self.poll_policy.on_completion(now);
        let Some(client) = self.client(at) else {
            return;
        };
        let ended = &mut client.window[transaction as usize];
        ended.complete_part(result);
        let (over, channel) = (ended.in_flight == 0, ended.channel);
        if let Some(channel) = client.channel(channel) {
            channel.in_flight -= 1;
        }
        if over {
            self.complete(now, at, transaction);
        }
    }

    /// Completes a transaction with nothing in flight.
    pub(super) fn complete(&mut self, now: Time, at: u32, transaction: u32) {
        if let Some(own) = &mut self.background {
            own.note_client(now);
        }
        let Some(client) = client_at(&mut self.clients, at) else {
            return;
        };
        let over = &client.window[transaction as usize];
        let result = match &client.target {
            Some(target) => over.result(target),
            None => over.result,
        };
        let (id, slot) = (over.channel, over.slot);
        if !over.is_waiting {
            self.atropos.complete(now, over.ticket, now - over.started);
        }
        client.counted.on_completion(now - over.taken, result < 0);
        client.release_slot(transaction);
        if let Some(channel) = client.channel(id) {
            let is_due = channel.complete(slot, result);
            if channel.is_drained() {
                channel.notify_completions(true);
                return self.release_closed(at);
            }
            if is_due {
                self.answered.push((at, id, now + LONGEST_UNSIGNALLED));
            }
        }
    }

    /// Handles a doorbell: polls the client's channels again. Returns false if the client exceeded
    /// its budget of spurious wake-ups.
    fn on_doorbell(&mut self, now: Time, at: u32, number: u32) -> bool {
        let Some(client) = client_at(&mut self.clients, at) else {
            return false;
        };
        match self
            .doorbells
            .on_ring(&mut self.ring, now, (at, client), number)
        {
            Rang::Stale => false,
            rang => {
                client.wake();
                self.wake(at);
                rang == Rang::Believed
            }
        }
    }

    pub(super) fn wake(&mut self, at: u32) {
        if !self.awake.contains(&at) {
            self.awake.push(at);
        }
    }

    /// Takes requests while the windows have room. Returns true if it took any.
    fn take_requests(&mut self, now: Time) -> bool {
        if self.stopped.is_some() {
            return false;
        }
        let mut any = false;
        for place in 0..self.awake.len() {
            let at = self.awake[place];
            // A client occupies the thread for one window at most.
            for _ in 0..WINDOW {
                let Some(client) = client_at(&mut self.clients, at) else {
                    break;
                };
                match client.take_request(now) {
                    Received::Request(transaction) => {
                        let asked = &client.window[transaction as usize];
                        let (op, bytes) = (asked.model_op(), asked.bytes());
                        let job = TransactionDesc {
                            op,
                            bytes,
                            cost: self.model.cost(op, bytes),
                            tag: tag(at, transaction),
                        };
                        self.atropos.submit(now, client.id, job);
                    }
                    Received::Refused(due) => {
                        client.counted.on_completion(Nanos::ZERO, true);
                        let by = now + LONGEST_UNSIGNALLED;
                        self.answered.extend(due.map(|channel| (at, channel, by)));
                        // It costs no disk time: one a turn.
                        any = true;
                        break;
                    }
                    Received::Corrupt(channel, why) => {
                        client.close(channel);
                        self.events.send(UsdEvent::CutOff { channel, why });
                        self.release_closed(at);
                    }
                    Received::End(channel) => {
                        client.close(channel);
                        self.release_closed(at);
                    }
                    Received::Nothing => break,
                }
                any = true;
            }
        }
        any
    }

    /// Signals clients that sleep and have completions.
    fn notify_completions(&mut self, now: Time) {
        let clients = &mut self.clients;
        self.answered.retain(|&(at, id, by)| {
            let client = client_at(clients, at);
            let channel = client.and_then(|client| client.channel(id));
            channel.is_some_and(|channel| !channel.notify_completions(now >= by))
        });
    }

    fn sleep(&mut self, now: Time, until: Option<Time>) {
        let clients = &mut self.clients;
        let mut more = false;
        self.awake.retain(|&at| {
            let Some(client) = client_at(clients, at) else {
                return false;
            };
            let asleep = client.sleep();
            more |= !asleep && client.has_room();
            !asleep
        });
        if !more {
            self.sleeps += 1;
            self.priority_window.on_sleep();
            let asked = self.transport.as_ref().and_then(|it| it.next_due());
            let stop = (self.stopped.map(|since| since + TRANSPORT_GRACE)).filter(|at| now < *at);
            let signal = self.answered.iter().map(|answered| answered.2).min();
            let due = [self.doorbells.next_due(), asked, until, stop, signal];
            let until = due.into_iter().flatten().min();
            let time = until.map(|until| Duration::from(until - now));
            self.ring.sleep(time);
        }
    }
}

/// A transaction's tag for the scheduler: the client's index, and its own in the window.
fn tag(client: u32, transaction: u32) -> u64 {
    (u64::from(client) << 32) | u64::from(transaction)
}

pub(super) fn untag(tag: u64) -> (u32, u32) {
    ((tag >> 32) as u32, tag as u32)
}
