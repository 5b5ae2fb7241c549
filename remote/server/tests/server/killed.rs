//! A server that is killed, and the next one at its address.

use crate::common::{Client, QOS, incarnation, page};
use remote_policy::identity::HostId;
use remote_wire::Status;
use remote_wire::identity::own_incarnation;
use selfpage_remote_server::{DiskConfig, Server, ServerConfig};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Set in the child, which is this test's own binary: its address and its file.
const ADDRESS: &str = "SELFPAGE_TEST_SERVER_ADDRESS";
const FILE: &str = "SELFPAGE_TEST_SERVER_FILE";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this binary as a server. Returns its address.
fn start(address: SocketAddr, file: &Path) -> (Killed, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "killed::serves_until_it_is_killed",
            "--nocapture",
        ])
        .env(ADDRESS, address.to_string())
        .env(FILE, file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("serving at ")?.parse().ok());
    (Killed(child), address.expect("the server starts"))
}

#[test]
fn serves_until_it_is_killed() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let server = Server::start(ServerConfig {
        listen: address.parse().unwrap(),
        server: own_incarnation(HostId(1000)),
        disk: Some(DiskConfig {
            path: std::env::var_os(FILE).unwrap().into(),
            size: 16 << 20,
        }),
        ..crate::common::config(1024)
    })
    .unwrap();
    println!("\nserving at {}", server.address());
    server.join().unwrap();
}

#[test]
fn a_killed_servers_permits_are_void_and_its_place_is_free() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("pages");
    let (first, address) = start(([127, 0, 0, 1], 0).into(), &file);
    let mut client = Client::greeted(address, incarnation(1, 1));
    let old = client.allocate(1, 64, QOS).unwrap();
    client.present(old).unwrap();
    let object = client.object(1);
    client.create(object, old.permit.id, 64).unwrap();
    client.write(object, 0, 1, &page(1)).unwrap();
    drop(first);
    assert_eq!(client.receive(), None, "its connections are closed");

    let (_second, address) = start(address, &file);
    let mut client = Client::greeted(address, incarnation(1, 1));
    assert_eq!(client.present(old).unwrap_err().0, Status::NoPermit);
    assert_eq!(client.read(object, 0, 1).unwrap_err().0, Status::NoObject);
    let new = client.allocate(2, 64, QOS).unwrap();
    client.present(new).unwrap();
    client.create(object, new.permit.id, 64).unwrap();
    // The file has the page still; no incarnation but the one that wrote it reads it.
    assert_eq!(client.read(object, 0, 1), Ok((vec![0], page(0))));
}
