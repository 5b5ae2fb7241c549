//! Pages that are encrypted before they leave the client's host.

use crate::interposer::{Direction, Verdict};
use crate::space::Space;
use crate::{EIO, PagingServer, refuse_all, refuse_copies, wait_for_pages};
use remote_wire::{Kind, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A space with a copy on each server, whose pages are encrypted.
pub fn space(servers: &[PagingServer]) -> Space {
    let addresses: Vec<_> = servers.iter().map(PagingServer::address).collect();
    Space::encrypted(&addresses, servers.len() as u8)
}

#[test]
fn servers_get_no_page_in_the_clear_and_the_client_reads_each() {
    let server = PagingServer::start(1);
    let written = Arc::new(AtomicU64::new(0));
    let clear = Arc::new(AtomicU64::new(0));
    let counters = (Arc::clone(&written), Arc::clone(&clear));
    server.interposer.set(move |direction, header, body| {
        if direction == Direction::ToServer && header.kind == Kind::Write {
            counters.0.fetch_add(1, Ordering::Relaxed);
            // No page of this test has another byte after one, and a ciphertext has runs of eight hardly ever.
            let has_run = body
                .windows(8)
                .any(|run| run.iter().all(|byte| *byte == run[0]));
            counters.1.fetch_add(has_run.into(), Ordering::Relaxed);
        }
        Verdict::Forward
    });
    let mut space = space(std::slice::from_ref(&server));
    space.write(0, 8, 1).unwrap();
    space.write(4, 8, 2).unwrap();
    assert_eq!(
        space.read(0, 16).unwrap(),
        [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0]
    );
    assert!(written.load(Ordering::Relaxed) >= 2);
    assert_eq!(clear.load(Ordering::Relaxed), 0);
}

#[test]
fn an_encrypted_page_is_read_from_a_copy_that_one_server_gave_the_other() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    refuse_copies(&servers[1].interposer);
    let mut space = space(&servers);
    space.write(0, 4, 1).unwrap();
    space.write(2, 4, 2).unwrap();
    wait_for_pages(&servers[1]);
    // The acknowledgement of what is copied, too, has arrived by then.
    std::thread::sleep(Duration::from_millis(500));
    refuse_all(&servers[0].interposer, Kind::Read, Status::NoObject);
    assert_eq!(space.read(0, 6).unwrap(), [1, 1, 2, 2, 2, 2]);
}

#[test]
fn an_encrypted_page_that_was_changed_is_an_error_at_the_only_copy() {
    let server = PagingServer::start(1);
    let mut space = space(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    server.interposer.set(|_, header, body| {
        if header.kind == Kind::ReadReply
            && let Some(last) = body.last_mut()
        {
            *last ^= 1;
        }
        Verdict::Forward
    });
    assert_eq!(space.read(0, 4), Err(EIO));
    server.interposer.clear();
    assert_eq!(space.read(0, 4).unwrap(), [1; 4]);
}
