//! `selfpage serve` towards the shell: how it starts, what it refuses, how it ends.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

fn serve(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selfpage"));
    command
        .arg("serve")
        .args(arguments)
        .stderr(Stdio::piped())
        .env_remove("SELFPAGE_LOG");
    command
}

/// A server, its address, and the rest of its log.
fn start(arguments: &[&str]) -> (Child, String, impl Iterator<Item = String>) {
    let mut child = serve(&["--insecure", "--ram", "16M"])
        .args(arguments)
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let address = lines.find_map(|line| {
        let rest = line.split_once("serves 16MiB at ")?.1;
        Some(rest.split_once(',')?.0.to_owned())
    });
    (child, address.expect("the server starts"), lines)
}

fn refused(arguments: &[&str]) -> String {
    let output = serve(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn sigterm_ends_a_server_and_its_connections() {
    let (mut child, address, _log) = start(&["--listen", "127.0.0.1:0"]);
    let mut connection = TcpStream::connect(&address).unwrap();
    // SAFETY: sends a signal to the child, which has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let read = std::io::Read::read(&mut connection, &mut [0]);
    assert!(!matches!(read, Ok(1..)), "{read:?}");
}

#[test]
fn a_second_server_at_the_address_is_refused() {
    let (mut child, address, _log) = start(&["--listen", "127.0.0.1:0"]);
    let why = refused(&["--insecure", "--ram", "16M", "--listen", &address]);
    assert!(why.contains("another server does"), "{why}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_peer_of_another_protocol_is_named_in_the_log() {
    let (mut child, address, mut log) = start(&["--listen", "127.0.0.1:0"]);
    let mut connection = TcpStream::connect(&address).unwrap();
    let peer = connection.local_addr().unwrap();
    let line = "GET / HTTP/1.1\r\nUser-Agent: a browser\r\n".repeat(4);
    connection.write_all(line.as_bytes()).unwrap();
    let named = log.find(|line| line.contains(&format!("connection of {peer} closed")));
    let named = named.expect("the server logs it");
    assert!(named.contains("does not speak this protocol"), "{named}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_server_serves_the_members_of_its_cluster_unless_asked_otherwise() {
    let state = tempfile::tempdir().unwrap();
    let mut child = serve(&["--ram", "16M", "--listen", "127.0.0.1:0"])
        .env("XDG_STATE_HOME", state.path())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let line = lines
        .find(|line| line.contains("serves 16MiB at "))
        .unwrap();
    assert!(line.contains("to the members of its cluster"), "{line}");
    let address = line
        .split_once(" at ")
        .unwrap()
        .1
        .split_once(',')
        .unwrap()
        .0;
    // The broker's task has lines of its own in between.
    assert!(lines.any(|line| line.contains("selfpage cluster invite")));
    // A client in the clear reads why, and so does the log.
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(b"SPRP, a frame in the clear").unwrap();
    let mut reply = Vec::new();
    std::io::Read::read_to_end(&mut connection, &mut reply).unwrap();
    let reply = String::from_utf8_lossy(&reply);
    assert!(reply.contains("leave out --insecure"), "{reply}");
    assert!(lines.any(|line| line.contains("the peer sends in the clear")));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_cluster_has_the_address_that_is_advertised() {
    let state = tempfile::tempdir().unwrap();
    let arguments = ["--ram", "16M", "--listen", "127.0.0.1:0"];
    let mut child = serve(&arguments)
        .args(["--advertise", "10.77.7.7"])
        .env("XDG_STATE_HOME", state.path())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut log = log.map_while(Result::ok);
    assert!(log.any(|line| line.contains("serves 16MiB at ")));
    let shown = Command::new(env!("CARGO_BIN_EXE_selfpage"))
        .args(["cluster", "show"])
        .env("XDG_STATE_HOME", state.path())
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(" 10.77.7.7:"), "{shown}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_server_has_as_many_descriptors_as_it_may() {
    let (mut child, ..) = start(&["--listen", "127.0.0.1:0"]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let fields: Vec<_> = line.unwrap().split_whitespace().collect();
    assert_eq!(fields[3], fields[4], "{line:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn sizes_that_cannot_be_served_are_refused() {
    let why = refused(&["--insecure", "--ram", "1000T"]);
    assert!(why.contains("more than this machine"), "{why}");
    let why = refused(&["--insecure", "--ram", "1K", "--listen", "127.0.0.1:0"]);
    assert!(why.contains("expected 4K"), "{why}");
}
