//! A linked program's contract with the daemon.
//!
//! From *Self-Paging in the Nemesis Operating System*, sections 6.2 and 6.7. What the supervisor of
//! a process tree does for `selfpage run --system` a thread does here, inside the program: it
//! gets IO channels for the pager's threads, has frames given back that are asked for, and
//! shows the contract to a daemon that was started again. `examples/linked.rs` is a whole
//! program.
//!
//! ```no_run
//! use selfpage::{DirectIo, Domain};
//! use std::path::Path;
//! use tenant::{LinkedTenant, ContractRequest};
//! # fn work(_: &Domain) -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
//!
//! let wanted = ContractRequest {
//!     name: "index".into(),
//!     frames: Some("512M+128M".parse()?),
//!     disk: Some("25ms/250ms".parse()?),
//!     swap: Some(2 << 30),
//!     ..ContractRequest::default()
//! };
//! let (mut tenant, share) = LinkedTenant::join(Path::new("/run/selfpage/system.sock"), &wanted)?;
//! let domain = Domain::builder()
//!     .frames(share.contract)
//!     .ledger(share.ledger)
//!     .shared_store(share.store)
//!     .direct_io(DirectIo::PinnedOnly)
//!     .build()?;
//! work(&domain)?;
//! drop(domain); // and its stretches
//! tenant.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Rules: the thread touches no stretch. Opening a channel blocks, which happens when the
//! domain is made and not in a fault. The contract ends when it was left, or with the process:
//! the daemon kills a tenant that disconnects without leaving, whatever it is doing. Where it is lost
//! (the next daemon has another swap file), pages that are on the disk fail with SIGBUS.
//! Until it has attached its ledger it owns nothing, and may disconnect.

use super::{ContractRequest, LinkedError, Revocation, Session, SessionEvent};
use frames::{Contract, Ledger};
use iochannel::ChannelClient;
use protocol::contract_spec::ContractSpec;
use protocol::{MIN_PROGRAM_FRAMES, TenantNumber};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use store::{DiskConfig, DiskTransport, SharedStore, StoreConfig};

/// Holders that the store has room for: none, and the one domain.
const HOLDERS: u16 = 2;

/// How often an eager tenant requests more.
const EAGER: Duration = Duration::from_millis(2);

/// References to the line while no store has one: those of the tenant and its thread.
const NO_STORE: usize = 2;

/// The caller's part in a revocation.
pub type OnRevocation = Box<dyn FnMut(Revocation) + Send>;

/// Revocation policy; by default a tenant requests frames when its pager finds none, and
/// gives them back on revocation.
#[derive(Default)]
pub struct RevocationPolicy {
    /// It wants all that the contract may ever give, at any time.
    pub eager: bool,
    /// Called on a revocation: the program may give up what it can best do without. Its pager
    /// evicts what is still missing when this returns. Runs on the tenant's own thread,
    /// touches no stretch, and is quick: until it returns no message is answered.
    pub on_revocation: Option<OnRevocation>,
}

/// What a contract gives a domain: for `selfpage::Domain::builder()`.
pub struct DomainResources {
    /// For `frames`. The guarantee is the daemon's to keep: within the tenant the domain is
    /// alone, and what it does not use is not to count as promised.
    pub contract: Contract,
    /// For `ledger`: the daemon moves its limit.
    pub ledger: Ledger,
    /// For `shared_store`: the daemon's disk, in the contract's time.
    pub store: SharedStore,
}

/// The reply end of a pending channel open.
type ReplySender = Sender<Result<ChannelClient, Errno>>;

/// A request to the thread.
enum Command {
    Channel { depth: u16, reply: ReplySender },
    Leave(Sender<Result<(), LinkedError>>),
}

/// The way to the thread.
struct CommandSender {
    wishes: Sender<Command>,
    bell: OwnedFd,
}

impl CommandSender {
    /// Sends a request to the thread; fails where it has ended.
    fn ask(&self, wish: Command) -> Result<(), Errno> {
        self.wishes.send(wish).map_err(|_| Errno::PIPE)?;
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).map(|_| ())
    }
}

/// The store's handle to the tenant thread. Dropped with the store and the last of its channels.
struct LinkedTransport(Arc<CommandSender>);

impl DiskTransport for LinkedTransport {
    fn open(&self, depth: usize) -> Result<ChannelClient, Errno> {
        let (reply, answer) = channel();
        let depth = u16::try_from(depth).map_err(|_| Errno::INVAL)?;
        self.0.ask(Command::Channel { depth, reply })?;
        answer.recv().map_err(|_| Errno::PIPE)?
    }

    /// One process, which does not fork: no request outlives its sender.
    fn wait_for_io(&self) {}
}

/// A contract of this program's. Dropped without [`LinkedTenant::leave`] it lasts until the
/// process ends.
pub struct LinkedTenant {
    line: Arc<CommandSender>,
    number: TenantNumber,
    terms: ContractSpec,
    note: String,
    revocations: Arc<AtomicU64>,
}

impl LinkedTenant {
    /// Asks the daemon at `path` for a contract, and waits for it; with what a domain needs
    /// to page under it.
    ///
    /// # Errors
    /// [`LinkedError::Session`] where the daemon is not there or refuses, with the figures.
    pub fn join(
        path: &Path,
        wanted: &ContractRequest,
    ) -> Result<(Self, DomainResources), LinkedError> {
        Self::join_with(path, wanted, RevocationPolicy::default())
    }

    /// The same, with other policy.
    ///
    /// # Errors
    /// As for [`LinkedTenant::join`].
    pub fn join_with(
        path: &Path,
        wanted: &ContractRequest,
        policy: RevocationPolicy,
    ) -> Result<(Self, DomainResources), LinkedError> {
        let call = |what| move |errno| LinkedError::Call { what, errno };
        let mut tenant = Session::join(path, wanted)?;
        let terms = tenant.terms();
        let (ledger, books) = Ledger::create_limited(terms.frames.x, 0, 1)?;
        ledger.set_max_guaranteed(terms.frames.g);
        let view = Ledger::attach(&books)?;
        ledger
            .set_bell(fcntl_dupfd_cloexec(tenant.pressure_bell(), 0).map_err(call("copy a bell"))?);
        let config = StoreConfig {
            ram: None,
            disk: Some(DiskConfig::by_daemon(terms.swap)),
        };
        let (store, _) = SharedStore::create(&config, HOLDERS)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(call("make a bell"))?;
        let (wishes, wanted) = channel();
        let line = Arc::new(CommandSender { wishes, bell });
        store.set_transport(Box::new(LinkedTransport(line.clone())));
        let revocations = Arc::<AtomicU64>::default();
        let (begin, begun) = channel();
        let (serves, counted) = (line.clone(), revocations.clone());
        let spawned = std::thread::Builder::new()
            .name("selfpage-tenant".into())
            .spawn(move || {
                let thread = |tenant| Thread {
                    session: tenant,
                    has_daemon: Arc::new(AtomicBool::new(true)),
                    requesters: HashMap::new(),
                    view,
                    line: serves,
                    wanted,
                    leaves: None,
                    policy,
                    revocations: counted,
                };
                // Nothing comes where the contract did not begin.
                begun.recv().map(thread).map(Thread::serve)
            });
        spawned.map_err(|error| LinkedError::Call {
            what: "start a thread",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        // The last that can fail: from then on a tenant that hangs up is ended.
        tenant.start(books)?;
        let it = Self {
            line,
            number: tenant.number(),
            terms,
            note: tenant.note().to_owned(),
            revocations,
        };
        let _ = begin.send(tenant);
        let contract = Contract {
            g: MIN_PROGRAM_FRAMES.min(terms.frames.g),
            x: terms.frames.x,
        };
        let share = DomainResources {
            contract,
            ledger,
            store,
        };
        Ok((it, share))
    }

    /// Its number, for `selfpage contract`.
    pub fn number(&self) -> TenantNumber {
        self.number
    }

    /// The contract, as it was admitted.
    pub fn terms(&self) -> ContractSpec {
        self.terms
    }

    /// What it does not promise, in words; empty mostly.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// How often frames were asked back.
    pub fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Relaxed)
    }

    /// Gives the contract back: frames, swap, channels and disk time. What was made of the
    /// [`DomainResources`] has to be dropped before, and with it the data. ReplySender for the daemon, also
    /// for one that is away. Then the program goes on without a contract, and may join again.
    ///
    /// # Errors
    /// [`LinkedError::InUse`] while a domain or stretch is there, [`LinkedError::LeaveRefused`] where
    /// the daemon counts more than it can let go, with its figures. Both leave the contract as
    /// it was.
    pub fn leave(&mut self) -> Result<(), LinkedError> {
        let (reply, answer) = channel();
        let asked = self.line.ask(Command::Leave(reply));
        asked.map_err(|_| LinkedError::Over)?;
        answer.recv().map_err(|_| LinkedError::Over)?
    }
}

/// The thread.
struct Thread {
    session: Session,
    /// False once the contract is lost: channels fail then, and with them the faults that need them.
    has_daemon: Arc<AtomicBool>,
    /// The reply ends of pending channel opens, by cookie.
    requesters: HashMap<u64, ReplySender>,
    view: Ledger,
    line: Arc<CommandSender>,
    wanted: Receiver<Command>,
    /// The reply end of a pending request to leave.
    leaves: Option<Sender<Result<(), LinkedError>>>,
    policy: RevocationPolicy,
    revocations: Arc<AtomicU64>,
}

impl Thread {
    /// Until the contract was given back, or is lost.
    fn serve(mut self) {
        loop {
            while let Ok(wish) = self.wanted.try_recv() {
                match wish {
                    Command::Channel { depth, reply } => {
                        self.requesters.insert(self.session.open(depth), reply);
                    }
                    Command::Leave(reply) => self.leave(reply),
                }
            }
            for event in self.session.dispatch(&self.view) {
                let over = match event {
                    SessionEvent::Left => Ok(()),
                    SessionEvent::Lost(_) => {
                        self.has_daemon.store(false, Ordering::Release);
                        Err(LinkedError::Over)
                    }
                    event => {
                        self.on_event(event);
                        continue;
                    }
                };
                let leaves = self.leaves.take();
                // A later request fails at once, and does not reach a thread that is still
                // ending.
                drop(self);
                return answer(leaves, over);
            }
            self.session.shed(&self.view);
            self.want();
            self.wait();
        }
    }

    fn leave(&mut self, reply: Sender<Result<(), LinkedError>>) {
        if Arc::strong_count(&self.line) > NO_STORE {
            let frames = self.view.owned();
            return answer(Some(reply), Err(LinkedError::InUse { frames }));
        }
        self.leaves = Some(reply);
        self.session.leave();
    }

    fn on_event(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Opened {
                cookie,
                channel,
                memory,
                bell,
            } => {
                let Some(requester) = self.requesters.remove(&cookie) else {
                    return self.session.close(channel);
                };
                let doorbell = fcntl_dupfd_cloexec(self.session.doorbell(), 0);
                let client = doorbell.and_then(|doorbell| {
                    let client = ChannelClient::attach(memory, doorbell, bell);
                    let mut client = client.map_err(|_| Errno::PROTO)?;
                    client.fail_without(self.has_daemon.clone());
                    Ok(client)
                });
                let _ = requester.send(client);
            }
            SessionEvent::NotOpened { cookie, .. } => {
                if let Some(requester) = self.requesters.remove(&cookie) {
                    let _ = requester.send(Err(Errno::MFILE));
                }
            }
            SessionEvent::Revoke(revocation) => {
                self.revocations.fetch_add(1, Ordering::Relaxed);
                if let Some(on_revocation) = &mut self.policy.on_revocation {
                    on_revocation(revocation);
                }
            }
            SessionEvent::LeaveRefused(why) => {
                answer(self.leaves.take(), Err(LinkedError::LeaveRefused(why)))
            }
            SessionEvent::Changed { .. }
            | SessionEvent::Unpaged(_)
            | SessionEvent::Over { .. }
            | SessionEvent::Faults(_)
            | SessionEvent::Closed(_)
            | SessionEvent::Disconnected
            | SessionEvent::Resumed
            | SessionEvent::Refused(_)
            | SessionEvent::Lost(_)
            | SessionEvent::Left => {}
        }
    }

    fn want(&self) {
        if self.policy.eager && self.view.limit() < self.view.total() {
            self.view.pressure().store(1, Ordering::SeqCst);
            let _ = rustix::io::write(self.session.pressure_bell(), &1u64.to_ne_bytes());
        }
    }

    /// Blocks until a message or a request arrives, or the next poll is due.
    fn wait(&self) {
        let eager = self.policy.eager.then_some(EAGER);
        let patience = self.session.timeout().into_iter().chain(eager).min();
        let limit = patience.and_then(|time| Timespec::try_from(time).ok());
        let fds = [Some(self.line.bell.as_fd()), self.session.fd()];
        let mut fds: Vec<PollFd<'_>> = fds
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // Interrupted or not: all sources are checked.
        let _ = poll(&mut fds, limit.as_ref());
        let _ = rustix::io::read(&self.line.bell, &mut [0; 8]);
    }
}

fn answer(who: Option<Sender<Result<(), LinkedError>>>, result: Result<(), LinkedError>) {
    if let Some(who) = who {
        // The receiver may have given up waiting.
        let _ = who.send(result);
    }
}
