//! Admission: what a client is served with, or why it is refused.

use crate::client::{ClientParts, note_present};
use crate::client_memory::ClientMemory;
use crate::client_record::{ClientRecord, MemoryKind};
use crate::commands::Commands;
use crate::disk_turns::DiskClient;
use crate::handoff::Handoff;
use crate::keeper_link::{KeepError, KeptPart, KeptSlot};
use crate::kept_service::KeptParts;
use crate::manager_state::ManagerState;
use crate::paging_object::{CreateError, PagingObject};
use crate::peer::Peer;
use crate::snapshot::Snapshot;
use disk::atropos::AdmissionError;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use store::StoreConfig;
use translation::{ForeignUserfault, Modes, TranslationError};
use wired::{Bytes, PAGE};

/// Why a complete hand-off is refused.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionRefusal {
    /// Too many clients.
    #[error("{0} clients are served already; --clients permits more")]
    Clients(usize),
    /// Too many of one user.
    #[error("{count} clients of user {uid} are served already; --clients-of-a-user permits more")]
    ClientsOfUser {
        /// The user.
        uid: u32,
        /// Its clients.
        count: usize,
    },
    /// A range that is not what the hand-off says.
    #[error("a mapping of the hand-off cannot be served: {0}")]
    Range(TranslationError),
    /// Frames that cannot be enforced.
    #[error("--frames {} cannot be kept for {}: {why}", Bytes(*frames), Bytes(*memory))]
    Frames {
        /// Bytes of the contract.
        frames: u64,
        /// Bytes of the memory.
        memory: u64,
        /// The reason, and what to do.
        why: String,
    },
    /// Huge pages over files that differ by small ones.
    #[error(
        "pages of 2 MiB cannot be served from differential snapshots; merge these into one file"
    )]
    Layers,
    /// The disk's time is promised.
    #[error(transparent)]
    Disk(#[from] AdmissionError),
    /// The store.
    #[error(transparent)]
    Store(#[from] CreateError),
    /// What the keeper does not take.
    #[error(transparent)]
    Keeper(#[from] KeepError),
    /// Its process ended while no manager ran.
    #[error("its process has ended")]
    Ended,
    /// What the keeper should have.
    #[error("the keeper does not have {0}")]
    Kept(&'static str),
    /// Tables and buffers.
    #[error("no memory for the client's tables: {0}")]
    Memory(#[from] io::Error),
}

/// Admits clients of one server.
pub(crate) struct Admission<'a> {
    pub shared: &'a ManagerState,
}

impl Admission<'_> {
    /// The record of a client that is not admitted yet.
    pub fn record(&self, peer: &Peer) -> Result<(Arc<ClientRecord>, OwnedFd), AdmissionRefusal> {
        let cache = self.shared.config.cache.as_ref();
        let is_cache = cache.is_some_and(|cache| is_mapped(peer.pid, cache.file(), peer));
        let kind = match &peer.memfd {
            Some(_) => MemoryKind::Memfd,
            None if is_cache => MemoryKind::Cache,
            None => MemoryKind::Private,
        };
        let number = self.shared.next_number();
        let record = ClientRecord::create(number, peer.pid, &peer.handoff, kind);
        Ok(record.map_err(io::Error::from)?)
    }

    /// Gathers what the client is served with, and has the keeper hold it.
    pub fn admit(
        &self,
        peer: Peer,
        (record, record_fd): (&Arc<ClientRecord>, OwnedFd),
        slot: Option<&KeptSlot>,
        commands: &Arc<Commands>,
    ) -> Result<ClientParts, AdmissionRefusal> {
        let config = &self.shared.config;
        let is_layered = config.snapshot.as_ref().is_some_and(Snapshot::is_layered);
        if is_layered && peer.handoff.page_size > PAGE {
            return Err(AdmissionRefusal::Layers);
        }
        let Peer { uffd, process, .. } = peer;
        let memory = self.memory(record, peer.memfd)?;
        let modes = Modes {
            missing: true,
            write_protect: memory.can_evict() && config.contract.is_some(),
            minor: memory.uses_minor_faults(),
        };
        for mapping in &peer.handoff.mappings {
            let registered = uffd.register(mapping.addr, mapping.len, modes);
            registered.map_err(AdmissionRefusal::Range)?;
        }
        let mut store_fds = Vec::new();
        let contract = match self.contract(&peer.handoff, &memory)? {
            None => None,
            Some((frames, store)) => {
                let turns = self.turns(store)?;
                let (paging, fds) = PagingObject::create(store, turns)?;
                store_fds = fds;
                Some((frames, paging))
            }
        };
        // A record that the keeper has is true: a manager that follows does not look again.
        note_present(record, &memory);
        if let Some(slot) = slot {
            let mut parts = vec![
                (KeptPart::Userfault, uffd.as_fd()),
                (KeptPart::Record, record_fd.as_fd()),
            ];
            let memfd = memory.memfd().map(|fd| (KeptPart::Memory, fd.as_fd()));
            let process = process.iter().map(|fd| (KeptPart::Process, fd.as_fd()));
            let store = store_fds.iter().map(|fd| (KeptPart::Store, fd.as_fd()));
            parts.extend(memfd.into_iter().chain(process).chain(store));
            slot.keep(&parts)?;
        }
        let kept = (Arc::clone(record), slot.cloned());
        Ok(self.parts(kept, (uffd, memory, process), contract, commands))
    }

    /// Gathers what a client is served with that a manager before has admitted.
    pub fn readmit(
        &self,
        (kept, children): KeptParts,
        slot: Option<KeptSlot>,
        commands: &Arc<Commands>,
    ) -> Result<ClientParts, AdmissionRefusal> {
        let config = &self.shared.config;
        let (mut uffd, mut record, mut memfd, mut process) = (None, None, None, None);
        let mut store_fds = Vec::new();
        for (part, fd) in kept {
            match part {
                KeptPart::Userfault => uffd = Some(fd),
                KeptPart::Record => record = Some(fd),
                KeptPart::Memory => memfd = Some(fd),
                KeptPart::Process => process = Some(fd),
                KeptPart::Store => store_fds.push(fd),
                // They have numbers.
                KeptPart::Child => {}
            }
        }
        let (Some(uffd), Some(record)) = (uffd, record) else {
            return Err(AdmissionRefusal::Kept("its userfaultfd, or its record"));
        };
        let record = ClientRecord::attach(record).map_err(io::Error::from)?;
        let uffd = ForeignUserfault::adopt(uffd)
            .map_err(|_| AdmissionRefusal::Kept("a descriptor that is its userfaultfd"))?;
        if !uffd.is_owner_alive() {
            return Err(AdmissionRefusal::Ended);
        }
        let memory = self.memory(&record, memfd)?;
        let contract = match &config.contract {
            Some((frames, store)) if !store_fds.is_empty() => {
                let turns = self.turns(store)?;
                let paging = PagingObject::resume(store, store_fds, turns, &record)?;
                Some((*frames, paging))
            }
            _ => None,
        };
        let parts = self.parts((record, slot), (uffd, memory, process), contract, commands);
        Ok(ClientParts { children, ..parts })
    }

    /// What a client is served with: what outlives this manager, the client's own, and its contract.
    fn parts(
        &self,
        (record, kept): (Arc<ClientRecord>, Option<KeptSlot>),
        (uffd, memory, process): (ForeignUserfault, ClientMemory, Option<OwnedFd>),
        contract: Option<(usize, PagingObject)>,
        commands: &Arc<Commands>,
    ) -> ClientParts {
        let snapshot = self.shared.config.snapshot.as_ref();
        ClientParts {
            origin: snapshot.map(|it| it.for_client(record.number(), commands)),
            record,
            kept,
            uffd,
            memory,
            contract,
            working_set: None,
            recording: None,
            process,
            children: BTreeMap::new(),
            stop: Arc::clone(&self.shared.stop),
            commands: Arc::clone(commands),
        }
    }

    fn memory(
        &self,
        record: &ClientRecord,
        memfd: Option<OwnedFd>,
    ) -> Result<ClientMemory, AdmissionRefusal> {
        let pid = record.pid();
        match (record.kind(), memfd, &self.shared.config.cache) {
            (MemoryKind::Memfd, Some(memfd), _) => Ok(ClientMemory::Memfd(memfd)),
            (MemoryKind::Cache, _, Some(cache)) => Ok(ClientMemory::Cache(Arc::clone(cache), pid)),
            (MemoryKind::Private, ..) => Ok(ClientMemory::Private(pid)),
            (MemoryKind::Memfd, None, _) => Err(AdmissionRefusal::Kept("its memfd")),
            (MemoryKind::Cache, _, None) => Err(AdmissionRefusal::Kept("the shared cache")),
        }
    }

    /// The frames of a client and the configuration of its store, where it needs one: what is within the frames is
    /// never evicted.
    fn contract(
        &self,
        handoff: &Handoff,
        memory: &ClientMemory,
    ) -> Result<Option<(usize, &StoreConfig)>, AdmissionRefusal> {
        let Some((frames, store)) = &self.shared.config.contract else {
            return Ok(None);
        };
        let pages = handoff.len() / handoff.page_size;
        if let Some(why) = memory.refuses(*frames, pages, handoff.page_size) {
            return Err(AdmissionRefusal::Frames {
                frames: (*frames * PAGE) as u64,
                memory: handoff.len() as u64,
                why,
            });
        }
        let fits = pages * (handoff.page_size / PAGE) <= *frames;
        Ok((!fits).then_some((*frames, store)))
    }

    fn turns(&self, store: &StoreConfig) -> Result<Option<DiskClient>, AdmissionError> {
        let disk = self.shared.config.disk;
        let admitted = store.disk.is_some().then(|| self.shared.turns.admit(disk));
        admitted.transpose()
    }
}

/// Returns true if a process maps `file` wherever its hand-off says.
fn is_mapped(pid: i32, file: &OwnedFd, peer: &Peer) -> bool {
    let (Ok(maps), Ok(stat)) = (
        std::fs::read_to_string(format!("/proc/{pid}/maps")),
        rustix::fs::fstat(file),
    ) else {
        return false;
    };
    peer.handoff.mappings.iter().all(|mapping| {
        maps.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace();
            let range = fields.next().and_then(|range| range.split_once('-'));
            let range = range.and_then(|(from, to)| {
                let number = |text| usize::from_str_radix(text, 16).ok();
                Some(number(from)?..number(to)?)
            });
            let offset = fields
                .nth(1)
                .and_then(|it| u64::from_str_radix(it, 16).ok());
            let inode = fields.nth(1).and_then(|it| it.parse().ok());
            let (Some(range), Some(offset)) = (range, offset) else {
                return false;
            };
            let end = mapping.addr + mapping.len;
            inode == Some(stat.st_ino)
                && range.start <= mapping.addr
                && end <= range.end
                && offset + (mapping.addr - range.start) as u64 == mapping.offset
        })
    })
}
