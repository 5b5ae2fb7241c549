//! The server: accepts hand-offs, admits clients under their contracts, and starts their threads.

use crate::admission::{Admission, AdmissionRefusal};
use crate::client::HandlerThread;
use crate::client_memory::SharedCache;
use crate::commands::Commands;
use crate::control::{self, control_path};
use crate::counters::Counters;
use crate::disk_turns::DiskTurns;
use crate::peer::Peer;
use crate::recording::{Recording, WorkingSetFile};
use crate::snapshot::Snapshot;
use disk::atropos::DiskContract;
use disk::time::Nanos;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use selfpage::WorkingSet;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use store::StoreConfig;

/// Hand-offs that are received at once; others wait in the socket's backlog.
const MOST_PENDING: usize = 1024;

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

/// A client as others see it.
#[derive(Clone)]
pub struct ClientEntry {
    /// Its number, counted from 1.
    pub number: u64,
    /// The process that connected.
    pub pid: i32,
    /// Bytes of its memory.
    pub bytes: u64,
    /// What happened.
    pub counters: Arc<Counters>,
    /// What its thread is asked to do.
    pub commands: Arc<Commands>,
}

/// What the threads of a server share.
pub(crate) struct ManagerState {
    pub config: ManagerConfig,
    pub turns: DiskTurns,
    pub working_set: Option<WorkingSetFile>,
    pub stop: Arc<OwnedFd>,
    clients: Mutex<Vec<ClientEntry>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pending: AtomicUsize,
    numbers: AtomicUsize,
}

/// A running server.
pub struct Manager {
    shared: Arc<ManagerState>,
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
    /// Threads and descriptors.
    #[error("the server cannot start: {0}")]
    System(#[from] io::Error),
}

/// What to do where a socket cannot be bound.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; remove it if no other manager uses it",
        io::ErrorKind::NotFound => ": its folder is not there",
        _ => "",
    }
}

impl Manager {
    /// Listens and serves. A socket that no server listens at any more is replaced.
    pub fn start(config: ManagerConfig) -> Result<Self, ManagerError> {
        let listener = listen(&config.socket)?;
        let path = control_path(&config.socket);
        let control = listen(&path)?;
        let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, owner)?;
        let working_set = config.snapshot.as_ref().filter(|_| config.uses_working_set);
        let shared = Arc::new(ManagerState {
            working_set: working_set.map(WorkingSetFile::beside),
            stop: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?),
            config,
            turns: DiskTurns::default(),
            clients: Mutex::default(),
            threads: Mutex::default(),
            pending: AtomicUsize::new(0),
            numbers: AtomicUsize::new(0),
        });
        let thread_shared = Arc::clone(&shared);
        let accepting = std::thread::Builder::new()
            .name("selfpage-accept".into())
            .spawn(move || accept(&thread_shared, &listener))?;
        let thread_shared = Arc::clone(&shared);
        let controlling = std::thread::Builder::new()
            .name("selfpage-control".into())
            .spawn(move || control::serve(&thread_shared, &control))?;
        Ok(Self {
            shared,
            accepting: Some(accepting),
            controlling: Some(controlling),
        })
    }

    /// The clients that are served now.
    pub fn clients(&self) -> Vec<ClientEntry> {
        self.shared.clients().clone()
    }

    /// Ends the service. Clients that still run wait at their next fault for ever, so this returns
    /// how many there were.
    pub fn stop(mut self) -> usize {
        let left = self.shared.clients().len();
        let _ = rustix::io::write(&*self.shared.stop, &1u64.to_ne_bytes());
        let sockets = [
            self.shared.config.socket.clone(),
            control_path(&self.shared.config.socket),
        ];
        for (path, thread) in sockets
            .iter()
            .zip([self.accepting.take(), self.controlling.take()])
        {
            // Wakes the thread that accepts.
            let _ = UnixStream::connect(path);
            thread.map(JoinHandle::join);
        }
        let threads = std::mem::take(&mut *self.shared.threads());
        threads.into_iter().for_each(|it| drop(it.join()));
        for path in sockets {
            let _ = std::fs::remove_file(path);
        }
        left
    }
}

impl ManagerState {
    pub(crate) fn clients(&self) -> MutexGuard<'_, Vec<ClientEntry>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        let mut ready = [rustix::event::PollFd::new(
            &*self.stop,
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Enters a client in the list, if there is room.
    fn enter(
        &self,
        pid: i32,
        bytes: u64,
        counters: &Arc<Counters>,
        commands: &Arc<Commands>,
    ) -> Result<u64, AdmissionRefusal> {
        let mut clients = self.clients();
        if clients.len() >= self.config.most_clients {
            return Err(AdmissionRefusal::Clients(clients.len()));
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) as u64 + 1;
        clients.push(ClientEntry {
            number,
            pid,
            bytes,
            counters: Arc::clone(counters),
            commands: Arc::clone(commands),
        });
        Ok(number)
    }

    /// The set to replay; without one the client's faults are recorded.
    fn working_set(&self, pages: usize) -> (Option<WorkingSet>, Option<Recording>) {
        let Some(file) = &self.working_set else {
            return (None, None);
        };
        match file.load() {
            Ok(Some(set)) => (Some(set), None),
            Ok(None) => (None, Some(Recording::new(pages))),
            Err(why) => {
                tracing::warn!("{why}; a new working set is recorded");
                (None, Some(Recording::new(pages)))
            }
        }
    }

    fn keep_working_set(&self, recording: Option<Recording>) {
        let (Some(recording), Some(file)) = (recording, &self.working_set) else {
            return;
        };
        // The first clone to end has recorded; the others' sets are much the same.
        if recording.is_empty() || matches!(file.load(), Ok(Some(_))) {
            return;
        }
        match file.save(&recording.working_set()) {
            Ok(()) => tracing::info!(
                "a working set of {} pages is recorded in {}",
                recording.len(),
                file.path().display()
            ),
            Err(why) => tracing::warn!("the working set is not kept: {why}"),
        }
    }

    /// Receives a hand-off and serves the client until it ends.
    fn serve(&self, connection: UnixStream) {
        let covered = match &self.config.snapshot {
            Some(snapshot) => snapshot.len(),
            None => self.config.size,
        };
        let peer = Peer::receive(connection, covered, self.config.patience);
        self.pending.fetch_sub(1, Ordering::Relaxed);
        let peer = match peer {
            Ok(peer) => peer,
            Err(_) if self.is_stopping() => return,
            Err(why) => return tracing::warn!("a hand-off is refused: {why}"),
        };
        let (pid, bytes) = (peer.pid, peer.handoff.len() as u64);
        let pages = peer.handoff.len() / peer.handoff.page_size;
        let counters = Arc::new(Counters::default());
        let commands = match Commands::new() {
            Ok(commands) => Arc::new(commands),
            Err(why) => return tracing::warn!("the hand-off of process {pid} is refused: {why}"),
        };
        let number = match self.enter(pid, bytes, &counters, &commands) {
            Ok(number) => number,
            Err(why) => return tracing::warn!("the hand-off of process {pid} is refused: {why}"),
        };
        let (set, recording) = self.working_set(pages);
        let admission = Admission { shared: self };
        let client = admission
            .admit(peer, set, recording, &counters, &commands)
            .and_then(|(parts, connection)| Ok((HandlerThread::new(parts)?, connection)));
        match client {
            Ok((client, connection)) => {
                tracing::info!(
                    "serves client {number}, process {pid}, {}",
                    wired::Bytes(bytes)
                );
                let recording = client.serve();
                drop(connection);
                self.keep_working_set(recording);
                tracing::info!("client {number} has ended: {}", summary(&counters));
            }
            Err(why) => tracing::warn!("the hand-off of process {pid} is refused: {why}"),
        }
        self.clients().retain(|it| it.number != number);
    }
}

fn summary(counters: &Counters) -> String {
    let figures = counters.all().filter(|(_, value)| *value > 0);
    let figures: Vec<_> = figures
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    figures.join(", ")
}

fn listen(path: &Path) -> Result<UnixListener, ManagerError> {
    let fail = |error| ManagerError::Socket {
        path: path.to_owned(),
        error,
    };
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_abandoned = UnixStream::connect(path)
                .is_err_and(|why| why.kind() == io::ErrorKind::ConnectionRefused);
            if !is_abandoned {
                return Err(fail(error));
            }
            std::fs::remove_file(path).map_err(fail)?;
            UnixListener::bind(path).map_err(fail)
        }
        other => other.map_err(fail),
    }
}

fn accept(shared: &Arc<ManagerState>, listener: &UnixListener) {
    loop {
        let accepted = listener.accept();
        if shared.is_stopping() {
            return;
        }
        let connection = match accepted {
            Ok((connection, _)) => connection,
            Err(why) => {
                tracing::warn!("a connection cannot be accepted: {why}; pausing for 100 ms");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        while shared.pending.load(Ordering::Relaxed) >= MOST_PENDING && !shared.is_stopping() {
            std::thread::sleep(Duration::from_millis(1));
        }
        shared.pending.fetch_add(1, Ordering::Relaxed);
        let thread_shared = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("selfpage-client".into())
            .spawn(move || thread_shared.serve(connection));
        match thread {
            Ok(thread) => {
                let mut threads = shared.threads();
                threads.retain(|it| !it.is_finished());
                threads.push(thread);
            }
            Err(why) => {
                shared.pending.fetch_sub(1, Ordering::Relaxed);
                tracing::warn!("a client gets no thread: {why}");
            }
        }
    }
}
