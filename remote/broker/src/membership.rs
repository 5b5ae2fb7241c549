//! Which hosts are in reach: SWIM by [`foca`], over UDP.
//!
//! A host learns of the first other one by its address (`--peers`, or the answer to a query on the link),
//! introduces itself by the control connection, and announces itself to that host by UDP; SWIM spreads it
//! from there, and finds out which hosts are gone.
//!
//! Rule: membership is advice. It says to which hosts bids are sent and which servers a client tries; what
//! a server obeys is an epoch, which comes over the control connections. In a cluster only members' datagrams are
//! read; in the clear any host can forge them. So members are bounded, and reported a few times a second at most: a
//! forged datagram can waste time and hide a host, and neither promise nor take memory.

use crate::host::Event;
use crate::known_part::known_part;
use crate::member_timers::MemberTimers;
use crate::membership_socket::MembershipSocket;
use crate::protocol::Member;
use foca::{
    AccumulatingRuntime, Config, Foca, Identity, NoCustomBroadcast, PeriodicParams, PostcardCodec,
};
use rand::rngs::StdRng;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How often a member is probed, and how long its answer may take. A client waits two seconds at most for
/// another broker, so a host that is gone is suspected within one.
const PROBE: Duration = Duration::from_millis(500);
const ROUND_TRIP: Duration = Duration::from_millis(200);
/// How long a suspected member may take to object.
const SUSPECT: Duration = Duration::from_secs(2);
/// How long a member that is gone is remembered, and announced to: the longest partition after which its
/// sides find each other without a seed or a query.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// How often it is announced to.
const REVIVE: Duration = Duration::from_secs(1);
/// How often news is gossiped.
const GOSSIP: Duration = Duration::from_millis(200);
/// Most members, those that are down among them: as many as may be connected.
const MAX_MEMBERS: usize = 1024;
/// How soon after a change the next one is reported.
const REPORT: Duration = PROBE;

impl Identity for Member {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Self> {
        let since = self.since + 1;
        Some(Self {
            since,
            ..self.clone()
        })
    }

    fn addr(&self) -> SocketAddr {
        self.control
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.since > adversary.since
    }
}

/// The membership of one host.
pub struct Membership {
    foca: Foca<Member, PostcardCodec, StdRng, NoCustomBroadcast>,
    runtime: AccumulatingRuntime<Member>,
    socket: MembershipSocket,
    timers: MemberTimers,
    events: Sender<Event>,
    /// The members that were reported last, by address, and when others may be.
    reported: Vec<Member>,
    next_report: Instant,
    has_changed: bool,
    /// This host, which is renewed when it is reached at another address.
    own: watch::Receiver<Member>,
}

fn config(longest: usize) -> Config {
    let one = NonZeroUsize::MIN;
    Config {
        probe_period: PROBE,
        probe_rtt: ROUND_TRIP,
        suspect_to_down_after: SUSPECT,
        remove_down_after: Some(REMEMBERED),
        max_packet_size: NonZeroUsize::new(longest).unwrap_or(one),
        notify_down_members: true,
        periodic_announce_to_down_members: Some(PeriodicParams {
            frequency: REVIVE,
            num_members: one.saturating_add(1),
        }),
        periodic_gossip: Some(PeriodicParams {
            frequency: GOSSIP,
            num_members: one.saturating_add(2),
        }),
        ..Config::simple()
    }
}

impl Membership {
    /// The membership of `own`, which is alone at first.
    pub fn new(
        own: watch::Receiver<Member>,
        socket: MembershipSocket,
        events: Sender<Event>,
    ) -> Self {
        let member = own.borrow().clone();
        let config = config(socket.most());
        Self {
            foca: Foca::new(member, config, rand::make_rng(), PostcardCodec),
            runtime: AccumulatingRuntime::new(),
            socket,
            timers: MemberTimers::default(),
            events,
            reported: Vec::new(),
            next_report: Instant::now(),
            has_changed: false,
            own,
        }
    }

    /// Keeps the membership, with the hosts that introduce themselves, until the host ends.
    pub async fn run(mut self, mut introduced: Receiver<Member>) {
        loop {
            let due = self.timers.next_due();
            let due = due.unwrap_or_else(|| Instant::now() + PROBE);
            let due = match self.has_changed {
                true => due.min(self.next_report),
                false => due,
            };
            let outcome = tokio::select! {
                datagram = self.socket.receive() => self.on_datagram(&datagram),
                member = introduced.recv() => match member {
                    Some(member) => self.foca.announce(member, &mut self.runtime),
                    None => return,
                },
                Ok(()) = self.own.changed() => {
                    let own = self.own.borrow_and_update().clone();
                    self.foca.change_identity(own, &mut self.runtime)
                }
                () = sleep_until(due) => self.on_timer(),
            };
            if let Err(why) = outcome {
                tracing::debug!("membership: {why}");
            }
            self.settle();
            if self.report().await.is_err() {
                return;
            }
        }
    }

    fn on_datagram(&mut self, datagram: &[u8]) -> Result<(), foca::Error> {
        if self.has_room() {
            return self.foca.handle_data(datagram, &mut self.runtime);
        }
        let own = self.foca.identity().control;
        let is_known = |member: &Member| {
            let mut known = self.foca.iter_membership_state();
            member.control == own || known.any(|it| it.id().control == member.control)
        };
        match known_part(datagram, is_known) {
            Some(part) => self.foca.handle_data(&part, &mut self.runtime),
            None => Ok(()),
        }
    }

    fn has_room(&self) -> bool {
        self.foca.iter_membership_state().len() < MAX_MEMBERS
    }

    fn on_timer(&mut self) -> Result<(), foca::Error> {
        if !self.has_room()
            && let Some(timer) = self.timers.pop_down()
        {
            // It makes room for another, one at a time, so that a flood of invented members gains little by it.
            self.foca.handle_timer(timer, &mut self.runtime)?;
        }
        match self.timers.pop_due() {
            Some(timer) => self.foca.handle_timer(timer, &mut self.runtime),
            None => Ok(()),
        }
    }

    /// Does what the protocol wants done.
    fn settle(&mut self) {
        while let Some((to, bytes)) = self.runtime.to_send() {
            // A datagram that is lost is one that the protocol repeats.
            let _ = self.socket.send(&bytes, to.control);
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.timers.push(after, timer);
        }
        while let Some(note) = self.runtime.to_notify() {
            tracing::debug!("membership: {note:?}");
            self.has_changed = true;
        }
    }

    /// Reports the members if they are others than before, and the last report is a while ago. `Err` if the host has
    /// ended.
    async fn report(&mut self) -> Result<(), ()> {
        let now = Instant::now();
        if !self.has_changed || now < self.next_report {
            return Ok(());
        }
        self.has_changed = false;
        let members = self.foca.iter_members().map(|member| member.id().clone());
        let mut members: Vec<_> = members.collect();
        members.sort_unstable_by_key(|member| member.control);
        if members == self.reported {
            return Ok(());
        }
        self.next_report = now + REPORT;
        self.reported.clone_from(&members);
        let event = Event::Members(members);
        self.events.send(event).await.map_err(drop)
    }
}

#[cfg(test)]
mod tests;
