//! Pending channel opens and the revocation in progress, for one contract.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: intrusive revocation, the
//! tenant's side. The supervisor of a tree and the thread of a linked program both reply to the
//! daemon by this; they differ in the type of a channel's waiter, and in what else they do.
//!
//! Rule: nothing here blocks. A channel that is requested while the daemon is away opens when
//! it is back.

use super::{Revocation, Session, SessionEvent};
use frames::Ledger;
use protocol::ChannelNumber;
use rustix::fd::BorrowedFd;
use std::collections::HashMap;
use std::time::Duration;

/// How often frames that are to be given back are counted.
const RECLAIM_POLL: Duration = Duration::from_millis(1);

/// One contract, with its pending requests.
pub struct SessionDriver<R> {
    session: Session,
    requesters: HashMap<u64, R>,
    next: u64,
    /// The revocation under way.
    revocation: Option<Revocation>,
}

impl<R> SessionDriver<R> {
    /// Of a contract that has begun.
    pub fn new(session: Session) -> Self {
        Self {
            session,
            requesters: HashMap::new(),
            next: 0,
            revocation: None,
        }
    }

    /// Rung by those who put requests into channels.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.session.doorbell()
    }

    /// Rung when more frames are wanted.
    pub fn pressure_bell(&self) -> BorrowedFd<'_> {
        self.session.pressure_bell()
    }

    /// Readable when there is something to do. Another one after [`SessionEvent::Resumed`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.session.fd()
    }

    /// When it wants to be called though nothing is readable.
    pub fn timeout(&self) -> Option<Duration> {
        let polling = self.revocation.is_some().then_some(RECLAIM_POLL);
        polling.or(self.session.timeout())
    }

    /// Gets a channel for `depth` operations at a time, for this requester.
    pub fn open(&mut self, depth: u16, requester: R) {
        self.next += 1;
        self.requesters.insert(self.next, requester);
        self.session.open(depth, self.next);
    }

    /// The requesters that wait for a channel.
    pub fn requesters(&self) -> impl Iterator<Item = &R> {
        self.requesters.values()
    }

    /// A channel is not needed any more.
    pub fn close(&mut self, channel: ChannelNumber) {
        self.session.close(channel);
    }

    /// Reports the measured cost of a fault.
    pub fn fault_unit(&self, unit: u64) {
        self.session.fault_unit(unit);
    }

    /// Returns true once the contract has ended.
    pub fn is_over(&self) -> bool {
        self.session.is_over()
    }

    /// Gives the contract back.
    pub fn leave(&mut self) {
        self.session.leave();
    }

    /// Handles pending messages, and returns the events.
    pub fn dispatch(&mut self, ledger: &Ledger) -> Vec<SessionEvent> {
        let events = self.session.dispatch();
        for event in &events {
            match event {
                SessionEvent::Revoke(revocation) => self.revocation = Some(*revocation),
                // The next daemon revokes anew, and counts its rounds anew.
                SessionEvent::Disconnected => {
                    if self.revocation.take().is_some() {
                        ledger.reclaim_to(u32::MAX);
                    }
                    end_lent_priority();
                }
                // No daemon will grant what is missing.
                SessionEvent::Refused(_) if self.session.is_over() => {
                    ledger.set_max_guaranteed(ledger.limit());
                }
                SessionEvent::Changed { terms, .. } => {
                    ledger.set_max_guaranteed(terms.frames.g);
                }
                _ => {}
            }
        }
        events
    }

    /// The requester of a channel that is there, or cannot be had.
    pub fn take_requester(&mut self, cookie: u64) -> Option<R> {
        self.requesters.remove(&cookie)
    }

    /// Has frames given back until there are few enough, and reports the revocation as done then.
    pub fn shed(&mut self, ledger: &Ledger) {
        let Some(Revocation { round, keep, .. }) = self.revocation else {
            return;
        };
        // Requested each time: processes come and go, and another process may serve it.
        ledger.reclaim_to(keep);
        if ledger.reclaim_done(keep) {
            self.session.acknowledge(round);
            self.revocation = None;
        }
        // Past the deadline, too: the daemon may have extended it.
    }
}

/// No daemon measures any more how long the threads of this tree come first.
fn end_lent_priority() {
    let own = rustix::process::getpid();
    host::lent_priority::end_all(host::process_tree::below(own).into_iter().chain([own]));
}
