//! A linked program's contract with the daemon.
//!
//! From *Self-Paging in the Nemesis Operating System*, sections 6.2 and 6.7. A thread inside the program
//! does what the supervisor of a process tree does for `selfpage run --system`: it
//! gets IO channels for the pager's threads, gives revoked frames back, and
//! resumes the contract with the next daemon. `examples/linked.rs` is a whole
//! program.
//!
//! ```no_run
//! use selfpage::{DirectIo, Domain};
//! use std::path::Path;
//! use tenant::{LinkedTenant, ContractRequest};
//! # fn work(_: &Domain) -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
//!
//! let request = ContractRequest {
//!     name: "index".into(),
//!     frames: Some("512M+128M".parse()?),
//!     disk: Some("25ms/250ms".parse()?),
//!     swap: Some(2 << 30),
//!     ..ContractRequest::default()
//! };
//! let (mut tenant, resources) = LinkedTenant::join(Path::new("/run/selfpage/system.sock"), &request)?;
//! let domain = Domain::builder()
//!     .frames(resources.contract)
//!     .ledger(resources.ledger)
//!     .shared_store(resources.store)
//!     .direct_io(DirectIo::PinnedOnly)
//!     .build()?;
//! work(&domain)?;
//! drop(domain); // and its stretches
//! tenant.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Rules: the thread touches no stretch. Opening a channel blocks, which happens when the
//! domain is made and not in a fault. The contract ends with [`LinkedTenant::leave`], or with the process:
//! the daemon kills a tenant that disconnects without leaving. Where the contract is lost
//! (the next daemon has another swap file), pages that are on the disk fail with SIGBUS.
//! Until a tenant has attached its ledger it owns nothing, and may disconnect.

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

/// Slots of the store: slot 0, which no domain has, and that of the one domain.
const HOLDERS: u16 = 2;

/// How often an eager tenant requests more.
const EAGER: Duration = Duration::from_millis(2);

/// References to the command sender while no store has one: those of the tenant and its thread.
const REFERENCES_WITHOUT_STORE: usize = 2;

/// The caller's part in a revocation.
pub type OnRevocation = Box<dyn FnMut(Revocation) + Send>;

/// How a tenant requests and gives back frames; by default it requests frames when its pager finds no free one, and
/// gives them back on revocation.
#[derive(Default)]
pub struct RevocationPolicy {
    /// The tenant requests all frames that the contract allows, at all times.
    pub eager: bool,
    /// Called on a revocation, on the tenant's own thread: the program may give up what it can best do without, and its
    /// pager evicts the rest when this returns. It must touch no stretch, and return soon: until then no message is handled.
    pub on_revocation: Option<OnRevocation>,
}

/// What a contract gives a domain: for `selfpage::Domain::builder()`.
pub struct DomainResources {
    /// For `frames`. Its guarantee is the least that a program needs: the daemon keeps the tenant's guarantee, and
    /// within the ledger, whose only domain this is, frames that it does not use must not count as promised.
    pub contract: Contract,
    /// For `ledger`: the daemon moves its limit.
    pub ledger: Ledger,
    /// For `shared_store`: the daemon's disk, in the disk time of the contract.
    pub store: SharedStore,
}

/// The reply end of a pending channel open.
type ReplySender = Sender<Result<ChannelClient, Errno>>;

/// A request to the tenant thread.
enum Command {
    Channel { depth: u16, reply: ReplySender },
    Leave(Sender<Result<(), LinkedError>>),
}

/// Sends commands to the tenant thread, and wakes it.
struct CommandSender {
    commands: Sender<Command>,
    bell: OwnedFd,
}

impl CommandSender {
    /// Sends a command; fails where the thread has ended.
    fn send(&self, command: Command) -> Result<(), Errno> {
        self.commands.send(command).map_err(|_| Errno::PIPE)?;
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).map(|_| ())
    }
}

/// The store's handle to the tenant thread. Dropped with the store and the last of its channels.
struct LinkedTransport(Arc<CommandSender>);

impl DiskTransport for LinkedTransport {
    fn open(&self, depth: usize) -> Result<ChannelClient, Errno> {
        let (reply, opened) = channel();
        let depth = u16::try_from(depth).map_err(|_| Errno::INVAL)?;
        self.0.send(Command::Channel { depth, reply })?;
        opened.recv().map_err(|_| Errno::PIPE)?
    }

    /// Returns at once: the program is one process, so no request outlives its sender.
    fn wait_for_io(&self) {}
}

/// The contract of this program. Without [`LinkedTenant::leave`] it lasts until the
/// process ends.
pub struct LinkedTenant {
    commander: Arc<CommandSender>,
    number: TenantNumber,
    terms: ContractSpec,
    note: String,
    revocations: Arc<AtomicU64>,
}

impl LinkedTenant {
    /// Requests a contract from the daemon at `path`, and waits for it. Returns it with the resources that a domain needs
    /// to page under it.
    ///
    /// # Errors
    /// [`LinkedError::Session`] where the daemon is not there or refuses, with the figures.
    pub fn join(
        path: &Path,
        request: &ContractRequest,
    ) -> Result<(Self, DomainResources), LinkedError> {
        Self::join_with(path, request, RevocationPolicy::default())
    }

    /// Joins with another policy than the default.
    ///
    /// # Errors
    /// As for [`LinkedTenant::join`].
    pub fn join_with(
        path: &Path,
        request: &ContractRequest,
        policy: RevocationPolicy,
    ) -> Result<(Self, DomainResources), LinkedError> {
        let call = |what| move |errno| LinkedError::Call { what, errno };
        let mut session = Session::join(path, request)?;
        let terms = session.terms();
        let (ledger, ledger_memory) = Ledger::create_limited(terms.frames.x, 0, 1)?;
        ledger.set_max_guaranteed(terms.frames.g);
        let view = Ledger::attach(&ledger_memory)?;
        ledger.set_bell(
            fcntl_dupfd_cloexec(session.pressure_bell(), 0).map_err(call("copy a bell"))?,
        );
        let config = StoreConfig {
            ram: None,
            disk: Some(DiskConfig::by_daemon(terms.swap)),
        };
        let (store, _) = SharedStore::create(&config, HOLDERS)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(call("make a bell"))?;
        let (commands, received) = channel();
        let commander = Arc::new(CommandSender { commands, bell });
        store.set_transport(Box::new(LinkedTransport(commander.clone())));
        let revocations = Arc::<AtomicU64>::default();
        let (begin, begun) = channel();
        let (thread_commander, counted) = (commander.clone(), revocations.clone());
        let spawned = std::thread::Builder::new()
            .name("selfpage-tenant".into())
            .spawn(move || {
                let thread = |session| Thread {
                    session,
                    has_daemon: Arc::new(AtomicBool::new(true)),
                    requesters: HashMap::new(),
                    view,
                    commander: thread_commander,
                    commands: received,
                    leave_reply: None,
                    policy,
                    revocations: counted,
                };
                // The sender is dropped where the contract does not begin.
                begun.recv().map(thread).map(Thread::serve)
            });
        spawned.map_err(|error| LinkedError::Call {
            what: "start a thread",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        // The last step that can fail: from then on the daemon kills a tenant that disconnects.
        session.start(ledger_memory)?;
        let tenant = Self {
            commander,
            number: session.number(),
            terms,
            note: session.note().to_owned(),
            revocations,
        };
        let _ = begin.send(session);
        let contract = Contract {
            g: MIN_PROGRAM_FRAMES.min(terms.frames.g),
            x: terms.frames.x,
        };
        let resources = DomainResources {
            contract,
            ledger,
            store,
        };
        Ok((tenant, resources))
    }

    /// The tenant's number, for `selfpage contract`.
    pub fn number(&self) -> TenantNumber {
        self.number
    }

    /// The contract, as it was admitted.
    pub fn terms(&self) -> ContractSpec {
        self.terms
    }

    /// A note on what the contract does not promise; mostly empty.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// How often frames were revoked.
    pub fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Relaxed)
    }

    /// Gives the contract back: frames, swap, channels and disk time. The domain and the stretches that were made of the
    /// [`DomainResources`], and with them the data, have to be dropped before. Waits for the daemon's reply, and
    /// for the next daemon where no daemon runs. Then the program goes on without a contract, and may join again.
    ///
    /// # Errors
    /// [`LinkedError::InUse`] while a domain or stretch exists, [`LinkedError::LeaveRefused`] where
    /// more of the process is resident than the daemon lets go, with the figures. Both leave the contract as
    /// it was.
    pub fn leave(&mut self) -> Result<(), LinkedError> {
        let (reply, left) = channel();
        let sent = self.commander.send(Command::Leave(reply));
        sent.map_err(|_| LinkedError::NoContract)?;
        left.recv().map_err(|_| LinkedError::NoContract)?
    }
}

/// The tenant thread.
struct Thread {
    session: Session,
    /// False once the contract is lost: channels fail then, and with them the faults that need them.
    has_daemon: Arc<AtomicBool>,
    /// The reply ends of pending channel opens, by cookie.
    requesters: HashMap<u64, ReplySender>,
    view: Ledger,
    commander: Arc<CommandSender>,
    commands: Receiver<Command>,
    /// The reply end of a pending request to leave.
    leave_reply: Option<Sender<Result<(), LinkedError>>>,
    policy: RevocationPolicy,
    revocations: Arc<AtomicU64>,
}

impl Thread {
    /// Handles commands and events until the contract is given back or lost.
    fn serve(mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    Command::Channel { depth, reply } => {
                        self.requesters.insert(self.session.open(depth), reply);
                    }
                    Command::Leave(reply) => self.leave(reply),
                }
            }
            for event in self.session.dispatch(&self.view) {
                let end = match event {
                    SessionEvent::Left => Ok(()),
                    SessionEvent::Lost(_) => {
                        self.has_daemon.store(false, Ordering::Release);
                        Err(LinkedError::NoContract)
                    }
                    event => {
                        self.on_event(event);
                        continue;
                    }
                };
                let leave_reply = self.leave_reply.take();
                // A later request fails at once, and does not reach a thread that is still
                // ending.
                drop(self);
                return reply_to(leave_reply, end);
            }
            self.session.serve_revocation(&self.view);
            self.request_frames_if_eager();
            self.wait();
        }
    }

    fn leave(&mut self, reply: Sender<Result<(), LinkedError>>) {
        if Arc::strong_count(&self.commander) > REFERENCES_WITHOUT_STORE {
            let frames = self.view.owned();
            return reply_to(Some(reply), Err(LinkedError::InUse { frames }));
        }
        self.leave_reply = Some(reply);
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
                reply_to(self.leave_reply.take(), Err(LinkedError::LeaveRefused(why)))
            }
            SessionEvent::Changed { .. }
            | SessionEvent::Unpaged(_)
            | SessionEvent::OverGuarantee { .. }
            | SessionEvent::Faults(_)
            | SessionEvent::Closed(_)
            | SessionEvent::Disconnected
            | SessionEvent::Resumed
            | SessionEvent::Refused(_)
            | SessionEvent::Lost(_)
            | SessionEvent::Left => {}
        }
    }

    fn request_frames_if_eager(&self) {
        if self.policy.eager && self.view.limit() < self.view.total() {
            self.view.pressure().store(1, Ordering::SeqCst);
            let _ = rustix::io::write(self.session.pressure_bell(), &1u64.to_ne_bytes());
        }
    }

    /// Blocks until a message or a command arrives, or the next poll is due.
    fn wait(&self) {
        let eager = self.policy.eager.then_some(EAGER);
        let timeout = self.session.timeout().into_iter().chain(eager).min();
        let limit = timeout.and_then(|time| Timespec::try_from(time).ok());
        let fds = [Some(self.commander.bell.as_fd()), self.session.fd()];
        let mut fds: Vec<PollFd<'_>> = fds
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // Interrupted or not: all sources are checked.
        let _ = poll(&mut fds, limit.as_ref());
        let _ = rustix::io::read(&self.commander.bell, &mut [0; 8]);
    }
}

fn reply_to(requester: Option<Sender<Result<(), LinkedError>>>, result: Result<(), LinkedError>) {
    if let Some(requester) = requester {
        // The receiver may have given up waiting.
        let _ = requester.send(result);
    }
}
