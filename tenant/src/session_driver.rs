//! Pending channel opens and the revocation in progress, for one contract.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: intrusive revocation, the
//! tenant's side. The supervisor of a tree and the thread of a linked program both reply to the
//! daemon by this; they differ in the type of a channel's waiter, and in what else they do.
//!
//! Rule: nothing here blocks. A channel that is requested while the daemon is away opens when
//! it is back.

use super::{Session, TenantEvent};
use frames::Ledger;
use protocol::contract_spec::ContractSpec;
use protocol::{ChannelNumber, FaultShare};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How often frames that are to be given back are counted.
const COUNT: Duration = Duration::from_millis(1);

/// The revocation in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Its number.
    pub round: u32,
    /// Frames that may be kept.
    pub keep: u32,
    /// Deadline for the others to be unused, on a machine with processors to spare: the daemon
    /// extends it by the time that threads wait for a processor. The tenant is killed if it is
    /// missed.
    pub deadline: Instant,
}

/// An event of the session, with the waiter `W` that it is for.
pub enum SessionEvent<W> {
    /// A channel is there.
    Opened {
        /// The waiter.
        who: W,
        /// Its number.
        channel: ChannelNumber,
        /// Its memory.
        memory: OwnedFd,
        /// What is rung for its client.
        bell: OwnedFd,
    },
    /// A channel cannot be had.
    NotOpened {
        /// The waiter.
        who: W,
        /// Why.
        why: String,
    },
    /// Nothing of a channel is under way any more.
    Closed(ChannelNumber),
    /// A revocation, which [`SessionDriver::shed`] serves.
    Asked(Revocation),
    /// It may have so many faults from now on.
    Faults(FaultShare),
    /// The contract changes to this; what becomes less does so after this time.
    Changed(ContractSpec, Duration),
    /// The daemon has ended.
    Gone,
    /// A daemon is there again.
    Back,
    /// The daemon does not take the contract back.
    Refused(String),
    /// The contract was given back.
    Left,
    /// The contract cannot be given back.
    Stays(String),
}

/// One contract, with its pending requests.
pub struct SessionDriver<W> {
    tenant: Session,
    waiting: HashMap<u64, W>,
    next: u64,
    /// The revocation under way.
    round: Option<Revocation>,
}

impl<W> SessionDriver<W> {
    /// Of a contract that has begun.
    pub fn new(tenant: Session) -> Self {
        Self {
            tenant,
            waiting: HashMap::new(),
            next: 0,
            round: None,
        }
    }

    /// The contract.
    pub fn terms(&self) -> ContractSpec {
        self.tenant.terms()
    }

    /// Rung by those who put requests into channels.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.tenant.doorbell()
    }

    /// Rung when more frames are wanted.
    pub fn hunger(&self) -> BorrowedFd<'_> {
        self.tenant.hunger()
    }

    /// Readable when there is something to do. Another one after [`SessionEvent::Back`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.tenant.fd()
    }

    /// When it wants to be called though nothing is readable.
    pub fn patience(&self) -> Option<Duration> {
        let counting = self.round.is_some().then_some(COUNT);
        counting.or(self.tenant.patience())
    }

    /// Gets a channel for `depth` operations at a time, for this one.
    pub fn open(&mut self, depth: u16, who: W) {
        self.next += 1;
        self.waiting.insert(self.next, who);
        self.tenant.open(depth, self.next);
    }

    /// Those that wait for a channel.
    pub fn waiting(&self) -> impl Iterator<Item = &W> {
        self.waiting.values()
    }

    /// A channel is not needed any more.
    pub fn close(&mut self, channel: ChannelNumber) {
        self.tenant.close(channel);
    }

    /// Reports the measured cost of a fault.
    pub fn fault_unit(&self, unit: u64) {
        self.tenant.fault_unit(unit);
    }

    /// Gives the contract back.
    pub fn leave(&mut self) {
        self.tenant.leave();
    }

    /// Handles pending messages, and returns the events.
    pub fn dispatch(&mut self, ledger: &Ledger) -> Vec<SessionEvent<W>> {
        let mut happened = Vec::new();
        for heard in self.tenant.dispatch() {
            happened.extend(self.take(heard, ledger));
        }
        happened
    }

    fn take(&mut self, heard: TenantEvent, ledger: &Ledger) -> Option<SessionEvent<W>> {
        Some(match heard {
            TenantEvent::Opened {
                cookie,
                channel,
                memory,
                bell,
            } => match self.waiting.remove(&cookie) {
                Some(who) => SessionEvent::Opened {
                    who,
                    channel,
                    memory,
                    bell,
                },
                None => {
                    self.tenant.close(channel);
                    return None;
                }
            },
            TenantEvent::NotOpened { cookie, why } => {
                let who = self.waiting.remove(&cookie)?;
                SessionEvent::NotOpened { who, why }
            }
            TenantEvent::Closed(channel) => SessionEvent::Closed(channel),
            TenantEvent::Revoke {
                round,
                keep,
                deadline,
            } => {
                let asked = Revocation {
                    round,
                    keep,
                    deadline,
                };
                self.round = Some(asked);
                SessionEvent::Asked(asked)
            }
            TenantEvent::Changed { terms, notice } => {
                ledger.set_max_guaranteed(terms.frames.g);
                SessionEvent::Changed(terms, notice)
            }
            TenantEvent::Faults(share) => SessionEvent::Faults(share),
            TenantEvent::Gone => {
                // The next daemon revokes anew, and counts its rounds anew.
                self.round = None;
                SessionEvent::Gone
            }
            TenantEvent::Back => SessionEvent::Back,
            TenantEvent::Refused(why) => SessionEvent::Refused(why),
            TenantEvent::Left => SessionEvent::Left,
            TenantEvent::Stays(why) => SessionEvent::Stays(why),
        })
    }

    /// Has frames given back until there are few enough, and reports the revocation as done then.
    pub fn shed(&mut self, ledger: &Ledger) {
        let Some(Revocation { round, keep, .. }) = self.round else {
            return;
        };
        // Requested each time: processes come and go, and another process may serve it.
        ledger.reclaim_to(keep);
        if ledger.reclaim_done(keep) {
            self.tenant.answered(round);
            self.round = None;
        }
        // Past the deadline, too: the daemon may have extended it.
    }
}
