//! Which hosts are in reach: SWIM by [`foca`], over UDP.
//!
//! A host learns of the first other one by its address (`--peers`, or the answer to a query on the link),
//! introduces itself by the control connection, and announces itself to that host by UDP; SWIM spreads it
//! from there, and finds out which hosts are gone.
//!
//! Rule: membership is advice. It says to which hosts bids are sent and which servers a client tries; what
//! a server obeys is an epoch, which comes over the control connections. So a forged datagram can waste
//! time, and neither promise nor take memory.

use crate::host::Event;
use crate::protocol::Member;
use foca::{
    AccumulatingRuntime, Config, Foca, Identity, NoCustomBroadcast, PeriodicParams, PostcardCodec,
    Timer,
};
use rand::rngs::StdRng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;
use tokio::net::UdpSocket;
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
/// The longest datagram: it fits one packet of an Ethernet.
const DATAGRAM: usize = 1400;

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
    socket: UdpSocket,
    /// What is due when; the second number keeps the order of what is due at once.
    timers: BinaryHeap<Reverse<(Instant, u64, DueTimer)>>,
    submitted: u64,
    events: Sender<Event>,
    /// This host, which is renewed when it is reached at another address.
    own: watch::Receiver<Member>,
}

/// A timer of foca's, ordered by what it is due at alone.
struct DueTimer(Timer<Member>);

impl PartialEq for DueTimer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for DueTimer {}

impl PartialOrd for DueTimer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DueTimer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

fn config() -> Config {
    let one = NonZeroUsize::MIN;
    Config {
        probe_period: PROBE,
        probe_rtt: ROUND_TRIP,
        suspect_to_down_after: SUSPECT,
        remove_down_after: Some(REMEMBERED),
        max_packet_size: NonZeroUsize::new(DATAGRAM).unwrap_or(one),
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
    pub fn new(own: watch::Receiver<Member>, socket: UdpSocket, events: Sender<Event>) -> Self {
        let member = own.borrow().clone();
        Self {
            foca: Foca::new(member, config(), rand::make_rng(), PostcardCodec),
            runtime: AccumulatingRuntime::new(),
            socket,
            timers: BinaryHeap::new(),
            submitted: 0,
            events,
            own,
        }
    }

    /// Keeps the membership, with the hosts that introduce themselves, until the host ends.
    pub async fn run(mut self, mut introduced: Receiver<Member>) {
        let mut datagram = [0; DATAGRAM];
        loop {
            let due = self.timers.peek().map(|Reverse((due, ..))| *due);
            let due = due.unwrap_or_else(|| Instant::now() + PROBE);
            let outcome = tokio::select! {
                received = self.socket.recv_from(&mut datagram) => self.on_datagram(received, &datagram),
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
            if self.settle().await.is_err() {
                return;
            }
        }
    }

    fn on_datagram(
        &mut self,
        received: io::Result<(usize, SocketAddr)>,
        datagram: &[u8],
    ) -> Result<(), foca::Error> {
        match received {
            Ok((length, _)) => self
                .foca
                .handle_data(&datagram[..length], &mut self.runtime),
            // A port that an earlier datagram did not reach, as the kernel reports it.
            Err(_) => Ok(()),
        }
    }

    fn on_timer(&mut self) -> Result<(), foca::Error> {
        let is_due = |timer: &Reverse<(Instant, u64, DueTimer)>| timer.0.0 <= Instant::now();
        if !self.timers.peek().is_some_and(is_due) {
            return Ok(());
        }
        match self.timers.pop() {
            Some(Reverse((_, _, DueTimer(timer)))) => {
                self.foca.handle_timer(timer, &mut self.runtime)
            }
            None => Ok(()),
        }
    }

    /// Does what the protocol wants done. `Err` if the host has ended.
    async fn settle(&mut self) -> Result<(), ()> {
        while let Some((to, bytes)) = self.runtime.to_send() {
            // A datagram that is lost is one that the protocol repeats.
            let _ = self.socket.try_send_to(&bytes, to.control);
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.submitted += 1;
            let due = Instant::now() + after;
            self.timers
                .push(Reverse((due, self.submitted, DueTimer(timer))));
        }
        let mut has_changed = false;
        while let Some(note) = self.runtime.to_notify() {
            tracing::debug!("membership: {note:?}");
            has_changed = true;
        }
        if !has_changed {
            return Ok(());
        }
        let members = self.foca.iter_members().map(|member| member.id().clone());
        let members = Event::Members(members.collect());
        self.events.send(members).await.map_err(drop)
    }
}
