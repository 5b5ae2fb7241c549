//! Descriptors that systemd keeps for a service, beyond the end of its processes (sd_notify(3), `FDSTORE=1`).
//!
//! A service is started with the descriptors that it stored ([`crate::systemd::passed`]), in no order: the name of each
//! identifies it, and is given once. systemd sends no reply, and ignores descriptors beyond `FileDescriptorStoreMax=`, so
//! the store counts. systemd receives a message that the service's main process sent even if that process ends.

use crate::{seqpacket, systemd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Most descriptors: their names, of [`NAME`] bytes and a colon, are one variable of the environment, for which the
/// kernel has 128 KiB (MAX_ARG_STRLEN).
const MAX_FDS: usize = (128 << 10) / (NAME + 1) - 1;
/// Longest name, in bytes.
const NAME: usize = 15;
/// How long [`FdStore::flush`] waits for systemd.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The descriptors of this service that systemd has.
#[derive(Debug)]
pub struct FdStore {
    socket: OwnedFd,
    capacity: usize,
    names: BTreeSet<String>,
    /// Names whose removal systemd's socket had no room for, in the order of their removal.
    to_remove: VecDeque<String>,
}

/// Why a descriptor is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FdStoreError {
    /// The store has as many descriptors as systemd keeps.
    #[error(
        "the service's descriptor store is full, at {0}: raise FileDescriptorStoreMax= in its unit, up to {MAX_FDS}"
    )]
    Full(usize),
    /// A name that is too long, or that a stored descriptor has already.
    #[error("a descriptor's name has {NAME} bytes at most, and is given once")]
    Name,
    /// systemd's socket does not take the message.
    #[error("systemd takes no descriptor: {0}")]
    Send(Errno),
}

impl FdStore {
    /// The store of this service, if its environment has one: `FDSTORE` is the number of descriptors that it takes. `names`
    /// are those of the descriptors that it has. A process that a service starts inherits the environment, but systemd
    /// ignores its messages.
    pub fn of_service<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        // Since systemd 248.
        let main = systemd::number("SYSTEMD_EXEC_PID");
        if main.is_some_and(|main| main != std::process::id() as usize) {
            return None;
        }
        let capacity = systemd::number("FDSTORE").filter(|count| *count > 0)?;
        Some(Self::over(systemd::connect()?, capacity, names))
    }

    /// The store behind `socket`.
    pub fn over<'a>(
        socket: OwnedFd,
        capacity: usize,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self {
            socket,
            capacity: capacity.min(MAX_FDS),
            names: names.into_iter().map(str::to_owned).collect(),
            to_remove: VecDeque::new(),
        }
    }

    /// Stores a descriptor.
    pub fn put(&mut self, name: &str, fd: BorrowedFd<'_>) -> Result<(), FdStoreError> {
        if name.len() > NAME || self.has(name) {
            return Err(FdStoreError::Name);
        }
        if self.names.len() + self.to_remove.len() >= self.capacity {
            return Err(FdStoreError::Full(self.capacity));
        }
        // systemd would drop a connection whose peer has hung up.
        self.send(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), &[fd])?;
        self.names.insert(name.to_owned());
        Ok(())
    }

    /// The stored names that begin with `prefix`.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let from = self.names.range(prefix.to_owned()..);
        from.take_while(|it| it.starts_with(prefix))
            .cloned()
            .collect()
    }

    /// Removes descriptors, in this order. Where the message cannot be sent now, the next call sends it first.
    pub fn remove(&mut self, names: impl IntoIterator<Item = String>) {
        let names = names.into_iter();
        let stored = names.filter(|name| self.names.remove(name));
        self.to_remove.extend(stored);
        while let Some(name) = self.to_remove.front() {
            if self
                .send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])
                .is_err()
            {
                return;
            }
            self.to_remove.pop_front();
        }
    }

    /// Has systemd close a copy of a descriptor once it has handled the messages before (sd_notify_barrier(3)).
    pub fn close_after(&self, bell: BorrowedFd<'_>) {
        let _ = self.send("BARRIER=1", &[bell]);
    }

    /// Waits until systemd has handled the messages before, for a few seconds at most.
    pub fn flush(&self) {
        let Ok((own, bell)) = seqpacket::pair() else {
            return;
        };
        self.close_after(bell.as_fd());
        drop(bell);
        let _ = sockopt::set_socket_timeout(&own, sockopt::Timeout::Recv, Some(FLUSH_TIMEOUT));
        let _ = seqpacket::receive(&own, RecvFlags::empty());
    }

    /// Returns true if systemd has a descriptor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name) || self.to_remove.iter().any(|it| it == name)
    }

    fn send(&self, message: &str, fds: &[BorrowedFd<'_>]) -> Result<(), FdStoreError> {
        seqpacket::send(
            self.socket.as_fd(),
            message.as_bytes(),
            fds,
            SendFlags::empty(),
        )
        .map_err(FdStoreError::Send)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(capacity: usize) -> (FdStore, OwnedFd) {
        let (socket, systemd) = seqpacket::pair().unwrap();
        (FdStore::over(socket, capacity, []), systemd)
    }

    #[test]
    fn a_descriptor_is_stored_once_and_removed_by_its_name() {
        let (mut store, systemd) = store(3);
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for name in ["7.a", "7.b", "70.a"] {
            store.put(name, file.as_fd()).unwrap();
        }
        assert_eq!(store.put("7.a", file.as_fd()), Err(FdStoreError::Name));
        assert_eq!(store.put("8.a", file.as_fd()), Err(FdStoreError::Full(3)));
        assert_eq!(store.names("7."), ["7.a", "7.b"]);
        store.remove(["7.b", "7.a", "7.b"].map(str::to_owned));
        store.put("8.a", file.as_fd()).unwrap();
        store.close_after(file.as_fd());
        assert!(store.has("70.a") && !store.has("7.a"));
        drop(store);
        let next = || {
            let message = seqpacket::receive(&systemd, RecvFlags::empty()).unwrap();
            let text = String::from_utf8(message.as_slice().to_vec()).unwrap();
            (text, message.fds.iter().flatten().count())
        };
        for name in ["7.a", "7.b", "70.a"] {
            assert_eq!(next(), (format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), 1));
        }
        for name in ["7.b", "7.a"] {
            assert_eq!(next(), (format!("FDSTOREREMOVE=1\nFDNAME={name}"), 0));
        }
        assert_eq!(next().1, 1);
        assert_eq!(next(), ("BARRIER=1".to_owned(), 1));
    }

    #[test]
    fn a_removal_that_cannot_be_sent_is_sent_before_the_next() {
        let (mut store, systemd) = store(2);
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for name in ["7.a", "8.a"] {
            store.put(name, file.as_fd()).unwrap();
        }
        let socket = std::mem::replace(&mut store.socket, seqpacket::pair().unwrap().0);
        store.remove(["7.a".to_owned()]);
        assert_eq!(store.put("9.a", file.as_fd()), Err(FdStoreError::Full(2)));
        store.socket = socket;
        store.remove(["8.a".to_owned()]);
        store.put("7.a", file.as_fd()).unwrap();
        let messages: Vec<_> = std::iter::from_fn(|| {
            let message = seqpacket::receive(&systemd, RecvFlags::DONTWAIT).ok()?;
            Some(String::from_utf8_lossy(message.as_slice()).into_owned())
        })
        .collect();
        let removed = |name| format!("FDSTOREREMOVE=1\nFDNAME={name}");
        assert_eq!(messages[2..4], [removed("7.a"), removed("8.a")]);
        assert_eq!(messages.len(), 5);
    }

    #[test]
    fn a_descriptor_that_cannot_be_sent_is_not_in_the_store() {
        let (mut store, systemd) = store(3);
        drop(systemd);
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let refused = store.put("7.a", file.as_fd());
        assert_eq!(refused, Err(FdStoreError::Send(Errno::PIPE)));
        assert!(!store.has("7.a"));
        let long = "1234567890123456";
        assert_eq!(store.put(long, file.as_fd()), Err(FdStoreError::Name));
    }
}
