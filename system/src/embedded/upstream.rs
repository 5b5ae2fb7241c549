//! The tree's side of its contract with the system's daemon: what the keeper does about it.
//!
//! Processes of the tree know their keeper only. It gets their IO channels for them, has the
//! frames that the daemon asks back collected from them (*Self-Paging*, section 6.2:
//! intrusive revocation), and brings the tree through a restart of the daemon.
//!
//! Rule: nothing here waits. Who asked for a channel while the daemon is away is answered
//! when it is back; a dead process's channels count as busy until the daemon says that
//! nothing of them is under way.

use crate::control::{ChannelNumber, FaultShare};
use crate::server::Event;
use crate::socket;
use crate::tenant::{Heard, Tenant};
use crate::terms::{Terms, Time};
use crate::wire::{Answer, Slot};
use frames::Ledger;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// How often frames that are to be given back are counted.
const COUNT: Duration = Duration::from_millis(1);

/// The keeper's own way to the disk: it moves no pages, and retires a process only when
/// [`Upstream::is_quiet`] says that nothing of it is under way.
pub(crate) struct NoPages;

impl store::Outlet for NoPages {
    fn open(&self, _: usize) -> Result<iochannel::Client, Errno> {
        Err(Errno::NOTCONN)
    }

    fn settle(&self) {}
}

/// Who waits for a channel.
struct Waiting {
    slot: Slot,
    reply: OwnedFd,
}

/// A revocation under way.
#[derive(Clone, Copy)]
struct Round {
    number: u32,
    keep: u32,
    deadline: Instant,
}

/// The contract with the daemon, as the keeper keeps it.
pub(crate) struct Upstream {
    tenant: Tenant,
    waiting: HashMap<u64, Waiting>,
    next: u64,
    channels: BTreeMap<ChannelNumber, Slot>,
    closing: HashSet<ChannelNumber>,
    /// Slots whose process has gone.
    gone: HashSet<Slot>,
    round: Option<Round>,
    /// A share of the faults that is not in force yet.
    faults: Option<FaultShare>,
}

impl Upstream {
    pub fn new(tenant: Tenant) -> Self {
        Self {
            tenant,
            waiting: HashMap::new(),
            next: 0,
            channels: BTreeMap::new(),
            closing: HashSet::new(),
            gone: HashSet::new(),
            round: None,
            faults: None,
        }
    }

    /// A share of the faults that has come since this was last asked.
    pub fn new_share(&mut self) -> Option<FaultShare> {
        self.faults.take()
    }

    /// Says what a fault costs.
    pub fn fault_unit(&self, unit: u64) {
        self.tenant.fault_unit(unit);
    }

    /// The contract.
    pub fn terms(&self) -> Terms {
        self.tenant.terms()
    }

    /// Rung when more frames are wanted.
    pub fn hunger(&self) -> BorrowedFd<'_> {
        self.tenant.hunger()
    }

    /// Readable when there is something to do. Another one after [`Event::Back`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.tenant.fd()
    }

    /// When it wants to be called though nothing is readable.
    pub fn patience(&self) -> Option<Duration> {
        let counting = self.round.is_some().then_some(COUNT);
        counting.or(self.tenant.patience())
    }

    /// Gets a channel for the process in `slot`; it is answered on `reply`.
    pub fn open(&mut self, slot: Slot, depth: u16, reply: OwnedFd) {
        self.next += 1;
        self.gone.remove(&slot);
        self.waiting.insert(self.next, Waiting { slot, reply });
        self.tenant.open(depth, self.next);
    }

    /// The process in `slot` has gone: whether nothing of it is under way any more.
    pub fn is_quiet(&mut self, slot: Slot) -> bool {
        self.gone.insert(slot);
        let own = |(channel, of): (&ChannelNumber, &Slot)| (*of == slot).then_some(*channel);
        let channels: Vec<_> = self.channels.iter().filter_map(own).collect();
        for channel in &channels {
            if self.closing.insert(*channel) {
                self.tenant.close(*channel);
            }
        }
        channels.is_empty() && self.waiting.values().all(|waiting| waiting.slot != slot)
    }

    /// Does what is to be done, and tells what happened.
    pub fn dispatch(&mut self, ledger: &Ledger, happened: &mut Vec<Event>) {
        for heard in self.tenant.dispatch() {
            match heard {
                Heard::Opened {
                    cookie,
                    channel,
                    memory,
                    bell,
                } => self.opened(cookie, channel, &memory, &bell),
                Heard::NotOpened { cookie, why } => {
                    if let Some(waiting) = self.waiting.remove(&cookie) {
                        answer(&waiting.reply, Answer::Refused(why.as_bytes()), &[]);
                    }
                }
                Heard::Closed(channel) => {
                    self.channels.remove(&channel);
                    self.closing.remove(&channel);
                }
                Heard::Revoke {
                    round,
                    keep,
                    deadline,
                } => {
                    self.round = Some(Round {
                        number: round,
                        keep,
                        deadline,
                    });
                }
                Heard::Faults(share) => self.faults = Some(share),
                Heard::Changed { terms, notice } => {
                    ledger.assure(terms.frames.g);
                    say(happened, changed(&terms, notice));
                }
                Heard::Gone => say(
                    happened,
                    "the system domain has ended: what needs its disk waits until it is started again".into(),
                ),
                Heard::Back => happened.push(Event::Back),
                Heard::Refused(why) => say(
                    happened,
                    format!("the system domain does not take this contract back: {why}"),
                ),
            }
        }
        self.shed(ledger);
    }

    fn opened(&mut self, cookie: u64, channel: ChannelNumber, memory: &OwnedFd, bell: &OwnedFd) {
        let Some(Waiting { slot, reply }) = self.waiting.remove(&cookie) else {
            self.closing.insert(channel);
            return self.tenant.close(channel);
        };
        self.channels.insert(channel, slot);
        let fds = [memory.as_fd(), self.tenant.doorbell(), bell.as_fd()];
        if self.gone.contains(&slot) || !answer(&reply, Answer::Channel, &fds) {
            self.closing.insert(channel);
            self.tenant.close(channel);
        }
    }

    /// Has frames given back until there are few enough, and says so then.
    fn shed(&mut self, ledger: &Ledger) {
        let Some(Round {
            number,
            keep,
            deadline,
        }) = self.round
        else {
            return;
        };
        // Asked every time: processes come and go, and what one promised another may give.
        ledger.shed(keep);
        if ledger.shed_done(keep) {
            self.tenant.answered(number);
            self.round = None;
        } else if Instant::now() > deadline {
            // Too late: what follows is the daemon's to decide.
            self.round = None;
        }
    }
}

fn say(happened: &mut Vec<Event>, text: String) {
    happened.push(Event::Notice {
        pid: rustix::process::getpid(),
        text,
    });
}

fn changed(terms: &Terms, notice: Duration) -> String {
    match notice.is_zero() {
        true => format!("the contract is now: {terms}"),
        false => format!(
            "the contract becomes: {terms}; what is less of it in {}",
            Time(notice)
        ),
    }
}

fn answer(reply: &OwnedFd, what: Answer, fds: &[BorrowedFd<'_>]) -> bool {
    socket::send(reply, what.encode().as_slice(), fds, SendFlags::DONTWAIT).is_ok()
}
