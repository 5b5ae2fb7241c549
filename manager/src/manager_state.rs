//! What the threads of a server share.

use crate::admission::AdmissionRefusal;
use crate::client_record::ClientRecord;
use crate::commands::Commands;
use crate::counters::RecordedCounters;
use crate::disk_turns::DiskTurns;
use crate::keeper_link::KeeperLink;
use crate::kept_place::KeptPlace;
use crate::manager_record::ManagerRecord;
use crate::pending_handoffs::PendingHandoffs;
use crate::recording::{Recording, WorkingSetFile};
use crate::server::ManagerConfig;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use selfpage::WorkingSet;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A client as others see it.
#[derive(Clone)]
pub struct ClientEntry {
    /// Its number, counted from 1.
    pub number: u64,
    /// The process that connected.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Bytes of its memory.
    pub bytes: u64,
    /// What happened.
    pub counters: RecordedCounters,
    /// What its thread is asked to do.
    pub commands: Arc<Commands>,
}

impl ClientEntry {
    fn new(record: &Arc<ClientRecord>, commands: &Arc<Commands>, uid: u32) -> Self {
        Self {
            number: record.number(),
            pid: record.pid(),
            uid,
            bytes: record.handoff().len() as u64,
            counters: RecordedCounters::of(record),
            commands: Arc::clone(commands),
        }
    }
}

/// What the threads of a server share.
pub(crate) struct ManagerState {
    pub config: ManagerConfig,
    pub turns: DiskTurns,
    pub working_set: Option<WorkingSetFile>,
    pub stop: Arc<OwnedFd>,
    pub keeper: Option<KeeperLink>,
    /// Clients of the manager before that are not served again yet, and that new ones wait for.
    pub resuming: AtomicUsize,
    /// The users of those that new ones do not wait for: each has its place.
    held_up: Mutex<Vec<u32>>,
    record: Arc<ManagerRecord>,
    clients: Mutex<Vec<ClientEntry>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pending: Mutex<PendingHandoffs>,
}

impl ManagerState {
    pub fn new(
        config: ManagerConfig,
        record: Arc<ManagerRecord>,
        keeper: Option<KeeperLink>,
    ) -> io::Result<Self> {
        let working_set = config.snapshot.as_ref().filter(|_| config.uses_working_set);
        Ok(Self {
            working_set: working_set.map(WorkingSetFile::beside),
            stop: Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?),
            config,
            turns: DiskTurns::default(),
            keeper,
            resuming: AtomicUsize::new(0),
            held_up: Mutex::default(),
            record,
            clients: Mutex::default(),
            threads: Mutex::default(),
            pending: Mutex::default(),
        })
    }

    /// A number for a client.
    pub fn next_number(&self) -> u64 {
        self.record.next_number()
    }

    pub fn clients(&self) -> MutexGuard<'_, Vec<ClientEntry>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn held_up(&self) -> MutexGuard<'_, Vec<u32>> {
        self.held_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn pending_handoffs(&self) -> MutexGuard<'_, PendingHandoffs> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_stopping(&self) -> bool {
        let mut ready = [rustix::event::PollFd::new(
            &*self.stop,
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Starts the thread of a client or a request, for whose end the server's waits.
    pub fn spawn(
        self: &Arc<Self>,
        name: &str,
        serve: impl FnOnce(&Self) + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || serve(&shared))?;
        let mut threads = self.threads();
        threads.retain(|it| !it.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Enters a new client of a user in the list, if there is a place for it.
    pub fn admit(
        &self,
        record: &Arc<ClientRecord>,
        commands: &Arc<Commands>,
        uid: u32,
    ) -> Result<(), AdmissionRefusal> {
        let mut clients = self.clients();
        let held_up = self.held_up();
        let all = clients.len() + held_up.len();
        let users = clients.iter().map(|it| it.uid);
        let users = users.chain(held_up.iter().copied());
        let count = users.filter(|it| *it == uid).count();
        if all >= self.config.most_clients {
            return Err(AdmissionRefusal::Clients(all));
        }
        if count >= self.config.most_clients_of_a_user {
            return Err(AdmissionRefusal::ClientsOfUser { uid, count });
        }
        clients.push(ClientEntry::new(record, commands, uid));
        Ok(())
    }

    /// Enters a client that a manager before has admitted, which has kept its place until now.
    pub fn readmit(
        &self,
        record: &Arc<ClientRecord>,
        commands: &Arc<Commands>,
        place: KeptPlace<'_>,
    ) {
        let entry = ClientEntry::new(record, commands, place.uid());
        let mut clients = self.clients();
        clients.push(entry);
        // It is counted once at any moment.
        drop(place);
    }

    /// Removes a client from the list.
    pub fn leave(&self, number: u64) {
        self.clients().retain(|it| it.number != number);
    }

    /// The set to replay; without one the client's faults are recorded.
    pub fn working_set(&self, pages: usize) -> (Option<WorkingSet>, Option<Recording>) {
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

    pub fn keep_working_set(&self, recording: Option<Recording>) {
        let (Some(recording), Some(file)) = (recording, &self.working_set) else {
            return;
        };
        // The first clone to end has recorded; the others' sets are much the same.
        if !recording.is_worth_keeping() || matches!(file.load(), Ok(Some(_))) {
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
}
