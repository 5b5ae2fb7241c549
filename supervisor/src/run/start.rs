//! The start of a run: the supervisor's shared memory, the program, and the ways by which its
//! processes join.

use super::front_process::{KILL_LIMIT, release};
use super::limits::{self, Limit};
use super::program::ExecError;
use super::signals::{InheritedMask, Signals};
use super::spawn::{SpawnError, Spawned, spawn};
use super::{OWN_FAILURE, RunSpec, ram_alone_notice};
use crate::direct_io_filter::{self, Notifier};
use crate::memory_sampler::Sampler;
use crate::{StartError, Supervisor, SupervisorConfig};
use host::cpu_reservation::{ReservationError, ReservationGuard};
use host::{descriptor_limit, process_tree};
use protocol::contract_spec::FramePlacement;
use rustix::fd::{OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, set_child_subreaper, setsid};
use std::time::Instant;
use store::{DiskConfig, SetupError, SharedStore, StoreConfig};
use tenant::{Session, bind_to_node};
use wired::PAGE;

/// Why the program does not run.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("cannot supervise the program: {0}")]
    Watch(std::io::Error),
    #[error(transparent)]
    Start(StartError),
    #[error(transparent)]
    Limit(#[from] Limit),
    #[error(transparent)]
    Reservation(#[from] ReservationError),
    #[error(transparent)]
    Exec(ExecError),
    #[error(transparent)]
    Spawn(SpawnError),
    #[error("cannot admit processes: {0}")]
    Listen(std::io::Error),
    #[error("cannot map the stats page again: {0}")]
    StatsPage(Errno),
}

impl RunError {
    /// The exit status for this error.
    pub(super) fn status(&self) -> u8 {
        match self {
            Self::Exec(why) => why.status(),
            _ => OWN_FAILURE,
        }
    }
}

impl From<StartError> for RunError {
    fn from(why: StartError) -> Self {
        limits::behind(why.errno()).map_or(Self::Start(why), Self::Limit)
    }
}

/// A tree whose program runs.
pub(super) struct RunningTree {
    pub spec: RunSpec,
    pub supervisor: Supervisor,
    pub signals: Signals,
    pub program: RunningProgram,
}

/// A program that runs.
pub(super) struct RunningProgram {
    pub pid: Pid,
    pub begin: Instant,
    pub notifier: Option<Notifier>,
    pub sampler: Sampler,
}

/// Starts the program under a supervisor in this process. Control groups are named for `owner`.
/// `fds` are the descriptors that only the program is to hold.
///
/// `report` is called with a failure before the contract ends: the daemon kills a process whose connection has closed.
pub(super) fn start(
    mut spec: RunSpec,
    inherited: &InheritedMask,
    fds: &[RawFd],
    owner: u32,
    report: impl Fn(&RunError),
) -> Result<RunningTree, RunError> {
    let signals = set_child_subreaper(Some(getpid()))
        .map_err(Into::into)
        .and_then(|()| Signals::open())
        .map_err(RunError::Watch)
        .inspect_err(&report)?;
    let supervisor = start_supervisor(&mut spec).map_err(RunError::from);
    let mut supervisor = supervisor.inspect_err(&report)?;
    let started = start_program(&mut spec, &mut supervisor, inherited, fds, owner);
    let program = started.inspect_err(&report)?;
    Ok(RunningTree {
        spec,
        supervisor,
        signals,
        program,
    })
}

/// Starts the program under a supervisor that has its contract.
fn start_program(
    spec: &mut RunSpec,
    supervisor: &mut Supervisor,
    inherited: &InheritedMask,
    fds: &[RawFd],
    owner: u32,
) -> Result<RunningProgram, RunError> {
    if supervisor.store().is_some_and(SharedStore::is_in_memory) {
        tracing::warn!(
            "warning: the folder of the swap file is a file system in memory, so pages that are written \
             there stay in memory: name a folder on a disk, or ram:SIZE, which compresses them"
        );
    }
    if let Some(limits) = spec.fault_limits.take() {
        supervisor.set_fault_limits(limits);
    }
    limits::check_space()?;
    if let Some(through) = &spec.direct_io {
        let why = format!("direct I/O is possible from the start, through {through}");
        enable_pin_check(supervisor, &why);
    }
    let reserve = |reservation| ReservationGuard::take(reservation, owner);
    let reservation = spec.cpu.map(reserve).transpose()?;
    for note in reservation.iter().flat_map(ReservationGuard::notes) {
        tracing::warn!("{note}");
    }
    let begin = Instant::now();
    let spawned = spawn(spec, supervisor, inherited, reservation.as_ref());
    let Spawned { pid, listener } = spawned.map_err(|why| match why {
        SpawnError::Exec(errno) => RunError::Exec(ExecError::from_exec(&spec.program, errno)),
        why => RunError::Spawn(why),
    })?;
    // A process group is orphaned if no member's parent is in another group of the same session. A process whose parent
    // has ended becomes this process's child, so this process leaves the session, to keep such groups orphaned.
    let _ = setsid();
    // Five descriptors for each process of the tree; the program has inherited the old limit by now. Where that is not
    // enough, further processes are refused with the reason.
    let _ = descriptor_limit::raise();
    limits::raise_processor_time();
    match attach(supervisor, listener, fds) {
        Ok((notifier, sampler)) => Ok(RunningProgram {
            pid,
            begin,
            notifier,
            sampler,
        }),
        Err(why) => {
            process_tree::kill_below(KILL_LIMIT);
            Err(why)
        }
    }
}

/// Lets the processes of a program that has just started join.
fn attach(
    supervisor: &mut Supervisor,
    listener: Result<OwnedFd, Errno>,
    fds: &[RawFd],
) -> Result<(Option<Notifier>, Sampler), RunError> {
    if let Some(store) = supervisor.store() {
        store.grow_ahead().map_err(StartError::Store)?;
    }
    release(fds);
    let notifier = match admit_processes(listener, supervisor).map_err(RunError::Listen)? {
        Ok(notifier) => Some(notifier),
        Err(errno) => {
            let why = format!("direct I/O cannot be detected here (seccomp: {errno})");
            enable_pin_check(supervisor, &why);
            None
        }
    };
    let observed = supervisor.observed().map_err(RunError::StatsPage)?;
    Ok((notifier, Sampler::start(observed)))
}

/// Lets processes join: through the filter, or by sockets where there is no filter (`Err`).
fn admit_processes(
    listener: Result<OwnedFd, Errno>,
    supervisor: &mut Supervisor,
) -> std::io::Result<Result<Notifier, Errno>> {
    match listener {
        Ok(listener) => {
            supervisor.serve_filter(listener.try_clone()?)?;
            Ok(Ok(Notifier::new(listener)))
        }
        Err(errno) => {
            supervisor.listen()?;
            Ok(Err(errno))
        }
    }
}

/// Starts the supervisor. A default store whose file cannot be made after all (a disk quota,
/// for example) is in RAM alone.
fn start_supervisor(spec: &mut RunSpec) -> Result<Supervisor, StartError> {
    let tenant = spec
        .daemon
        .as_ref()
        .map(|(socket, request)| Session::join(socket, request));
    let mut tenant = tenant.transpose()?;
    if let Some(tenant) = &mut tenant {
        if let Some(limits) = &mut spec.fault_limits {
            limits.set_share(tenant.share_faults(limits.reservation())?);
        }
        let node = spec.daemon.as_ref().and_then(|(_, request)| request.place);
        if let Some(FramePlacement::Node(node)) = node {
            bind_to_node(node).map_err(StartError::call("bind memory to one node"))?;
        }
        let terms = tenant.terms();
        spec.frames = terms.frames.x;
        spec.ram.get_or_insert(u64::MAX);
        spec.store = Some(StoreConfig {
            ram: None,
            disk: Some(DiskConfig::by_daemon(terms.swap)),
        });
        tracing::info!("contract {}: {terms}", tenant.number());
        if !tenant.note().is_empty() {
            tracing::warn!("{}", tenant.note());
        }
    }
    if let (Some(limit), Some(store)) = (spec.ram, &mut spec.store) {
        let half = u64::from(spec.frames) * PAGE as u64 / 2;
        store.ram = Some(limit.min(half)).filter(|ram| *ram >= store::MIN_RAM);
    }
    let mut page_client = spec.page_client.take();
    let mut settings = |spec: &RunSpec, tenant| SupervisorConfig {
        page_client: page_client.take(),
        ram_of_frames: spec.ram.is_some()
            && spec.store.as_ref().is_some_and(|it| it.disk.is_some()),
        frames: spec.frames,
        store: spec.store.clone(),
        options: spec.flags,
        share_store: spec.share_store,
        userfaultfd: spec.userfaultfd.as_ref().and_then(|fd| fd.try_clone().ok()),
        tenant,
    };
    match Supervisor::start(settings(spec, tenant)) {
        Err(StartError::Store(why @ (SetupError::Path { .. } | SetupError::NoRoom { .. })))
            if spec.fallback_store.is_some() && spec.daemon.is_none() =>
        {
            spec.store = spec.fallback_store.take();
            if let Some(store) = &spec.store {
                tracing::warn!("{}", ram_alone_notice(store, &why.to_string()));
            }
            Supervisor::start(settings(spec, None))
        }
        started => started,
    }
}

fn enable_pin_check(supervisor: &Supervisor, why: &str) {
    direct_io_filter::be_careful(supervisor.stats_page());
    tracing::info!("{why}: every page is checked before it is evicted");
}
