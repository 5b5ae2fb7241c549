//! The thread that keeps a lease in etcd and campaigns with it for the broker's key.
//!
//! Rule: what is held is what etcd last read as held. An answer that was lost (the key may be taken, and the
//! thread does not know) is found by the next read, which compares the key's lease with this thread's own.

use super::EtcdAddress;
use super::gateway::{Gateway, GatewayError, Holder, Taken};
use crate::host::Event;
use crate::protocol::Member;
use crate::seat::LeaseEvent;
use remote_policy::identity::HostId;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

/// How long a lease lives after it was renewed last. A holder whose process has ended is found by its connections;
/// this is for one that is silent.
const LEASE: Duration = Duration::from_secs(4);
/// How often it is renewed, and the key is read.
const PERIOD: Duration = Duration::from_secs(1);

/// What the seat asks of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeatRequest {
    /// Where this host holds the key, hold it with a number above this one.
    ConfirmAbove(u64),
    /// The process of this host has ended: its key may go.
    EndLeaseOf(HostId),
    /// Most hosts do not answer this one, and one that they answer may take its key.
    OfferLease,
}

/// What the seat knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    Held(u64),
    HeldBy { host: HostId, revision: u64 },
}

/// The campaign of one host.
pub struct Campaign {
    gateway: Gateway,
    key: String,
    /// This host, as others reach it now.
    own: watch::Receiver<Member>,
    events: UnboundedSender<Event>,
    lease: Option<i64>,
    /// Numbers that this host's epoch is to be above.
    above: u64,
    /// The revision at which a host took the key whose process has ended. Its next process takes it at another.
    ended: Option<u64>,
    /// The key is left to other hosts until then.
    offered_until: Option<Instant>,
    reported: Reported,
    is_failing: bool,
}

impl Campaign {
    /// A campaign of `own`. News goes to `events`.
    pub fn new(
        address: &EtcdAddress,
        own: watch::Receiver<Member>,
        events: UnboundedSender<Event>,
    ) -> Self {
        Self {
            gateway: Gateway::new(address.endpoints.clone(), &address.key),
            key: address.key.clone(),
            own,
            events,
            lease: None,
            above: 0,
            ended: None,
            offered_until: None,
            reported: Reported::Nothing,
            is_failing: false,
        }
    }

    /// Campaigns until there is no seat any more.
    pub fn run(mut self, commands: &Receiver<SeatRequest>) {
        loop {
            match self.step() {
                Ok(()) if self.is_failing => {
                    self.is_failing = false;
                    tracing::info!("etcd answers again");
                }
                Ok(()) => {}
                Err(why) if !self.is_failing => {
                    self.is_failing = true;
                    tracing::warn!(
                        "no lease in etcd ({why}): the broker that there is goes on, and no other is elected meanwhile"
                    );
                }
                Err(why) => tracing::debug!("{why}"),
            }
            match commands.recv_timeout(PERIOD) {
                Ok(command) => self.note(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while let Ok(command) = commands.try_recv() {
                self.note(command);
            }
        }
        if let Some(lease) = self.lease {
            // Where etcd does not answer, it ends the lease by itself.
            let _ = self.gateway.revoke(lease);
        }
    }

    fn note(&mut self, command: SeatRequest) {
        match command {
            SeatRequest::ConfirmAbove(number) => self.above = self.above.max(number),
            SeatRequest::EndLeaseOf(ended) => match self.reported {
                Reported::HeldBy { host, revision } if host == ended => {
                    self.ended = Some(revision);
                }
                // Its lease ends by itself.
                _ => {}
            },
            SeatRequest::OfferLease => self.offer_lease(),
        }
    }

    /// Gives the key back for as long as each other host takes to read that it is free.
    fn offer_lease(&mut self) {
        tracing::warn!(
            "the servers of most hosts do not answer this broker: another host that etcd answers may be broker"
        );
        self.offered_until = Some(Instant::now() + LEASE);
        if let Some(lease) = self.lease.take() {
            // Where etcd does not answer, it ends the lease by itself.
            let _ = self.gateway.revoke(lease);
        }
    }

    fn step(&mut self) -> Result<(), GatewayError> {
        let lease = self.kept_lease()?;
        let value = serde_json::to_vec(&*self.own.borrow()).expect("a member is plain data");
        if let Some(holder) = self.gateway.holder()? {
            // Held with an earlier address it is taken anew.
            if holder.lease == lease && holder.value == value {
                self.report_held(holder.revision);
                return Ok(());
            }
            let member: Member = serde_json::from_slice(&holder.value)
                .map_err(|_| GatewayError::Foreign(self.key.clone()))?;
            if !self.has_ended(&member, &holder) {
                self.report_held_by(member, &holder);
                return Ok(());
            }
            self.gateway.remove(holder.revision)?;
        }
        self.ended = None;
        let is_offered = |until| Instant::now() < until;
        if self.offered_until.is_some_and(is_offered) {
            return Ok(());
        }
        if let Taken::At(revision) = self.gateway.take(lease, &value)? {
            self.report_held(revision);
        }
        Ok(())
    }

    /// Returns true if the process of a holder has ended: it is an earlier one of this host, or its connections
    /// were refused.
    fn has_ended(&self, member: &Member, holder: &Holder) -> bool {
        member.host() == self.own.borrow().host() || self.ended == Some(holder.revision)
    }

    /// The lease, which has not ended.
    fn kept_lease(&mut self) -> Result<i64, GatewayError> {
        if let Some(lease) = self.lease {
            if self.gateway.keep_alive(lease)? {
                return Ok(lease);
            }
            tracing::info!("this host's lease in etcd has ended: it takes another");
            self.lease = None;
        }
        let lease = self.gateway.grant(LEASE)?;
        self.lease = Some(lease);
        Ok(lease)
    }

    fn report_held(&mut self, revision: u64) {
        let number = match self.reported {
            Reported::Held(number) => number.max(revision),
            _ => revision,
        };
        let number = number.max(self.above.saturating_add(1));
        if self.reported != Reported::Held(number) {
            self.reported = Reported::Held(number);
            let _ = self.events.send(Event::Lease(LeaseEvent::Held { number }));
        }
    }

    fn report_held_by(&mut self, member: Member, holder: &Holder) {
        let reported = Reported::HeldBy {
            host: member.host(),
            revision: holder.revision,
        };
        if self.reported != reported {
            self.reported = reported;
            let _ = self.events.send(Event::Lease(LeaseEvent::HeldBy(member)));
        }
    }
}
