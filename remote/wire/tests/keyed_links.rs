//! Frames that a peer sends over a link with keys without a pause.

use remote_keys::{Handshake, HostKey, Protocol, Trust, client_config, server_config};
use rustix::net::sockopt;
use selfpage_remote_wire::{FrameReader, FrameWriter, Header, Kind, Link, MAX_BODY};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);
/// Bytes that the sockets may hold, far more than a reader.
const AHEAD: usize = 16 * MAX_BODY;

/// A server's end and a client's end of a link with keys.
fn keyed_links() -> [Link; 2] {
    let key = || HostKey::decode(&HostKey::generate().unwrap()).unwrap();
    let keys = [key(), key()];
    let [of_server, of_client] = [0, 1].map(|at| Trust::Only(keys[at].fingerprint()));
    let server = server_config(&keys[0], of_client, &[Protocol::Pages]).unwrap();
    let client = client_config(&keys[1], of_server, Protocol::Pages).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // The kernel takes as much of it as it permits.
    sockopt::set_socket_recv_buffer_size(&near, AHEAD).unwrap();
    let (far, _) = listener.accept().unwrap();
    let other = std::thread::spawn(move || {
        let handshake = Handshake::server(&server).unwrap();
        handshake.complete(far, LIMIT).unwrap()
    });
    let handshake = Handshake::client(&client).unwrap();
    let near = handshake.complete(near, LIMIT).unwrap();
    [other.join().unwrap(), near].map(|stream| Link::keyed(stream).unwrap())
}

/// A socket does not become readable for what a fill leaves in the link, so the client's thread goes on until nothing is
/// left: a peer that sends without a pause would have the thread for itself.
#[test]
fn a_fill_leaves_nothing_in_a_link_whose_peer_sends_without_a_pause() {
    let [mut server, mut client] = keyed_links();
    let flood = std::thread::spawn(move || {
        let mut writer = FrameWriter::new(2).unwrap();
        let body = vec![0; MAX_BODY];
        // It ends with the client's end of the link.
        while writer.flush(&mut server).is_ok() {
            while writer
                .push(&Header::control(Kind::Notice, 0), &body)
                .is_ok()
            {}
        }
    });
    let mut reader = FrameReader::new().unwrap();
    for _ in 0..20 {
        // The flood gets ahead.
        std::thread::sleep(Duration::from_millis(10));
        for _ in 0..20 {
            assert!(reader.fill(&mut client).unwrap());
            while reader.next_frame().unwrap().is_some() {}
            assert!(!client.has_buffered_input());
        }
    }
    drop(client);
    flood.join().unwrap();
}
