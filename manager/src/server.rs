//! The server: accepts hand-offs, admits clients under their contracts, and starts their threads.

use crate::arrivals;
use crate::client_memory::SharedCache;
use crate::control::{self, control_path};
use crate::keeper::Inheritance;
use crate::keeper_link::KeeperLink;
use crate::kept_service::KeptClient;
use crate::manager_record::{ManagerRecord, lock_clients};
use crate::manager_state::{ClientEntry, ManagerState};
use crate::snapshot::Snapshot;
use crate::sockets::{Sockets, remove_socket};
use disk::atropos::DiskContract;
use disk::time::Nanos;
use objectstore::OpenError;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::StoreConfig;

/// How a server serves.
pub struct ManagerConfig {
    /// Where clients connect.
    pub socket: PathBuf,
    /// What untouched pages read; zeros without one.
    pub snapshot: Option<Snapshot>,
    /// Bytes that a client's offsets may cover, where there is no snapshot.
    pub size: u64,
    /// Each client's frames, of 4 KiB, and the store for what is beyond them.
    pub contract: Option<(usize, StoreConfig)>,
    /// Each client's part of the disk's time, where its store has a disk.
    pub disk: DiskContract,
    /// True if a working set is recorded and replayed.
    pub uses_working_set: bool,
    /// The cache that clones map.
    pub cache: Option<Arc<SharedCache>>,
    /// Clients at once, at most.
    pub most_clients: usize,
    /// Of which one user has this many at most.
    pub most_clients_of_a_user: usize,
    /// How long a peer may take for its hand-off.
    pub patience: Duration,
}

impl ManagerConfig {
    /// Disk time for clients whose contracts name none: what is left, equally.
    pub fn equal_share() -> DiskContract {
        DiskContract {
            period: Nanos::millis(250),
            slice: Nanos::ZERO,
            extra: true,
            laxity: Nanos::ZERO,
        }
    }
}

/// How long a manager whose keeper was killed may take to end, before another one serves its clients.
const FORMER_PATIENCE: Duration = Duration::from_secs(30);

/// How long threads may take to end. A call for a client's file may wait for the client; a save waits for the disk.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// A running server.
pub struct Manager {
    shared: Arc<ManagerState>,
    /// The lock on clients that outlive this process.
    _lock: Option<OwnedFd>,
    accepting: Option<JoinHandle<()>>,
    controlling: Option<JoinHandle<()>>,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// Its socket.
    #[error("cannot listen at {}: {error}{}", path.display(), advice(error))]
    Socket {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The manager of a keeper that was killed.
    #[error("the manager before, which serves the guests still, does not end: kill it ({0})")]
    Former(Errno),
    /// The store of the snapshot.
    #[error("the snapshot cannot be fetched: {0}")]
    Snapshot(#[from] OpenError),
    /// Threads and descriptors.
    #[error("the server cannot start: {0}")]
    System(#[from] io::Error),
}

/// What to do where a socket cannot be bound.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another manager serves there: name another path",
        io::ErrorKind::AlreadyExists => "; name another path",
        io::ErrorKind::NotFound => ": its folder is not there",
        io::ErrorKind::PermissionDenied => {
            "; name a path with --socket in a folder that this user may write in"
        }
        _ => "",
    }
}

/// Waits until a thread has ended. Returns false after the deadline.
fn await_end(thread: &JoinHandle<()>, deadline: Instant) -> bool {
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

impl Manager {
    /// Listens and serves, without a keeper: clients do not outlive this process. A socket that no server listens at
    /// any more is replaced.
    pub fn start(config: ManagerConfig) -> Result<Self, ManagerError> {
        let sockets = Sockets::listen(&config.socket)?;
        let record = Arc::new(ManagerRecord::new("").map_err(io::Error::from)?);
        Self::serve(config, sockets, record, None, Vec::new())
    }

    /// Serves under a keeper, and goes on with the clients that it has.
    pub fn resume(config: ManagerConfig, from: Inheritance) -> Result<Self, ManagerError> {
        let (record, link) = (Arc::clone(&from.record), from.link.clone());
        lock_clients(&from.lock, FORMER_PATIENCE).map_err(ManagerError::Former)?;
        let served = Self::serve(
            config,
            from.sockets,
            from.record,
            Some(from.link),
            from.clients,
        )?;
        record.count_served();
        link.report_ready();
        Ok(Self {
            _lock: Some(from.lock),
            ..served
        })
    }

    fn serve(
        config: ManagerConfig,
        sockets: Sockets,
        record: Arc<ManagerRecord>,
        keeper: Option<KeeperLink>,
        kept: Vec<KeptClient>,
    ) -> Result<Self, ManagerError> {
        if let Some(snapshot) = &config.snapshot {
            snapshot.start()?;
        }
        let shared = Arc::new(ManagerState::new(config, record, keeper)?);
        let pending = arrivals::resume(&shared, kept);
        let Sockets { handoffs, control } = sockets;
        let thread_shared = Arc::clone(&shared);
        let accepting = std::thread::Builder::new()
            .name("selfpage-accept".into())
            .spawn(move || arrivals::accept(&thread_shared, &handoffs, pending))?;
        let thread_shared = Arc::clone(&shared);
        let controlling = std::thread::Builder::new()
            .name("selfpage-control".into())
            .spawn(move || control::serve(&thread_shared, &control))?;
        Ok(Self {
            shared,
            _lock: None,
            accepting: Some(accepting),
            controlling: Some(controlling),
        })
    }

    /// The clients that are served now.
    pub fn clients(&self) -> Vec<ClientEntry> {
        self.shared.clients().clone()
    }

    /// Ends the service. Clients that still run wait at their next fault for ever, so this returns
    /// how many there were. Where systemd has them they wait for the next service: this process is to end then, as if it
    /// were killed.
    pub fn stop(mut self) -> usize {
        let left = self.shared.clients().len();
        if self
            .shared
            .keeper
            .as_ref()
            .is_some_and(KeeperLink::is_stored)
        {
            // Their threads serve them, and the lock is held, until the process ends.
            std::mem::forget(self);
            return left;
        }
        let _ = rustix::io::write(&*self.shared.stop, &1u64.to_ne_bytes());
        for thread in [self.accepting.take(), self.controlling.take()] {
            thread.map(JoinHandle::join);
        }
        self.shared.pending_handoffs().end_all();
        let threads = std::mem::take(&mut *self.shared.threads());
        let deadline = Instant::now() + STOP_PATIENCE;
        let waits = |thread: &JoinHandle<()>| !await_end(thread, deadline);
        let waiting = threads.iter().filter(|it| waits(it)).count();
        if waiting > 0 {
            tracing::error!(
                "{waiting} threads wait in the kernel for what clients have, and end with this process"
            );
        }
        let socket = &self.shared.config.socket;
        remove_socket(socket);
        remove_socket(&control_path(socket));
        left
    }
}
