//! Services that begin with what a test's systemd has.

use super::*;
use host::seqpacket;
use std::io::Write;
use std::os::unix::net::UnixStream;
use wired::WiredMemory;

const TEXT: &str = "selfpage\n--store ram:32M\n";

/// Descriptors under names, and the other ends of connections.
struct Stored {
    folder: tempfile::TempDir,
    passed: Vec<PassedFd>,
    peers: Vec<UnixStream>,
    systemd: OwnedFd,
    store: Option<FdStore>,
}

impl Stored {
    /// Of a service that has clients, of which there are these.
    fn of(parts: &[&str]) -> Self {
        let (socket, systemd) = seqpacket::pair().unwrap();
        let mut stored = Self {
            folder: tempfile::tempdir().unwrap(),
            passed: Vec::new(),
            peers: Vec::new(),
            systemd,
            store: None,
        };
        let record = ManagerRecord::new(TEXT).unwrap();
        stored.add("manager", record.as_fd().try_clone_to_owned().unwrap());
        for name in parts {
            let (peer, connection) = UnixStream::pair().unwrap();
            let memory = WiredMemory::shared(4096, "part").unwrap().1;
            let fd = if name.ends_with('c') {
                connection.into()
            } else {
                memory
            };
            stored.add(name, fd);
            stored.peers.push(peer);
        }
        let names = stored.passed.iter().map(|it| it.name.as_str());
        stored.store = Some(FdStore::over(socket, 100, names));
        stored
    }

    fn add(&mut self, name: &str, fd: OwnedFd) {
        let name = name.to_owned();
        self.passed.push(PassedFd { name, fd });
    }

    /// Has the service before served with another store.
    fn serve_otherwise(&mut self) {
        let record = ManagerRecord::new("selfpage\n--store ram:64M\n").unwrap();
        self.passed[0].fd = record.as_fd().try_clone_to_owned().unwrap();
    }

    fn resume(self) -> Result<(KeptService, Vec<String>), FormerServiceError> {
        let former = FormerService::sort_of(self.passed, self.store, TEXT)?;
        let service = former.into_service(&self.folder.path().join("socket"), None)?;
        let mut messages = Vec::new();
        while let Ok(message) = seqpacket::receive(&self.systemd, rustix::net::RecvFlags::DONTWAIT)
        {
            let text = String::from_utf8_lossy(message.as_slice());
            messages.push(text.lines().take(2).collect::<Vec<_>>().join(" "));
        }
        Ok((service, messages))
    }

    fn refusal(self) -> String {
        self.resume()
            .err()
            .map(|why| why.to_string())
            .unwrap_or_default()
    }
}

#[test]
fn clients_are_found_in_any_order_and_what_is_not_there_is_made() {
    let mut stored = Stored::of(&["70.s1", "70.u0", "7.c", "70.s0", "70.c", "70.r0", "70.k3"]);
    stored.add("of another", seqpacket::pair().unwrap().0);
    let (service, messages) = stored.resume().unwrap();
    let kinds = |slot| {
        let client: &KeptClient = &service.clients[&slot];
        client
            .parts
            .iter()
            .map(|(kind, _)| *kind)
            .collect::<Vec<_>>()
    };
    use KeptPart::{Record, Store, Userfault};
    assert_eq!(kinds(70), [Userfault, Record, Store, Store]);
    assert!(service.clients[&70].children.keys().eq(&[3]));
    assert!(kinds(7).is_empty(), "its hand-off is received");
    assert_eq!((service.next, service.served_clients()), (71, 1));
    let new = ["FDSTORE=1 FDNAME=control", "FDSTORE=1 FDNAME=handoffs"];
    assert_eq!(messages, new);
}

#[test]
fn a_client_that_is_not_complete_is_left_to_systemd_and_others_are_served() {
    for incomplete in [
        &["8.c", "8.u0"][..],
        &["8.c", "8.r0"],
        &["8.u0", "8.r0"],
        &["8.c", "8.u0", "8.r0", "8.s1"],
        &["8.c", "8.u0", "8.u0", "8.r0"],
        &["8.c", "8.c"],
    ] {
        let names: Vec<_> = ["7.c", "7.u0", "7.r0"]
            .iter()
            .chain(incomplete)
            .copied()
            .collect();
        let (service, messages) = Stored::of(&names).resume().unwrap();
        let slots: Vec<_> = service.clients.keys().copied().collect();
        assert_eq!((slots, service.next), (vec![7], 9), "{incomplete:?}");
        assert!(
            !messages.iter().any(|it| it.contains("REMOVE")),
            "{messages:?}"
        );
    }
}

#[test]
fn a_hand_off_that_was_not_admitted_is_received_again() {
    let mut stored = Stored::of(&["8.c", "8.u0", "8.s0"]);
    stored.peers[0].write_all(b"[").unwrap();
    let (service, messages) = stored.resume().unwrap();
    assert!(service.clients[&8].parts.is_empty());
    let removed = ["FDSTOREREMOVE=1 FDNAME=8.u0", "FDSTOREREMOVE=1 FDNAME=8.s0"];
    assert_eq!(messages[..2], removed);
}

#[test]
fn what_a_kill_has_left_of_a_client_that_has_ended_is_removed() {
    let (service, messages) = Stored::of(&["8.c", "8.s0"]).resume().unwrap();
    assert!(service.clients.is_empty());
    let removed = ["FDSTOREREMOVE=1 FDNAME=8.s0", "FDSTOREREMOVE=1 FDNAME=8.c"];
    assert_eq!(messages[..2], removed);
}

#[test]
fn without_guests_another_configuration_begins_anew() {
    let mut stored = Stored::of(&["7.c"]);
    stored.serve_otherwise();
    let listener = UnixListener::bind(stored.folder.path().join("former")).unwrap();
    stored.add("handoffs", listener.into());
    stored.add("cache", WiredMemory::shared(4096, "other").unwrap().1);
    stored.add("of another", seqpacket::pair().unwrap().0);
    let names = stored.passed.iter().map(|it| it.name.as_str());
    let (socket, systemd) = seqpacket::pair().unwrap();
    let _other = stored.store.replace(FdStore::over(socket, 100, names));
    let receiving = std::thread::spawn(move || {
        let next = || seqpacket::receive(&systemd, rustix::net::RecvFlags::empty()).ok();
        let messages = std::iter::from_fn(next).take_while(|message| message.len > 0);
        let text = |it: seqpacket::Received| String::from_utf8_lossy(it.as_slice()).into_owned();
        messages.map(text).collect::<Vec<_>>()
    });
    let (service, _) = stored.resume().unwrap();
    assert_eq!(service.record.text(), TEXT);
    assert!(service.clients.is_empty());
    drop(service);
    let messages = receiving.join().unwrap();
    let removed = ["cache", "handoffs", "manager", "7.c"];
    let removed = removed.map(|name| format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    assert_eq!(messages[..4], removed);
    assert_eq!(messages[4], "BARRIER=1");
    assert_eq!(messages.len(), 8, "{messages:?}");
}

#[test]
fn what_cannot_be_told_apart_or_was_served_otherwise_is_refused() {
    let mut stored = Stored::of(&["7.c"]);
    stored.passed.remove(0);
    assert!(stored.refusal().contains("1 guests, but not \"manager\""));
    let mut stored = Stored::of(&[]);
    stored.add("manager", WiredMemory::shared(4096, "other").unwrap().1);
    assert!(
        stored
            .refusal()
            .contains("two descriptors named \"manager\"")
    );
    let mut stored = Stored::of(&["7.c", "7.u0", "7.r0"]);
    stored.passed[0].fd = WiredMemory::shared(4096, "other").unwrap().1;
    assert!(stored.refusal().contains("is not a record"));
    let mut stored = Stored::of(&[]);
    stored.add("handoffs", UnixStream::pair().unwrap().0.into());
    assert!(stored.refusal().contains("is not a listening UNIX socket"));
    let mut stored = Stored::of(&[]);
    stored.store = None;
    assert!(stored.refusal().contains("FileDescriptorStoreMax="));
    let mut stored = Stored::of(&["7.c", "7.u0", "7.r0"]);
    stored.serve_otherwise();
    let refusal = stored.refusal();
    let both = "had \"--store ram:64M\", and this one has \"--store ram:32M\"";
    assert!(refusal.contains(both), "{refusal}");
}
