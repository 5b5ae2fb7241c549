//! Admits the processes of a tree, watches them, and reclaims their resources.
//!
//! One descriptor to poll ([`Supervisor::fd`]) and one call when it is readable
//! ([`Supervisor::dispatch`]), so that it fits into any loop. A process is watched twice: by
//! its connection, which closes at exec, too, and by its pidfd, which reports the process's end even
//! where a copy of the connection survives in a child.

mod admission;
mod new_images;
mod reclaim;
mod unclaimed;

use crate::compressed_ram;
use crate::config::{StartError, SupervisorConfig, TreeEvent};
use crate::connector::Connector;
use crate::direct_io_filter::ConnectionRequest;
use crate::fault_limits::TreeFaultLimits;
use crate::finished_totals::FinishedTotals;
use crate::links::Links;
use crate::memory_sampler::Observed;
use crate::orphaned_memory::OrphanedMemory;
use crate::processes::{PagedProcess, ProcessTable};
use crate::program_ends::ProgramEnds;
use crate::shared_memory::SharedMemory;
use crate::sockets::{self, Listeners, refuse};
use crate::tree_store::TreeStore;
use admission::UnidentifiedPeer;
use frames::{DomainId, Ledger};
use host::epoll_set::EpollSet;
use host::fd_reaper::PeerFd;
use link::handshake::{ChildMessage, Hello, Message, SlotIndex};
use link::stats_page::StatsPage;
use link::{MAX_PROCESSES, MIN_FRAMES};
use new_images::NewImages;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Occupancy, SharedStore};
use unclaimed::UnclaimedDomains;
use wired::{Counter, Stage, StageHistogram};

/// How long a process's threads may still run user code after its connection has hung up. After an exec the process
/// continues to exist, so its end cannot be awaited.
const EXEC_GRACE: Duration = Duration::from_millis(20);

/// How often the supervisor checks for domains whose process never joined.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

const PORT: u64 = 0;
const LISTENER: u64 = 1;
const LINK: u64 = 2;
const CONNECTION: u64 = 1 << 32;
const PIDFD: u64 = 2 << 32;
const UNIDENTIFIED: u64 = 3 << 32;

/// Most connections and messages taken from one socket in one dispatch.
const MAX_PER_DISPATCH: usize = 16;

/// The supervisor of one tree.
pub struct Supervisor {
    settings: SupervisorConfig,
    watched: EpollSet,
    listeners: Listeners,
    connector: Option<Connector>,
    /// Events of processes that joined by the call itself.
    joined_by_call: Vec<TreeEvent>,
    ledger: Ledger,
    ledger_fd: OwnedFd,
    store: Option<TreeStore>,
    stats_page: StatsPage,
    stats_fd: OwnedFd,
    program_ends: Arc<ProgramEnds>,
    members: ProcessTable,
    /// Domains not yet reclaimed: they have a write in flight, or another dead process holds one of their pages.
    unfinished: Vec<DomainId>,
    unclaimed: UnclaimedDomains,
    new_images: NewImages,
    orphaned: Vec<(DomainId, OrphanedMemory)>,
    unidentified: BTreeMap<u64, UnidentifiedPeer>,
    next_unidentified: u64,
    accepts_by_name: bool,
    finished: FinishedTotals,
    swept: Instant,
    links: Links,
    shared_memory: SharedMemory,
}

impl Supervisor {
    /// Makes the shared memory and the store, and the sockets by which processes join.
    pub fn start(mut settings: SupervisorConfig) -> Result<Self, StartError> {
        if settings.frames < MIN_FRAMES {
            return Err(StartError::TooFew {
                frames: settings.frames,
            });
        }
        wired::clock::prepare();
        // Under a contract the daemon grants frames after the start.
        let limit = settings.tenant.as_ref().map_or(settings.frames, |_| 0);
        let (ledger, ledger_fd) =
            Ledger::create_limited(settings.frames, limit, u32::from(MAX_PROCESSES) - 1)?;
        let store = TreeStore::create(&settings)?;
        let (stats_page, stats_fd) = StatsPage::create(MAX_PROCESSES)
            .map_err(StartError::call("make the stats page's memory"))?;
        let program_ends =
            ProgramEnds::attach(&stats_fd).map_err(StartError::call("map the stats page"))?;
        let listeners = Listeners::open()
            .map_err(StartError::call("open the sockets by which processes join"))?;
        let watched = EpollSet::new().map_err(StartError::call("make an epoll"))?;
        watched
            .add(&listeners.port, PORT)
            .map_err(StartError::call("watch the port"))?;
        let tenant = settings.tenant.take();
        let page_client = settings.page_client.take();
        let mut it = Self {
            settings,
            watched,
            listeners,
            connector: None,
            joined_by_call: Vec::new(),
            ledger,
            ledger_fd,
            store,
            stats_page,
            stats_fd,
            program_ends: Arc::new(program_ends),
            members: ProcessTable::default(),
            unfinished: Vec::new(),
            unclaimed: UnclaimedDomains::default(),
            new_images: NewImages::default(),
            orphaned: Vec::new(),
            unidentified: BTreeMap::new(),
            next_unidentified: 0,
            accepts_by_name: false,
            finished: FinishedTotals::default(),
            swept: Instant::now(),
            links: Links::new(LINK),
            shared_memory: SharedMemory::default(),
        };
        if let Some(page_client) = page_client {
            it.links
                .connect_page_client(page_client, &it.watched)
                .map_err(StartError::call("watch the page client"))?;
        }
        if let Some(tenant) = tenant {
            it.links
                .connect_daemon(tenant, &it.ledger, &it.ledger_fd, &it.watched)?;
        }
        it.start_compressed_ram();
        Ok(it)
    }

    /// Readable when [`Supervisor::dispatch`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watched.fd()
    }

    /// The time after which [`Supervisor::dispatch`] is to be called even if [`Supervisor::fd`] is not readable.
    pub fn next_timeout(&self) -> Duration {
        let busy = self.members.is_any_leaving()
            || !self.unfinished.is_empty()
            || !self.new_images.is_empty()
            || !self.orphaned.is_empty();
        let here = if busy {
            Duration::from_millis(2)
        } else {
            SWEEP_INTERVAL
        };
        let links = self.links.next_timeout();
        links.map_or(here, |there| here.min(there))
    }

    /// Limits the rate of the tree's faults from now on.
    pub fn set_fault_limits(&mut self, limits: TreeFaultLimits) {
        self.links.set_fault_limits(limits, &self.stats_page);
    }

    /// Notifies a page client of the tree's end. The socket's other end closes when the client ends.
    pub fn end_page_client(&self) -> Option<BorrowedFd<'_>> {
        self.links.end_page_client()
    }

    /// The tree's stats page.
    pub fn stats_page(&self) -> &StatsPage {
        &self.stats_page
    }

    /// The tree's ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The tree's store.
    pub fn store(&self) -> Option<&SharedStore> {
        self.store.as_ref().map(TreeStore::shared)
    }

    /// The most that each tier of the store held when a process ended.
    pub fn store_peak(&self) -> Occupancy {
        let peak = self.store.as_ref().map(TreeStore::peak);
        peak.unwrap_or_default()
    }

    /// The sources that a sampler reads.
    pub fn observed(&self) -> io::Result<Observed> {
        Observed::attach(&self.stats_fd, self.store().cloned(), &self.program_ends)
    }

    /// Starts the thread that sizes compressed RAM, where that is part of the frames; without the thread pages go to the disk.
    fn start_compressed_ram(&mut self) {
        let ram = self.settings.store.as_ref().and_then(|store| store.ram);
        if self.settings.ram_of_frames
            && let (Some(store), Some(ram)) = (&self.store, ram)
            && let Err(why) =
                compressed_ram::start(&self.ledger_fd, store.shared(), ram, &mut self.links)
        {
            tracing::warn!("pages are not compressed in RAM, only written to the disk: {why}");
        }
    }

    /// Lets processes join through the filter whose listener this is: from then on
    /// [`Supervisor::connect`] serves them.
    pub fn serve_filter(&mut self, listener: OwnedFd) -> std::io::Result<()> {
        self.connector = Some(Connector::start(listener.into())?);
        Ok(())
    }

    /// Gives a connection to the process whose call stopped at the filter. Where the call carries
    /// the process's first message, the reply can be received when the call returns.
    pub fn connect(&mut self, request: ConnectionRequest) {
        let (ours, theirs) = match Connector::pair() {
            Ok((ours, theirs)) => (Some(PeerFd::new(ours, sockets::own_uid())), Ok(theirs)),
            Err(errno) => (None, Err(errno)),
        };
        match (ours, Hello::decode(request.message.as_slice())) {
            (Some(ours), Some(hello)) => self.on_hello_by_call(ours, request.caller, hello),
            // A library of another build, which waits for a reply.
            (Some(ours), None) if !request.message.as_slice().is_empty() => {
                refuse(&ours, sockets::OTHER_BUILD);
            }
            (Some(ours), None) => self.add_unidentified(ours, None),
            (None, _) => {}
        }
        if let Some(connector) = &self.connector {
            connector.complete(request.id, theirs);
        }
    }

    /// Lets processes join by the socket's name, too, where there is no filter.
    pub fn listen(&mut self) -> io::Result<()> {
        self.listeners.listen()?;
        self.watch_listener()
    }

    /// The environment variable by which a process joins through the filter.
    pub fn filter_environment() -> Vec<(&'static str, OsString)> {
        sockets::filter_environment()
    }

    /// The end of the port that the tree inherits. Duplicate it, without close-on-exec,
    /// to the number given to [`Supervisor::environment`].
    pub fn inherited_port(&self) -> BorrowedFd<'_> {
        self.listeners.inherited.as_fd()
    }

    /// The environment variables by which a process joins by sockets, with the port at descriptor `number`.
    pub fn environment(&self, number: i32) -> io::Result<Vec<(&'static str, OsString)>> {
        self.listeners.environment(number)
    }

    /// Slots and pager processes of all domains; this process is the pager of shared memory.
    pub fn members(&self) -> impl Iterator<Item = (SlotIndex, Pid)> + '_ {
        let shared = self.shared_memory.slot();
        let shared = shared.map(|slot| (slot, rustix::process::getpid()));
        let members = self.members.iter();
        let members = members.map(|member| (member.slot(), member.pid));
        members.chain(shared)
    }

    /// Wakes the pager of shared memory, so that it acknowledges the flag *careful*.
    pub fn ring_shared_memory(&self) {
        self.shared_memory.ring();
    }

    /// Wakes the evictors of all processes, so that they read the stats page.
    pub fn wake_evictors(&self) {
        let domains = self.members.iter().map(|member| member.domain);
        domains.for_each(|domain| self.ledger.ring(domain));
    }

    /// The domain that pages the memory of a process now; an error where a shortage of descriptors or memory keeps it unknown.
    pub fn domain_of(&self, process: Pid) -> std::io::Result<Option<DomainId>> {
        let member = self.members.by_memory(process)?;
        Ok(member.map(|member| member.domain))
    }

    /// Wakes the evictor of a domain.
    pub fn wake_evictor(&self, domain: DomainId) {
        self.ledger.ring(domain);
    }

    /// Programs that are paged now, with their slots.
    pub fn programs(&self) -> impl Iterator<Item = (SlotIndex, Pid)> + '_ {
        let members = self.members.iter();
        members.map(|member| (member.slot(), member.program))
    }

    /// Returns true if a process is the pager process of a program, and not the program itself.
    pub fn is_pager(&self, pid: Pid) -> bool {
        let beside = |member: &PagedProcess| member.pid == pid && member.program != pid;
        self.members.iter().any(beside)
    }

    /// The number of processes that joined.
    pub fn processes(&self) -> u64 {
        self.finished.processes
    }

    /// A counter of the whole tree, including processes that have ended.
    pub fn counter(&self, counter: Counter) -> u64 {
        let members = self.members.iter().map(PagedProcess::slot);
        let slots = members.chain(self.shared_memory.slot());
        let now = slots.map(|slot| self.stats_page.block(slot).get(counter));
        self.finished.with(counter, now)
    }

    /// The samples of a fault's stage, of the whole tree.
    pub fn stage(&self, stage: Stage) -> StageHistogram {
        let mut histogram = self.finished.stage(stage);
        for member in self.members.iter() {
            histogram.add(self.stats_page.block(member.slot()).stage(stage));
        }
        histogram
    }

    /// Handles pending messages, without blocking, and returns the events.
    pub fn dispatch(&mut self) -> Vec<TreeEvent> {
        let mut events = std::mem::take(&mut self.joined_by_call);
        for token in self.watched.readable() {
            match (token, token & !0xffff_ffff) {
                (PORT, _) => self.on_port(&mut events),
                (LISTENER, _) => self.on_listener(),
                (_, UNIDENTIFIED) => self.on_unidentified(token, &mut events),
                (_, CONNECTION) => self.on_member(token as SlotIndex, &mut events),
                (_, PIDFD) => self.retire(token as SlotIndex, &mut events),
                _ => {}
            }
        }
        self.links
            .dispatch(&self.ledger, &self.stats_page, &self.watched, &mut events);
        for slot in self.members.left_since(EXEC_GRACE) {
            self.retire(slot, &mut events);
        }
        self.retry_unfinished();
        self.admit_images(&mut events);
        self.serve_orphaned();
        if self.swept.elapsed() >= SWEEP_INTERVAL {
            self.sweep();
        }
        events
    }

    fn on_member(&mut self, slot: SlotIndex, events: &mut Vec<TreeEvent>) {
        for _ in 0..MAX_PER_DISPATCH {
            let Some(member) = self.members.get_mut(slot) else {
                return;
            };
            match sockets::receive(&member.connection, member.connection.uid()) {
                Ok((message, mut fds)) if message.len > 0 => {
                    match ChildMessage::decode(message.as_slice()) {
                        Some(ChildMessage::Lifeline) => member.keep_lifeline(fds),
                        Some(ChildMessage::Channel(depth)) => {
                            let depth = depth.min(u16::MAX.into()) as u16;
                            let reply = fds.next();
                            reply
                                .into_iter()
                                .for_each(|it| self.links.open(slot, depth, it));
                        }
                        Some(ChildMessage::Shared(request)) => {
                            self.on_shared_request(slot, request, fds);
                        }
                        _ => {
                            events.extend(TreeEvent::of_message(member.program, message.as_slice()))
                        }
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => return,
                _ => {
                    self.watched.remove(&member.connection);
                    return self.members.on_hang_up(slot);
                }
            }
        }
    }
}
