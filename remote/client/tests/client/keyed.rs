//! Links with keys: one to a host that is removed from the cluster ends.

use crate::space::Space;
use crate::{config, wait_until};
use remote_keys::Keyring;
use remote_policy::identity::Incarnation;
use remote_server::{Accept, Accepted, KeyedAcceptor, Server, ServerConfig, ServerHandle};
use remote_wire::identity::id_of_key;
use selfpage_remote_client::OBJECT_PAGES;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const OBJECTS: u64 = 2;

fn keyring() -> (TempDir, Arc<Keyring>) {
    let folder = tempfile::tempdir().unwrap();
    let keyring = Keyring::open(folder.path()).unwrap();
    keyring.set_own("host", None).unwrap();
    (folder, Arc::new(keyring))
}

struct Host {
    _folder: TempDir,
    keyring: Arc<Keyring>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    server: Server,
}

/// A server of 64 MiB on a host of its own, which is a member of a client's list.
fn start(number: u64, client: &Keyring) -> Host {
    let (folder, host) = keyring();
    client
        .update(|list| list.merge(&host.members().unwrap()))
        .unwrap();
    host.update(|list| list.merge(&client.members().unwrap()))
        .unwrap();
    let streams = Arc::default();
    let own = config(number);
    let id = id_of_key(own.server.host, Some(host.fingerprint()));
    let server = Server::start(ServerConfig {
        server: Incarnation {
            host: id,
            ..own.server
        },
        acceptor: Box::new(Watched {
            keyed: KeyedAcceptor::new(Arc::clone(&host)).unwrap(),
            streams: Arc::clone(&streams),
        }),
        ..own
    });
    Host {
        _folder: folder,
        keyring: host,
        streams,
        server: server.unwrap(),
    }
}

/// Keeps a hand on each connection.
struct Watched {
    keyed: KeyedAcceptor,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Accept for Watched {
    fn start(&mut self, server: ServerHandle) -> io::Result<()> {
        self.keyed.start(server)
    }

    fn accept(&mut self, stream: TcpStream) -> io::Result<Accepted> {
        self.streams.lock().unwrap().push(stream.try_clone()?);
        self.keyed.accept(stream)
    }
}

#[test]
fn a_link_ends_whose_host_is_removed_from_the_cluster() {
    let (_own, client) = keyring();
    let hosts = [1, 2].map(|number| start(number, &client));
    let addresses = [0, 1].map(|at: usize| hosts[at].server.address());
    // So that all connections are for pages.
    for Host {
        keyring, server, ..
    } in &hosts
    {
        let (key, address) = (keyring.fingerprint(), server.address().to_string());
        client
            .update(|list| list.set(key, "host", Some(&address)))
            .unwrap();
    }
    let mut space = Space::keyed(OBJECTS, &addresses, &client);
    for object in 0..OBJECTS {
        let byte = object as u8 + 1;
        space.write(object * OBJECT_PAGES, 4, byte).unwrap();
    }
    let ended = |host: &Host| {
        let streams = host.streams.lock().unwrap();
        let has_ended = |stream: &TcpStream| matches!(stream.peek(&mut [0]), Ok(0));
        !streams.is_empty() && streams.iter().all(has_ended)
    };
    assert!(!hosts.iter().any(ended));
    let removed = hosts[0].keyring.fingerprint();
    client.update(|list| list.remove(removed)).unwrap();
    wait_until("the link ends", || ended(&hosts[0]));
    assert!(!ended(&hosts[1]));
    for object in 0..OBJECTS {
        let bytes = space.read(object * OBJECT_PAGES, 4).unwrap();
        assert_eq!(bytes, [object as u8 + 1; 4]);
    }
}

#[test]
fn a_client_learns_the_list_of_a_server_that_served_after_it_joined() {
    let (_own, client) = keyring();
    let host = start(1, &client);
    let address = host.server.address();
    let listed = address.to_string();
    host.keyring.set_own("host", Some(&listed)).unwrap();
    let (_third, joined) = keyring();
    let theirs = joined.members().unwrap();
    host.keyring.update(|list| list.merge(&theirs)).unwrap();
    let _space = Space::keyed(OBJECTS, &[address], &client);
    wait_until("the list arrives", || {
        client.is_member(&joined.fingerprint())
    });
    let members = client.members().unwrap();
    let known = members.get(&host.keyring.fingerprint()).unwrap();
    assert_eq!(known.address, Some(listed));
}
