//! Divides a machine among programs by contracts: the system domain of the paper.
//!
//! *Self-Paging in the Nemesis Operating System*, sections 6.2 and 6.7: one trusted domain
//! owns the frames allocator, the swap filesystem and the user-safe disk. Programs request
//! contracts from it, and then resolve their own faults; the daemon moves limits, schedules the disk and kills
//! programs that violate their contracts.
//!
//! | part | holds |
//! |---|---|
//! | `Daemon` (`dispatch`, `queries`, `service`) | the contracts, signals; serves requests |
//! | `Contracts` (`contracts/{admission,postponed,recovery,leave}`) | the configuration, the frames, the disk, control groups, fault rates, processor time |
//! | `FrameControl` | the frames allocator, its clock (`stall`), the tenants |
//! | `Tenants` | each `tenant`, the connections, `jobs` that take long, the `loop_time` of persons |
//! | `Connections` | `peer`s, `user_limits`, a `host::fd_reaper`, a `host::socket_reaper` |
//! | `Backing` | the swap filesystem, the disk's thread and model |
//!
//! A part holds the parts that it uses, and uses no part above it. `policy` and `config` determine what
//! can be given out, and to whom; `refusal` has the reasons of refusals; `persisted_tenants` and `scrub` are for what outlives the
//! daemon; `own_folder` knows the folders that the daemon makes; `tenant_cgroup`, `cgroup_origin` and `urgent` deal with the kernel.
//!
//! Rules: one thread, one loop, nothing in it waits for a tenant. Tenants outlive the daemon:
//! the state that a new daemon needs is in the swap filesystem and with the tenants. No message of a tenant, and
//! nothing that it writes into shared memory, affects the other tenants.

mod backing;
mod cgroup_origin;
pub mod config;
mod connections;
mod contracts;
mod dispatch;
mod error;
mod fault_rates;
mod frame_control;
mod jobs;
mod listener;
mod loop_time;
mod machine;
mod own_folder;
mod peer;
mod persisted_tenants;
pub mod policy;
mod processor_time;
mod queries;
mod refusal;
mod scrub;
mod stall;
mod tenant;
pub mod tenant_cgroup;
mod tenants;
mod urgent;
mod user_limits;
mod zero_writer;

pub use backing::{calibrate_disk, check_disk};
use config::Config;
use connections::{Connections, MAX_BATCH};
use contracts::{Contracts, PostponedJoins, UnwrittenChanges, groups_name, has_persisted_tenants};
use disk::usd::UsdEvent;
pub use error::DaemonError;
use fault_rates::FaultRates;
use frame_control::FrameControl;
use host::signals::{self, SignalFd, set_of};
use host::systemd;
use jobs::{JobResult, JobRunner};
use listener::Listener;
pub use listener::check_socket;
use logging::LineQueue;
use loop_time::processor_time;
pub use machine::total_memory;
use processor_time::ProcessorTime;
use protocol::{DaemonEvent, TenantNumber};
use rustix::event::epoll;
use rustix::fd::AsFd;
use rustix::io::Errno;
use scrub::Scrubber;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tenant_cgroup::CgroupRoot;
use tenants::Tenants;
use zero_writer::ZeroWriter;

/// How often the resident memory of tenants is compared with the frames that they own.
const RSS_INTERVAL: Duration = Duration::from_secs(1);

/// How long the daemon waits for a reader of its log when it ends.
const LOG_FLUSH: Duration = Duration::from_secs(1);

/// Tokens of the descriptors that the loop polls. The listener and connections without a contract, which
/// have one token together, are served after everything else.
const UNIDENTIFIED: u64 = 0;
const JOBS: u64 = 1;
const DISK: u64 = 2;
const SIGNALS: u64 = 3;
const CONNECTION: u64 = 1 << 32;
const PRESSURE: u64 = 2 << 32;

/// The daemon.
pub struct Daemon {
    path: PathBuf,
    contracts: Contracts,
    signals: SignalFd,
    /// When resident memory was compared last.
    rss_measured: Instant,
    /// Writes the lines of the log, until the daemon ends.
    _log: Option<LineQueue>,
}

fn call(what: &'static str) -> impl Fn(Errno) -> DaemonError {
    move |errno| DaemonError::Call { what, errno }
}

impl Daemon {
    /// Reads the configuration, opens the disk, loads the tenants of an earlier daemon, and listens.
    pub fn start(path: &Path) -> Result<Self, DaemonError> {
        let config = Config::read(path)?;
        config.check_memory(total_memory())?;
        // Before there are threads, so that all of them block these signals.
        let handled = set_of(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
        signals::block(&handled);
        signals::block_file_size();
        let signals = SignalFd::open(&handled).map_err(call("receive signals"))?;
        // SAFETY: at the program's start; systemd passes the descriptor, or it is not open.
        let passed = unsafe { systemd::listener() };
        let action =
            "use the socket that was passed (ListenSequentialPacket= makes one that can be)";
        let passed = passed.map_err(call(action))?;
        let listener = match passed {
            Some(socket) => Listener::passed(socket),
            None => Listener::open(&config.socket)?,
        };
        // Before the disk's thread starts, which inherits the priority of this one.
        urgent::enter();
        // Before there are tenants: no tenant waits for the reader of the log.
        let log = LineQueue::start(LOG_FLUSH);
        let disk = backing::open(&config.disk)?;
        let jobs = JobRunner::new().map_err(call("make an eventfd"))?;
        let writer = ZeroWriter::new(&disk.usd, disk.swap.medium()).map_err(|why| {
            DaemonError::Disk(format!("new swap files cannot be overwritten: {why}"))
        })?;
        let scrubber =
            Scrubber::start(writer, jobs.notifier()).map_err(|why| DaemonError::Call {
                what: "start a thread",
                errno: Errno::from_io_error(&why).unwrap_or(Errno::AGAIN),
            })?;
        let connections = Connections::new(listener)?;
        for (fd, token) in [
            (jobs.fd(), JOBS),
            (disk.usd.event_fd(), DISK),
            (signals.as_fd(), SIGNALS),
        ] {
            let watched = connections.watch(fd, token, epoll::EventFlags::IN);
            watched.map_err(call("poll"))?;
        }
        let managed = config.managed_frames(total_memory());
        let restarted = has_persisted_tenants(&disk.swap);
        let tenants = Tenants::new(connections, jobs);
        let groups = groups_name(&config.socket, disk.swap.id());
        let mut contracts = Contracts {
            frames: FrameControl::new(tenants, &config.memory, managed, restarted),
            disk,
            scrubber,
            groups: CgroupRoot::open(&groups),
            fault_rates: FaultRates::new(config.faults),
            processor_time: ProcessorTime::new(config.disk.processor_time),
            unwritten: UnwrittenChanges::default(),
            postponed: PostponedJoins::default(),
            config,
        };
        contracts.load_tenants()?;
        Ok(Self {
            path: path.into(),
            contracts,
            signals,
            rss_measured: Instant::now(),
            _log: log,
        })
    }

    /// The path of the socket at which the daemon listens.
    pub fn socket(&self) -> &Path {
        &self.contracts.config.socket
    }

    /// Serves until a signal ends it. Tenants go on running, and wait for the next daemon.
    pub fn run(&mut self) -> Result<(), DaemonError> {
        loop {
            let tokens = self.connections().wait(self.timeout())?;
            self.contracts.frames.count_stall();
            for &token in &tokens {
                let begin = Instant::now();
                match (token, token & !0xffff_ffff) {
                    (UNIDENTIFIED, _) => self.connections_mut().on_unidentified(),
                    (JOBS, _) => self.on_jobs_done(),
                    (DISK, _) => self.on_disk_events(),
                    (SIGNALS, _) if self.on_signals() => return Ok(()),
                    (_, CONNECTION) => self.serve(token, MAX_BATCH),
                    (_, PRESSURE) => self.contracts.frames.on_pressure(token as TenantNumber),
                    _ => {}
                }
                self.contracts.frames.tenants.charge(token, begin);
            }
            self.contracts.frames.tenants.resume();
            if self.contracts.frames.timeout() == Some(Duration::ZERO) {
                self.enforce_deadlines();
                self.contracts.frames.tenants.turn.skip(processor_time());
            }
            let contracts = &mut self.contracts;
            let tenants = &mut contracts.frames.tenants;
            contracts.processor_time.tick(&contracts.disk.usd, tenants);
            contracts.fault_rates.send_due(tenants);
            if let Some(token) = tokens.last() {
                tenants.charge(*token, Instant::now());
            }
            self.serve_unidentified();
            if self.rss_measured.elapsed() >= RSS_INTERVAL {
                self.rss_measured = Instant::now();
                self.do_periodic_work();
            }
            self.contracts.frames.tenants.turn.skip(processor_time());
        }
    }

    /// Time until something is due.
    fn timeout(&self) -> Duration {
        let next = self.contracts.frames.timeout();
        let rss = RSS_INTERVAL.saturating_sub(self.rss_measured.elapsed());
        let processor = self.contracts.processor_time.timeout();
        let shares = self.contracts.fault_rates.timeout(Instant::now());
        let [unidentified, suspended] = [self.connections().timeout(), self.tenants().timeout()];
        let all = [next, unidentified, suspended, processor, shares];
        all.into_iter().flatten().fold(rss, Duration::min)
    }

    /// Enforces deadlines, after serving the messages that have arrived by now.
    fn enforce_deadlines(&mut self) {
        for number in self.tenants().numbers() {
            if let Some(token) = self.contracts.frames.connection_if_owing(number) {
                self.serve(token, MAX_BATCH);
            }
            self.contracts.frames.report_usage(number);
        }
        self.contracts.frames.count_stall();
        self.contracts.frames.tick();
        let _ = self.contracts.persist_changed();
    }

    fn do_periodic_work(&mut self) {
        let contracts = &mut self.contracts;
        let stall = contracts.frames.count_stall();
        // Where the kernel does not measure stalls, all time counts as waited for, but for deadlines only.
        if contracts.frames.is_stall_measured() {
            contracts
                .processor_time
                .on_stall(stall, &contracts.disk.usd);
        }
        contracts.frames.measure_rss_all();
        contracts.kill_lost();
        contracts.retry_writes();
        contracts.retry_joins();
        let tenants = &mut contracts.frames.tenants;
        contracts
            .groups
            .sweep(|number| tenants.get(number).is_some());
        tenants.connections.rearm_listener();
        tenants.jobs.retry();
        contracts.fault_rates.on_measured();
    }

    /// Handles signals. Returns true if the daemon is to end.
    fn on_signals(&mut self) -> bool {
        while let Some(signal) = self.signals.next() {
            match signal.ssi_signo as i32 {
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
        let contracts = &mut self.contracts;
        for what in contracts.config.differs(&new) {
            tracing::warn!("in the configuration {what}");
        }
        let managed = new.managed_frames(total_memory());
        if let Err(why) = contracts.frames.set_managed(managed) {
            tracing::warn!("memory.frames stays as it was: {why}");
        }
        contracts.frames.set_times(&new.memory);
        let tenants = &mut contracts.frames.tenants;
        contracts.fault_rates.reload(new.faults);
        tenants.connections.user_limits.read_persons();
        let old = &contracts.config;
        contracts.config = Config {
            socket: old.socket.clone(),
            disk: old.disk.clone(),
            ..new
        };
        tracing::info!("the configuration was read again");
    }

    fn on_jobs_done(&mut self) {
        let contracts = &mut self.contracts;
        while let Some(done) = contracts.frames.tenants.jobs.next() {
            match done {
                JobResult::Scrubbed(number, scrubbed) => contracts.on_scrubbed(number, *scrubbed),
                JobResult::MemoryFreed(number) => {
                    // The tenant's frames can be granted while its processes end.
                    contracts.frames.on_tenant_gone(number);
                    contracts.frames.tenants.await_end(number);
                }
                JobResult::Killed(number) | JobResult::Released(number) => {
                    contracts.release(number)
                }
                JobResult::LeaveRss(number, resident) => contracts.on_leave_rss(number, resident),
                JobResult::DiskDrained(number) => contracts.remove(number),
                JobResult::ExactRss(number, resident) => {
                    contracts.frames.on_exact_rss(number, resident)
                }
            }
        }
    }

    fn on_disk_events(&mut self) {
        while let Some(event) = self.contracts.disk.usd.next_event() {
            let tenants = &mut self.contracts.frames.tenants;
            match event {
                // No I/O of the channel is in flight any more.
                UsdEvent::Closed(id) => {
                    if let Some((number, channel)) = tenants.remove_channel(id) {
                        tenants.post(number, &DaemonEvent::Closed(channel));
                    }
                }
                UsdEvent::CutOff { channel, why } => {
                    if let Some(number) = tenants.owner_of(channel)
                        && !tenants.is_ending(number)
                    {
                        tracing::warn!("tenant {number} is disconnected: {why}");
                        tenants.kill(number);
                    }
                }
            }
        }
    }

    fn tenants(&self) -> &Tenants {
        &self.contracts.frames.tenants
    }

    fn connections(&self) -> &Connections {
        &self.tenants().connections
    }

    fn connections_mut(&mut self) -> &mut Connections {
        &mut self.contracts.frames.tenants.connections
    }
}
