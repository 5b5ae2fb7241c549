//! What systemd has of the service before ([`crate::kept_service`]), sorted by its names.
//!
//! Rule: nothing is guessed. What could be two clients', or another configuration's, is not served: systemd has it still,
//! so its guests wait.

mod error;
#[cfg(test)]
mod tests;

pub use error::FormerServiceError;

use crate::client_memory::SharedCache;
use crate::keeper_link::{ClientSlot, KeptPart};
use crate::kept_service::{KeptClient, KeptService, in_order_of_removal};
use crate::manager_record::ManagerRecord;
use crate::snapshot::Snapshot;
use crate::sockets::Sockets;
use crate::stored_name::StoredName;
use host::fd_reaper::{PeerFd, peer_uid};
use host::fd_store::FdStore;
use host::systemd::PassedFd;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::ioctl_fionread;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use translation::ForeignUserfault;

/// What there is, and where it is stored.
pub struct FormerService {
    store: Option<FdStore>,
    own: BTreeMap<StoredName, OwnedFd>,
    record: ManagerRecord,
    clients: BTreeMap<ClientSlot, BTreeMap<StoredName, OwnedFd>>,
    /// Clients of which two descriptors have the same name.
    doubled: BTreeSet<ClientSlot>,
}

impl FormerService {
    /// Sorts what systemd passed. Descriptors of unknown names are left to it. `text` describes how clients are served
    /// ([`crate::kept_service::describe`]), which is as they were before.
    pub fn sort(passed: Vec<PassedFd>, text: &str) -> Result<Self, FormerServiceError> {
        let names = passed.iter().map(|it| it.name.as_str());
        let store = FdStore::of_service(names);
        Self::sort_of(passed, store, text)
    }

    fn sort_of(
        passed: Vec<PassedFd>,
        mut store: Option<FdStore>,
        text: &str,
    ) -> Result<Self, FormerServiceError> {
        let (mut own, mut clients) = (BTreeMap::new(), BTreeMap::new());
        let mut doubled = BTreeSet::new();
        for PassedFd { name, fd } in passed {
            let Ok(found) = name.parse::<StoredName>() else {
                tracing::warn!("systemd passes a descriptor named {name:?}, which is not used");
                continue;
            };
            let place = match found.slot() {
                Some(slot) => clients.entry(slot).or_default(),
                None => &mut own,
            };
            match (place.insert(found, fd), found.slot()) {
                (None, _) => {}
                (Some(_), Some(slot)) => drop(doubled.insert(slot)),
                (Some(_), None) => return Err(FormerServiceError::Doubled(name)),
            }
        }
        if store.is_none() && !(own.is_empty() && clients.is_empty()) {
            return Err(FormerServiceError::NoStore);
        }
        let former = own.remove(&StoredName::Record);
        let former = former.map(|record| check_record(record, text));
        if let Some(Err(_)) = &former
            && !clients.values().any(is_guest)
        {
            tracing::info!(
                "the service before had other options, and has no guests any more: this one begins anew"
            );
            own.clear();
            clients.values_mut().for_each(close);
            clients.clear();
            store.iter_mut().for_each(|store| {
                let mut names = store.names("");
                names.retain(|name| name.parse::<StoredName>().is_ok());
                store.remove(in_order_of_removal(names));
                // Until then, its sockets are listened at.
                store.flush();
            });
        }
        let record = match former {
            Some(Ok(record)) => record,
            Some(Err(why)) if !clients.is_empty() => return Err(why),
            None if !clients.is_empty() => return Err(FormerServiceError::NoRecord(clients.len())),
            _ => ManagerRecord::new(text).map_err(FormerServiceError::Memory)?,
        };
        Ok(Self {
            store,
            record,
            own,
            clients,
            doubled,
        })
    }

    /// Returns true if what the service makes is stored, and outlives it.
    pub fn is_stored(&self) -> bool {
        self.store.is_some()
    }

    /// Returns true if there are clients.
    pub fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// The former cache, of the same snapshot.
    pub fn take_cache(
        &mut self,
        snapshot: &Snapshot,
    ) -> Result<Option<SharedCache>, FormerServiceError> {
        let Some(file) = self.own.remove(&StoredName::Cache) else {
            return Ok(None);
        };
        let cache = SharedCache::resume(file, snapshot);
        let wrong = |_| FormerServiceError::Kind("cache", "a cache of this snapshot");
        cache.map(Some).map_err(wrong)
    }

    /// What a keeper begins with: what there was, and new what was not.
    pub fn into_service(
        mut self,
        socket: &Path,
        cache: Option<&SharedCache>,
    ) -> Result<KeptService, FormerServiceError> {
        let handoffs = self.take_listener(StoredName::Handoffs, "handoffs")?;
        let control = self.take_listener(StoredName::Control, "control")?;
        let next = self.clients.keys().max();
        let next = next.map_or(0, |slot| slot.wrapping_add(1));
        let mut clients = BTreeMap::new();
        for (slot, found) in std::mem::take(&mut self.clients) {
            match self.client(slot, found) {
                Ok(client) => clients.extend(client.map(|client| (slot, client))),
                Err(why) => tracing::error!(
                    "systemd has descriptors of a guest (\"{slot}.\") that cannot be served, and waits: {why}"
                ),
            }
        }
        let mut service = KeptService {
            sockets: Sockets::resume(socket, handoffs, control)?,
            record: Arc::new(self.record),
            clients,
            next,
            store: self.store,
        };
        service.store_own(cache)?;
        Ok(service)
    }

    fn take_listener(
        &mut self,
        name: StoredName,
        text: &'static str,
    ) -> Result<Option<UnixListener>, FormerServiceError> {
        let Some(fd) = self.own.remove(&name) else {
            return Ok(None);
        };
        let is_listener = sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&fd) == Ok(SocketType::STREAM)
            && sockopt::socket_acceptconn(&fd) == Ok(true);
        match is_listener {
            true => Ok(Some(fd.into())),
            false => Err(FormerServiceError::Kind(text, "a listening UNIX socket")),
        }
    }

    /// What is kept of a client, if it has not ended, or why it is not complete.
    fn client(
        &mut self,
        slot: ClientSlot,
        mut found: BTreeMap<StoredName, OwnedFd>,
    ) -> Result<Option<KeptClient>, &'static str> {
        if self.doubled.contains(&slot) {
            return Err("two descriptors have the same name");
        }
        let connection = found.remove(&StoredName::Connection(slot));
        let connection = connection.ok_or("its connection is missing")?;
        if sockopt::socket_domain(&connection) != Ok(AddressFamily::UNIX) {
            return Err("its connection is no UNIX socket");
        }
        let has = |part| found.contains_key(&StoredName::Part(slot, part, 0));
        let is_admitted = has(KeptPart::Record);
        if is_admitted && !has(KeptPart::Userfault) {
            return Err("its userfaultfd is missing");
        }
        if !is_admitted && !found.is_empty() {
            // Its hand-off is received again, and these are made again; or it has ended, and a kill has left these.
            let is_handed_over = has_message(&connection);
            let uffd = found.get(&StoredName::Part(slot, KeptPart::Userfault, 0));
            if !is_handed_over && uffd.is_some_and(|uffd| !has_ended(uffd)) {
                return Err("its record is missing");
            }
            if let Some(store) = &mut self.store {
                let names = found.keys().map(StoredName::to_string);
                store.remove(names.chain((!is_handed_over).then(|| connection_name(slot))));
            }
            found.clear();
            if !is_handed_over {
                return Ok(None);
            }
        }
        let (mut parts, mut children) = (Vec::new(), BTreeMap::new());
        for (name, fd) in found {
            let StoredName::Part(_, part, index) = name else {
                continue;
            };
            if part == KeptPart::Child {
                children.insert(index, fd);
                continue;
            }
            let before = parts.iter().filter(|(it, _)| *it == part).count();
            if usize::from(index) != before {
                return Err("a descriptor of its store is missing");
            }
            parts.push((part, fd));
        }
        Ok(Some(KeptClient {
            slot,
            connection,
            parts,
            children,
        }))
    }
}

fn connection_name(slot: ClientSlot) -> String {
    StoredName::Connection(slot).to_string()
}

/// Returns true if descriptors may be those of a guest: it was admitted, and its process has not ended.
fn is_guest(found: &BTreeMap<StoredName, OwnedFd>) -> bool {
    let of_kind = |wanted| {
        let mut all = found.iter();
        all.find(|(name, _)| matches!(name, StoredName::Part(_, kind, _) if *kind == wanted))
    };
    let uffd = of_kind(KeptPart::Userfault);
    of_kind(KeptPart::Record).is_some() && !uffd.is_some_and(|(_, uffd)| has_ended(uffd))
}

/// Returns true if no process has the memory of a userfaultfd any more.
fn has_ended(uffd: &OwnedFd) -> bool {
    let uffd = uffd.try_clone().ok();
    let uffd = uffd.and_then(|uffd| ForeignUserfault::adopt(uffd).ok());
    uffd.is_some_and(|uffd| !uffd.is_owner_alive())
}

/// Closes what there is of a peer.
fn close(found: &mut BTreeMap<StoredName, OwnedFd>) {
    for (name, fd) in std::mem::take(found) {
        if let StoredName::Connection(_) = name {
            let uid = peer_uid(&fd);
            drop(PeerFd::new(fd, uid));
        }
    }
}

/// The record of the managers before, if clients were served as `text` describes it.
fn check_record(fd: OwnedFd, text: &str) -> Result<ManagerRecord, FormerServiceError> {
    let wrong = |_| FormerServiceError::Kind("manager", "a record of this version");
    let record = ManagerRecord::attach(fd).map_err(wrong)?;
    let former = record.text();
    let (mut was, mut is) = (former.lines(), text.lines());
    loop {
        match (was.next(), is.next()) {
            (None, None) => return Ok(record),
            (was, is) if was == is => {}
            (was, is) => {
                let shown = |it: Option<&str>| it.unwrap_or("no more options").to_owned();
                let (was, is) = (shown(was), shown(is));
                return Err(FormerServiceError::Changed { was, is });
            }
        }
    }
}

/// Returns true if something that was sent there was not taken.
fn has_message(connection: impl AsFd) -> bool {
    ioctl_fionread(connection).is_ok_and(|bytes| bytes > 0)
}
