//! What must outlive a manager: the sockets, the clients' descriptors, the record of all managers. The keeper has it
//! ([`crate::keeper`]); and systemd, where the service has a descriptor store ([`host::fd_store`]).
//!
//! Rule: systemd has a client's record last. A client without one is not admitted: its hand-off is in its connection, and
//! is received again.

use crate::client_memory::SharedCache;
use crate::keeper_link::{ChildNumber, ClientSlot, KeptPart};
use crate::manager_record::ManagerRecord;
use crate::server::ManagerConfig;
use crate::sockets::Sockets;
use crate::stored_name::{StoredName, prefix};
use host::fd_reaper::{PeerFd, peer_uid};
use host::fd_store::{FdStore, FdStoreError};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, fcntl_getfl, open};
use rustix::io;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// What is kept of a client.
#[derive(Debug)]
pub struct KeptClient {
    /// Its number with the keeper.
    pub slot: ClientSlot,
    /// Its connection.
    pub connection: OwnedFd,
    /// Its descriptors; none before its hand-off was admitted.
    pub parts: Vec<(KeptPart, OwnedFd)>,
    /// Those of its children.
    pub children: BTreeMap<ChildNumber, OwnedFd>,
}

/// A client's descriptors, and those of its children.
pub type KeptParts = (Vec<(KeptPart, OwnedFd)>, BTreeMap<ChildNumber, OwnedFd>);

/// What a keeper has.
pub struct KeptService {
    /// Where clients and `selfpage vm` connect.
    pub sockets: Sockets,
    /// What all managers share.
    pub record: Arc<ManagerRecord>,
    /// The clients.
    pub clients: BTreeMap<ClientSlot, KeptClient>,
    /// The place of the next client.
    pub next: ClientSlot,
    /// Where all of it is, too.
    pub store: Option<FdStore>,
}

/// What may not change while there are guests, for [`ManagerRecord`]: an option a line.
pub fn describe(config: &ManagerConfig, cache: Option<&Path>) -> String {
    let mut text = format!("selfpage {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name} {value}");
    };
    line("--socket", config.socket.display().to_string());
    if let Some(snapshot) = &config.snapshot {
        line("--snapshot", snapshot.path().display().to_string());
        let files = "the snapshot's files (inode, size, time of the last change)";
        line(files, format!("{:?}", snapshot.identity()));
    }
    line("guests of at most", wired::Bytes(config.size).to_string());
    if let Some((frames, store)) = &config.contract {
        let frames = wired::Bytes((frames * wired::PAGE) as u64);
        line("--frames", frames.to_string());
        line("--store", store.to_string());
    }
    if let Some(cache) = cache {
        line("--shared-cache", cache.display().to_string());
    }
    text
}

/// Opens a client's memory again, as it is open: systemd stores an open file once, and a VMM may hand one over with each
/// of its mappings.
fn reopen(memory: &OwnedFd) -> io::Result<OwnedFd> {
    let access = fcntl_getfl(memory)? & OFlags::ACCMODE;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    // A lease of the VMM's on it makes no keeper wait.
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    open(path, access | flags, Mode::empty())
}

impl KeptService {
    /// Has systemd hold what all clients need, where it does not.
    pub(crate) fn store_own(&mut self, cache: Option<&SharedCache>) -> Result<(), FdStoreError> {
        let Some(store) = &mut self.store else {
            return Ok(());
        };
        let own = [
            (StoredName::Record, Some(self.record.as_fd())),
            (StoredName::Cache, cache.map(|it| it.file().as_fd())),
            (StoredName::Control, Some(self.sockets.control.as_fd())),
            (StoredName::Handoffs, Some(self.sockets.handoffs.as_fd())),
        ];
        for (name, fd) in own {
            if let Some(fd) = fd.filter(|_| !store.has(&name.to_string())) {
                store.put(&name.to_string(), fd)?;
            }
        }
        Ok(())
    }

    /// Returns true if systemd has what there is.
    pub fn is_stored(&self) -> bool {
        self.store.is_some()
    }

    /// Clients that were admitted.
    pub fn served_clients(&self) -> usize {
        let clients = self.clients.values();
        clients.filter(|it| !it.parts.is_empty()).count()
    }

    /// Adds a client of whom there is a connection.
    pub fn add(&mut self, connection: OwnedFd) -> ClientSlot {
        // The numbers begin again, beside clients that stay.
        while self.clients.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let slot = self.next;
        self.next = self.next.wrapping_add(1);
        // One that finds no place is refused when it is admitted.
        let _ = self.store_connection(slot, connection.as_fd());
        let client = KeptClient {
            slot,
            connection,
            parts: Vec::new(),
            children: BTreeMap::new(),
        };
        self.clients.insert(slot, client);
        slot
    }

    fn store_connection(
        &mut self,
        slot: ClientSlot,
        connection: BorrowedFd<'_>,
    ) -> Result<(), FdStoreError> {
        let name = StoredName::Connection(slot).to_string();
        match &mut self.store {
            Some(store) if !store.has(&name) => store.put(&name, connection),
            _ => Ok(()),
        }
    }

    /// Keeps more of a client: all of it, or nothing.
    pub fn keep(
        &mut self,
        slot: ClientSlot,
        parts: Vec<(KeptPart, OwnedFd)>,
    ) -> Result<(), FdStoreError> {
        let Some(mut client) = self.clients.remove(&slot) else {
            return Ok(());
        };
        let stored = match self.store_connection(slot, client.connection.as_fd()) {
            Ok(()) => {
                let stored = self.store_parts(slot, &client.parts, &parts);
                // The manager has the others, and closes them.
                if stored.is_ok() {
                    client.parts.extend(parts);
                }
                stored
            }
            refused => refused,
        };
        self.clients.insert(slot, client);
        stored
    }

    /// Closes children of a client that have ended, and keeps others, also where systemd does not take them. What lives
    /// is stored all the time: systemd takes no second descriptor of what it has, and a kill may follow each message to it.
    pub fn keep_children(
        &mut self,
        slot: ClientSlot,
        ended: &[ChildNumber],
        new: Vec<(ChildNumber, OwnedFd)>,
    ) {
        let Some(client) = self.clients.get_mut(&slot) else {
            return;
        };
        client.children.retain(|number, _| !ended.contains(number));
        client.children.extend(new);
        let Some(store) = &mut self.store else {
            return;
        };
        let name =
            |number: &ChildNumber| StoredName::Part(slot, KeptPart::Child, *number).to_string();
        store.remove(ended.iter().map(name));
        for (number, child) in &client.children {
            let name = name(number);
            if !store.has(&name) {
                // There is no room. The keeper has it.
                let _ = store.put(&name, child.as_fd());
            }
        }
    }

    fn store_parts(
        &mut self,
        slot: ClientSlot,
        there: &[(KeptPart, OwnedFd)],
        new: &[(KeptPart, OwnedFd)],
    ) -> Result<(), FdStoreError> {
        let Some(store) = &mut self.store else {
            return Ok(());
        };
        let count = |kind: KeptPart, of: &[(KeptPart, OwnedFd)]| {
            of.iter().filter(|(it, _)| *it == kind).count()
        };
        let named = new.iter().enumerate().map(|(at, (kind, fd))| {
            let index = count(*kind, there) + count(*kind, &new[..at]);
            (StoredName::Part(slot, *kind, index as u16), fd)
        });
        let (records, others): (Vec<_>, Vec<_>) =
            named.partition(|(name, _)| matches!(name, StoredName::Part(_, KeptPart::Record, _)));
        let all: Vec<_> = others.into_iter().chain(records).collect();
        for (at, (name, fd)) in all.iter().enumerate() {
            let own = matches!(name, StoredName::Part(_, KeptPart::Memory, _))
                .then(|| reopen(fd).ok())
                .flatten();
            let fd = own.as_ref().unwrap_or(fd);
            if let Err(why) = store.put(&name.to_string(), fd.as_fd()) {
                store.remove(all[..at].iter().map(|(name, _)| name.to_string()));
                return Err(why);
            }
        }
        Ok(())
    }

    /// Closes all that there is of a client. The manager has the descriptors, too, until `bell` is closed: what is closed
    /// last may have to wait for the peer, or for gigabytes to be freed.
    ///
    /// Rule: systemd loses the record first and the connection last, the mirror of how they came there. So what a kill
    /// leaves is told from a client that is served, and from a hand-off.
    pub fn release(&mut self, slot: ClientSlot, bell: Option<OwnedFd>) {
        let Some(client) = self.clients.remove(&slot) else {
            return;
        };
        if let Some(store) = &mut self.store {
            store.remove(in_order_of_removal(store.names(&prefix(slot))));
            bell.inspect(|bell| store.close_after(bell.as_fd()));
        }
        // Of a connection that the manager had no descriptor left for, this one is the last.
        let uid = peer_uid(&client.connection);
        drop(PeerFd::new(client.connection, uid));
    }
}

/// The names of a client's descriptors, in the order in which systemd loses them.
pub(crate) fn in_order_of_removal(mut names: Vec<String>) -> Vec<String> {
    names.sort_by_key(|name| match name.parse() {
        Ok(StoredName::Part(_, KeptPart::Record, _)) => 0,
        Ok(StoredName::Connection(_)) => 2,
        _ => 1,
    });
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::seqpacket;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn file() -> OwnedFd {
        memfd_create("file", MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn a_client_is_stored_whole_with_its_record_last_or_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, systemd) = seqpacket::pair().unwrap();
        let mut service = KeptService {
            sockets: Sockets::listen(&folder.path().join("socket")).unwrap(),
            record: Arc::new(ManagerRecord::new("").unwrap()),
            clients: BTreeMap::new(),
            next: 0,
            store: Some(FdStore::over(socket, 9, [])),
        };
        service.store_own(None).unwrap();
        let parts = || {
            use KeptPart::{Memory, Record, Store, Userfault};
            [Userfault, Record, Memory, Store]
                .map(|kind| (kind, file()))
                .into()
        };
        for slot in [0, 1] {
            assert_eq!(service.add(seqpacket::pair().unwrap().0), slot);
        }
        service.keep(0, parts()).unwrap();
        assert_eq!(service.keep(1, parts()), Err(FdStoreError::Full(9)));
        assert!(service.clients[&1].parts.is_empty());
        let child = |number| vec![(number, file())];
        service.keep_children(0, &[], child(0));
        assert_eq!(service.clients[&0].children.len(), 1, "it reads no zeros");
        service.release(1, None);
        service.keep_children(0, &[], Vec::new());
        service.keep_children(0, &[], child(1));
        service.keep_children(0, &[0], child(2));
        assert!(service.clients[&0].children.keys().eq(&[1, 2]));
        drop(service);
        let messages: Vec<_> = std::iter::from_fn(|| {
            let message = seqpacket::receive(&systemd, rustix::net::RecvFlags::DONTWAIT).ok()?;
            let text = String::from_utf8_lossy(message.as_slice()).into_owned();
            let (what, rest) = text.split_once("=1\nFDNAME=")?;
            Some(format!("{what} {}", rest.lines().next()?))
        })
        .collect();
        let stored = |name: &str| format!("FDSTORE {name}");
        let own = ["manager", "control", "handoffs"].map(stored);
        let of_clients = ["0.c", "1.c", "0.u0", "0.m0", "0.s0", "0.r0"].map(stored);
        assert_eq!(messages[..3], own);
        assert_eq!(messages[3..9], of_clients);
        let of_children = [
            "FDSTOREREMOVE 1.c",
            "FDSTORE 0.k0",
            "FDSTOREREMOVE 0.k0",
            "FDSTORE 0.k1",
        ];
        assert_eq!(messages[9..], of_children);
    }
}
