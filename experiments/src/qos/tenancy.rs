//! A linked program's contract with the system domain: a thread that speaks for it.
//!
//! What the keeper of a process tree does for `selfpage run --system`, done inside the
//! program: it gets IO channels for the pager's threads, and has frames given back that are
//! asked for ([`system::tenant::Tenant`]).
//!
//! Rule: the thread touches no stretch and allocates on its own account only. Who opens a
//! channel waits for it, and that is when the domain is made, not in a fault.

use crate::ExperimentError;
use crate::error::while_doing;
use iochannel::Client;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use selfpage::{Ledger, SharedStore};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use store::{DiskConfig, Outlet, StoreConfig};
use system::tenant::{Heard, Tenant, Wanted};

/// How often frames that are to be given back are counted.
const COUNT: Duration = Duration::from_millis(1);

/// Holders that the store has room for: none, and the one domain.
const HOLDERS: u16 = 2;

/// How often a greedy tenant says that it wants more.
const GREED: Duration = Duration::from_millis(2);

/// What a tenant is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// It gives frames back that it is asked for; else it does nothing, whatever becomes of
    /// it.
    pub answers: bool,
    /// It says that it wants more as long as it may have more, not only when its pager finds
    /// none.
    pub greedy: bool,
}

/// Somebody waits for a channel.
struct Wish {
    depth: u16,
    reply: Sender<Result<Client, Errno>>,
}

/// The way to the thread.
struct Line {
    wishes: Sender<Wish>,
    bell: OwnedFd,
}

impl Line {
    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// A store's end of it.
struct Way(Arc<Line>);

impl Outlet for Way {
    fn open(&self, depth: usize) -> Result<Client, Errno> {
        let (reply, answer) = channel();
        let depth = u16::try_from(depth).map_err(|_| Errno::INVAL)?;
        let wish = Wish { depth, reply };
        self.0.wishes.send(wish).map_err(|_| Errno::PIPE)?;
        self.0.ring();
        answer.recv().map_err(|_| Errno::PIPE)?
    }

    /// One process, which does not fork: nobody's requests outlive him.
    fn settle(&self) {}
}

/// A contract. It is kept until the process ends: a tenant that hangs up is ended by the
/// system domain, whatever it is doing.
pub struct Tenancy {
    asked: Arc<AtomicU64>,
}

impl Tenancy {
    /// Asks for a contract; with the books and the store of a domain that has it.
    pub fn join(
        path: &Path,
        wanted: &Wanted,
        manner: Manner,
    ) -> Result<(Self, Ledger, SharedStore), ExperimentError> {
        let failed = |why: &dyn std::fmt::Display| ExperimentError::Worker(why.to_string());
        let mut tenant = Tenant::join(path, wanted).map_err(|why| failed(&why))?;
        let terms = tenant.terms();
        let (ledger, books) =
            Ledger::create_limited(terms.frames.x, 0, 1).map_err(|why| failed(&why))?;
        let view = Ledger::attach(&books).map_err(|why| failed(&why))?;
        let hunger = fcntl_dupfd_cloexec(tenant.hunger(), 0).map_err(while_doing("copy a bell"))?;
        ledger.set_bell(hunger);
        tenant.start(books).map_err(|why| failed(&why))?;
        let config = StoreConfig {
            ram: None,
            disk: Some(DiskConfig::by_system(terms.swap)),
        };
        let (store, _descriptors) =
            SharedStore::create(&config, HOLDERS).map_err(|why| failed(&why))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(while_doing("make a bell"))?;
        let (wishes, wanted) = channel();
        let line = Arc::new(Line { wishes, bell });
        store.set_outlet(Box::new(Way(line.clone())));
        let asked = Arc::new(AtomicU64::new(0));
        let steward = Steward {
            tenant,
            view,
            line,
            wanted,
            waiting: HashMap::new(),
            next: 0,
            round: None,
            manner,
            asked: asked.clone(),
        };
        std::thread::Builder::new()
            .name("tenancy".into())
            .spawn(move || steward.serve())
            .map_err(while_doing("start a thread"))?;
        Ok((Self { asked }, ledger, store))
    }
}

impl Tenancy {
    /// How often frames were asked back.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

/// The thread.
struct Steward {
    tenant: Tenant,
    view: Ledger,
    line: Arc<Line>,
    wanted: Receiver<Wish>,
    waiting: HashMap<u64, Wish>,
    next: u64,
    /// The revocation under way: its number, and frames that may be kept.
    round: Option<(u32, u32)>,
    manner: Manner,
    /// Revocations so far.
    asked: Arc<AtomicU64>,
}

impl Steward {
    fn serve(mut self) {
        loop {
            while let Ok(wish) = self.wanted.try_recv() {
                self.next += 1;
                self.tenant.open(wish.depth, self.next);
                self.waiting.insert(self.next, wish);
            }
            for heard in self.tenant.dispatch() {
                self.hear(heard);
            }
            self.shed();
            self.want();
            self.wait();
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Opened {
                cookie,
                memory,
                bell,
                ..
            } => {
                if let Some(wish) = self.waiting.remove(&cookie) {
                    let doorbell = fcntl_dupfd_cloexec(self.tenant.doorbell(), 0);
                    let client = doorbell.and_then(|doorbell| {
                        Client::attach(memory, doorbell, bell).map_err(|_| Errno::PROTO)
                    });
                    let _ = wish.reply.send(client);
                }
            }
            Heard::NotOpened { cookie, .. } => {
                if let Some(wish) = self.waiting.remove(&cookie) {
                    let _ = wish.reply.send(Err(Errno::MFILE));
                }
            }
            Heard::Revoke { round, keep, .. } => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                self.round = Some((round, keep));
            }
            Heard::Changed { .. }
            | Heard::Faults(_)
            | Heard::Closed(_)
            | Heard::Gone
            | Heard::Back
            | Heard::Refused(_) => {}
        }
    }

    fn shed(&mut self) {
        let Some((round, keep)) = self.round.filter(|_| self.manner.answers) else {
            return;
        };
        self.view.shed(keep);
        if self.view.shed_done(keep) {
            self.tenant.answered(round);
            self.round = None;
        }
    }

    fn want(&self) {
        if self.manner.greedy && self.view.limit() < self.view.total() {
            self.view.hunger().store(1, Ordering::SeqCst);
            let _ = rustix::io::write(self.tenant.hunger(), &1u64.to_ne_bytes());
        }
    }

    /// Until something is said, somebody wants something, or it is time to look.
    fn wait(&self) {
        let patience = match (
            self.round.is_some() && self.manner.answers,
            self.manner.greedy,
        ) {
            (true, _) => Some(COUNT),
            (_, true) => Some(GREED),
            _ => self.tenant.patience(),
        };
        let limit = patience.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let bell = self.line.bell.as_fd();
        let fds = [Some(bell), self.tenant.fd()];
        let mut fds: Vec<PollFd<'_>> = fds
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // Interrupted or not: everything is looked at.
        let _ = poll(&mut fds, limit.as_ref());
        let _ = rustix::io::read(&self.line.bell, &mut [0; 8]);
    }
}
