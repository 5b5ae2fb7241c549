//! The system domain of a machine: contracts across programs.
//!
//! *Self-Paging in the Nemesis Operating System*, sections 6.2 and 6.7: one trusted domain
//! owns the frames allocator, the swap filesystem and the user-safe disk. Programs ask it for
//! contracts, and then resolve their own faults; it moves limits, schedules the disk and ends
//! those that break their word.
//!
//! | file | what it does |
//! |---|---|
//! | `config`, `policy` | what there is to give out, and to whom |
//! | `listener`, `peer`, `user_limits`, `fd_reaper` | connections, credentials and per-user limits |
//! | `dispatch`, `admission` | requests of tenants: contracts, channels |
//! | `recovery`, `leave` | tenants that come back, leave and end |
//! | `fault_rates` | fault limits of all tenants |
//! | `frame_actions` | execution of the frames allocator's actions |
//! | `tenant_cgroup`, `cgroup_origin`, `stall` | control groups, RSS, processor stalls |
//! | `urgent` | scheduling priority of the daemon's threads |
//! | `signals`, `systemd` | the machine's operator |
//! | `persisted_tenants`, `scrub`, `jobs` | what outlives the daemon; what takes long |
//! | `backing` | the swap filesystem, the device's figures and the disk's thread |
//!
//! Rules: one thread, one loop, nothing in it waits for a tenant. Tenants outlive the daemon:
//! the state that a new daemon needs is in the swap filesystem and with the tenants. Whatever a
//! tenant sends or writes into memory it shares, the others notice nothing.

mod admission;
mod backing;
mod cgroup_origin;
pub mod config;
mod dispatch;
mod error;
mod fault_rates;
mod fd_reaper;
mod frame_actions;
mod jobs;
mod leave;
mod listener;
mod machine;
mod peer;
mod persisted_tenants;
pub mod policy;
mod recovery;
mod scrub;
mod signals;
mod stall;
pub mod systemd;
mod tenant;
pub mod tenant_cgroup;
mod urgent;
mod user_limits;

pub use backing::{calibrate_disk, check_disk};
use config::Config;
use disk::cost_model::CostModel;
use disk::swapfs::SwapFs;
use disk::usd::{Usd, UsdEvent};
pub use error::DaemonError;
use fault_rates::FaultRates;
use fd_reaper::FdReaper;
use frames::allocator::{Allocator, AllocatorConfig};
use jobs::{JobResult, JobRunner};
use listener::{Connection, LISTENER, UnidentifiedPeers, listen};
use logging::LineQueue;
pub use machine::total_memory;
use protocol::TenantNumber;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use scrub::Scrubber;
use signals::Signals;
use stall::Stall;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tenant::Tenant;
use tenant_cgroup::CgroupRoot;
use user_limits::UserLimits;

/// How often what is resident is compared with what is owned.
const COUNT: Duration = Duration::from_secs(1);

/// How long the end of the daemon waits for a reader of its log.
const LOG_END: Duration = Duration::from_secs(1);

/// Frames a tenant may have resident beyond its own before the daemon requests them: the
/// kernel's count and the ledger are never of one moment.
const ALLOWANCE: u32 = 2048;

/// The listener and connections without a contract, which are served after everything else.
const STRANGERS: u64 = 0;
const ERRANDS: u64 = 1;
const DISK: u64 = 2;
const SIGNALS: u64 = 3;
const CONNECTION: u64 = 1 << 32;
const HUNGER: u64 = 2 << 32;

/// The daemon.
pub struct Daemon {
    path: PathBuf,
    config: Config,
    begin: Instant,
    epoll: OwnedFd,
    strangers: UnidentifiedPeers,
    listener: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// True while the listener is disarmed, after EMFILE.
    deaf: bool,
    guests: UserLimits,
    closer: FdReaper,
    tenants: BTreeMap<TenantNumber, Tenant>,
    next_tenant: TenantNumber,
    allocator: Allocator,
    /// Number of the last revocation.
    round: u32,
    swap: SwapFs,
    usd: Usd,
    model: CostModel,
    groups: CgroupRoot,
    errands: JobRunner,
    wiper: Scrubber,
    counted: Instant,
    signals: Signals,
    stall: Stall,
    fault_rates: FaultRates,
    /// Lines of the log, until the daemon ends.
    _log: Option<LineQueue>,
}

fn call(what: &'static str) -> impl Fn(Errno) -> DaemonError {
    move |errno| DaemonError::Call { what, errno }
}

impl Daemon {
    /// Reads the configuration, opens the disk, finds the tenants there were, and listens.
    pub fn start(path: &Path) -> Result<Self, DaemonError> {
        let config = Config::read(path)?;
        config.check_memory(total_memory())?;
        // Before there are threads, so that all of them block these signals.
        let signals = Signals::open().map_err(call("hear signals"))?;
        // SAFETY: at the program's start; systemd passes the descriptor, or it is not open.
        let passed = unsafe { systemd::listener() };
        let wrong =
            "use the socket that was passed (ListenSequentialPacket= makes one that can be)";
        let listener = match passed.map_err(call(wrong))? {
            Some(listener) => listener,
            None => listen(&config.socket)?,
        };
        // Before there is the disk's thread, which is as this one.
        urgent::enter();
        // Before there are tenants: none waits for the reader of the log.
        let log = LineQueue::start(LOG_END);
        let backing = backing::open(&config.disk)?;
        let settings = AllocatorConfig {
            managed: config.managed_frames(total_memory()),
            deadline: config.memory.revocation.0,
            stall: stall::MOST,
            notice: config.memory.notice.0,
            allowance: ALLOWANCE,
            topology: machine::topology(),
        };
        let make = || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(call("make an epoll"));
        let (epoll, strangers) = (make()?, UnidentifiedPeers::new(make()?));
        let errands = JobRunner::new().map_err(call("make an eventfd"))?;
        let trace = backing.usd.trace().clone();
        let wiper = Scrubber::start(trace, errands.teller()).map_err(|why| DaemonError::Call {
            what: "start a thread",
            errno: Errno::from_io_error(&why).unwrap_or(Errno::AGAIN),
        })?;
        let name = config.socket.to_string_lossy().replace(['/', '.'], "-");
        let mut it = Self {
            path: path.into(),
            begin: Instant::now(),
            epoll,
            strangers,
            listener,
            connections: BTreeMap::new(),
            next_connection: 0,
            deaf: false,
            guests: UserLimits::new(),
            closer: FdReaper::default(),
            tenants: BTreeMap::new(),
            next_tenant: 1,
            allocator: match recovery::is_anybody_awaited(&backing.swap) {
                true => Allocator::restarted(settings, config.memory.grace.0),
                false => Allocator::new(settings),
            },
            round: 0,
            swap: backing.swap,
            usd: backing.usd,
            model: backing.model,
            groups: CgroupRoot::open(name.trim_start_matches('-')),
            errands,
            wiper,
            counted: Instant::now(),
            signals,
            stall: Stall::new(),
            fault_rates: FaultRates::new(config.faults),
            config,
            _log: log,
        };
        it.watch()?;
        it.find_tenants()?;
        Ok(it)
    }

    /// Polls all that the loop serves.
    fn watch(&self) -> Result<(), DaemonError> {
        let first = epoll::EventData::new_u64(LISTENER);
        epoll::add(
            self.strangers.epoll(),
            &self.listener,
            first,
            epoll::EventFlags::IN,
        )
        .map_err(call("poll"))?;
        for (fd, token) in [
            (self.strangers.epoll().as_fd(), STRANGERS),
            (self.errands.fd(), ERRANDS),
            (self.usd.event_fd(), DISK),
            (self.signals.fd(), SIGNALS),
        ] {
            let data = epoll::EventData::new_u64(token);
            epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).map_err(call("poll"))?;
        }
        Ok(())
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.config.socket
    }

    /// Serves until told to stop. Tenants live on, and wait for the next daemon.
    pub fn run(&mut self) -> Result<(), DaemonError> {
        loop {
            let mut ready = [const { std::mem::MaybeUninit::uninit() }; 64];
            let limit = Timespec::try_from(self.patience()).ok();
            let tokens: Vec<u64> = match epoll::wait(&self.epoll, &mut ready, limit.as_ref()) {
                Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
                Err(Errno::INTR) => Vec::new(),
                Err(errno) => return Err(call("wait")(errno)),
            };
            self.count_stall();
            for token in tokens {
                match (token, token & !0xffff_ffff) {
                    (STRANGERS, _) => self.strangers.come(),
                    (ERRANDS, _) => self.errand_done(),
                    (DISK, _) => self.disk_news(),
                    (SIGNALS, _) if self.signalled() => {
                        // No other daemon's: none listens there while this one does.
                        let _ = std::fs::remove_file(self.socket());
                        return Ok(());
                    }
                    (_, CONNECTION) => self.at_connection(token),
                    (_, HUNGER) => self.hungry(token as TenantNumber),
                    _ => {}
                }
            }
            let now = self.now();
            if self
                .allocator
                .next_timeout()
                .is_some_and(|next| next <= now)
            {
                let numbers: Vec<_> = self.tenants.keys().copied().collect();
                for number in numbers {
                    self.take_answers(number);
                    self.report(number);
                }
                self.count_stall();
                let orders = self.allocator.tick(now);
                self.carry_out(orders);
                if let Err(why) = self.remember_frames() {
                    tracing::warn!("a changed contract cannot be kept: {why}");
                }
            }
            self.serve_strangers();
            if self.counted.elapsed() >= COUNT {
                self.counted = Instant::now();
                self.count_resident();
                self.end_the_lost();
                self.groups
                    .sweep(|number| self.tenants.contains_key(&number));
                self.listen_again();
                self.errands.retry();
                self.tell_fault_shares();
            }
        }
    }

    /// Extends deadlines by the time that threads have waited for a processor until now.
    fn count_stall(&mut self) {
        let total = self.stall.total();
        self.allocator.on_stalled(total);
    }

    /// Handles signals. Returns true if the daemon is to end.
    fn signalled(&mut self) -> bool {
        while let Some(signal) = self.signals.next() {
            match signal {
                libc::SIGHUP => {
                    systemd::notify("RELOADING=1");
                    self.reload();
                    systemd::notify("READY=1");
                }
                _ => return true,
            }
        }
        false
    }

    /// Takes over what has changed in the configuration, as far as a running daemon can.
    fn reload(&mut self) {
        let read = Config::read(&self.path);
        let fits = |new: Config| new.check_memory(total_memory()).map(|()| new);
        let new = match read.and_then(fits) {
            Ok(new) => new,
            Err(why) => return tracing::warn!("the configuration stays as it was: {why}"),
        };
        for what in self.config.differs(&new) {
            tracing::warn!(
                "{what} in the configuration needs a restart, which tenants live through"
            );
        }
        let managed = new.managed_frames(total_memory());
        match self.allocator.set_managed(managed, self.now()) {
            Ok(orders) => self.carry_out(orders),
            Err(why) => tracing::warn!("memory.managed stays as it was: {why}"),
        }
        self.reconfigure_faults(new.faults);
        self.guests.read_persons();
        let (socket, disk) = (self.config.socket.clone(), self.config.disk.clone());
        self.config = Config {
            socket,
            disk,
            ..new
        };
        tracing::info!("the configuration was read again");
    }

    fn patience(&self) -> Duration {
        let next = self
            .allocator
            .next_timeout()
            .map(|next| next.saturating_sub(self.now()));
        let count = COUNT.saturating_sub(self.counted.elapsed());
        let all = [next, self.strangers.patience()];
        all.into_iter().flatten().fold(count, Duration::min)
    }

    /// Time since the start, as the allocator counts it.
    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn errand_done(&mut self) {
        while let Some(done) = self.errands.next() {
            match done {
                JobResult::ScrubDone(number, wiped) => self.wiped(number, *wiped),
                JobResult::Emptied(number) => self.emptied(number),
                JobResult::Killed(number) | JobResult::Released(number) => self.part(number),
                JobResult::Weighed(number, resident) => self.weighed(number, resident),
                JobResult::Left(number) => self.forget(number),
                JobResult::Counted(number, resident) => self.counted_exactly(number, resident),
            }
        }
    }

    fn disk_news(&mut self) {
        while let Some(news) = self.usd.next_event() {
            match news {
                UsdEvent::Closed(id) => self.channel_closed(id),
                UsdEvent::CutOff { channel, why } => {
                    let own = |(number, t): (&TenantNumber, &Tenant)| {
                        t.channels
                            .values()
                            .any(|id| *id == channel)
                            .then_some(*number)
                    };
                    let own = self.tenants.iter().find_map(own);
                    if let Some(number) = own.filter(|number| !self.is_ending(*number)) {
                        tracing::warn!("tenant {number} is cut off: {why}");
                        self.kill(number);
                    }
                }
            }
        }
    }
}
