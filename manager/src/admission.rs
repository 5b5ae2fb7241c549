//! Admission: what a client is served with, or why it is refused.

use crate::client::ClientParts;
use crate::client_memory::ClientMemory;
use crate::commands::Commands;
use crate::counters::Counters;
use crate::paging_object::{CreateError, PagingObject};
use crate::peer::Peer;
use crate::recording::Recording;
use crate::server::ManagerState;
use crate::snapshot::Snapshot;
use disk::atropos::AdmissionError;
use rustix::fd::OwnedFd;
use selfpage::WorkingSet;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use translation::{Modes, TranslationError};
use wired::{Bytes, PAGE};

/// Why a complete hand-off is refused.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionRefusal {
    /// Too many clients.
    #[error("{0} clients are served already; --clients permits more")]
    Clients(usize),
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
    /// Tables and buffers.
    #[error("no memory for the client's tables: {0}")]
    Memory(#[from] io::Error),
}

/// Admits clients of one server.
pub(crate) struct Admission<'a> {
    pub shared: &'a ManagerState,
}

impl Admission<'_> {
    /// Gathers what the client is served with. The connection stays open beside it.
    pub fn admit(
        &self,
        peer: Peer,
        working_set: Option<WorkingSet>,
        recording: Option<Recording>,
        counters: &Arc<Counters>,
        commands: &Arc<Commands>,
    ) -> Result<(ClientParts, UnixStream), AdmissionRefusal> {
        let config = &self.shared.config;
        let is_layered = config.snapshot.as_ref().is_some_and(Snapshot::is_layered);
        if is_layered && peer.handoff.page_size > PAGE {
            return Err(AdmissionRefusal::Layers);
        }
        let is_cache = config
            .cache
            .as_ref()
            .is_some_and(|cache| peer.memfd.is_none() && is_mapped(peer.pid, cache.file(), &peer));
        let memory = match (peer.memfd, &config.cache) {
            (Some(memfd), _) => ClientMemory::Memfd(memfd),
            (None, Some(cache)) if is_cache => ClientMemory::Cache(Arc::clone(cache), peer.pid),
            _ => ClientMemory::Private(peer.pid),
        };
        let modes = Modes {
            missing: true,
            write_protect: memory.can_evict() && config.contract.is_some(),
            minor: is_cache,
        };
        for mapping in &peer.handoff.mappings {
            let registered = peer.uffd.register(mapping.addr, mapping.len, modes);
            registered.map_err(AdmissionRefusal::Range)?;
        }
        let pages = peer.handoff.len() / peer.handoff.page_size;
        let contract = match &config.contract {
            None => None,
            Some((frames, store)) => {
                if let Some(why) = memory.refuses(*frames, pages, peer.handoff.page_size) {
                    return Err(AdmissionRefusal::Frames {
                        frames: (*frames * PAGE) as u64,
                        memory: peer.handoff.len() as u64,
                        why,
                    });
                }
                let turns = match store.disk {
                    Some(_) => Some(self.shared.turns.admit(config.disk)?),
                    None => None,
                };
                // What is within the frames is never evicted.
                let fits = pages * (peer.handoff.page_size / PAGE) <= *frames;
                match fits {
                    true => None,
                    false => Some((*frames, PagingObject::create(store, turns)?)),
                }
            }
        };
        let parts = ClientParts {
            handoff: peer.handoff,
            uffd: peer.uffd,
            memory,
            origin: config.snapshot.clone(),
            contract,
            working_set,
            recording,
            process: peer.process,
            stop: Arc::clone(&self.shared.stop),
            counters: Arc::clone(counters),
            commands: Arc::clone(commands),
        };
        Ok((parts, peer.connection))
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
