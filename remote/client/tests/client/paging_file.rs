//! A local paging file behind a paging server that refuses writes, does not answer them, or answers late.

use crate::interposer::{Direction, Network, Verdict};
use crate::space::Space;
use crate::{PagingServer, count, refuse_all, refuse_copies, wait_until};
use remote_wire::{Kind, Status};
use selfpage_remote_client::OBJECT_PAGES;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PAGES: u64 = 64;

/// A server that has the first eight pages.
fn start() -> (PagingServer, Space) {
    let server = PagingServer::start(1);
    let mut space = Space::with_file(server.address(), PAGES, 2 * PAGES);
    write_at_servers(&mut space, std::slice::from_ref(&server), 1, 0);
    (server, space)
}

/// Writes eight pages from `first` on, until a write is followed by one that goes to servers, too: none was late.
fn write_at_servers(space: &mut Space, servers: &[PagingServer], copies: u64, first: u64) {
    let space = RefCell::new(space);
    wait_until("pages are at the servers", || {
        let arrived: Vec<_> = servers.iter().map(writes).collect();
        for _ in 0..2 {
            space.borrow_mut().write(first, 8, 1).unwrap();
        }
        let arrived = arrived.iter().map(|count| count.load(Ordering::Relaxed));
        arrived.sum::<u64>() >= 2 * copies
    });
    servers.iter().for_each(|server| server.interposer.clear());
}

/// Counts the writes that arrive at the server.
fn writes(server: &PagingServer) -> Arc<AtomicU64> {
    count(&server.interposer, |header, _| header.kind == Kind::Write)
}

/// Writes a page until a write of it arrives at the server. Returns what it has.
fn write_until_probed(space: &mut Space, server: &PagingServer, page: u64) -> u8 {
    let arrived = writes(server);
    let tried = RefCell::new((space, 100));
    wait_until("a write goes to the server again", || {
        let (space, byte) = &mut *tried.borrow_mut();
        *byte += 1;
        space.write(page, 1, *byte).unwrap();
        arrived.load(Ordering::Relaxed) > 0
    });
    let (_, byte) = tried.into_inner();
    byte
}

#[test]
fn pages_that_no_server_has_room_for_are_in_the_file() {
    let server = PagingServer::start(1);
    let mut space = Space::with_file(server.address(), PAGES, PAGES);
    refuse_copies(&server.interposer);
    space.write(0, 4, 1).unwrap();
    space.write(32, 4, 2).unwrap();
    space.write(2, 2, 3).unwrap();
    assert_eq!(space.read(0, 4), Ok(vec![1, 1, 3, 3]));
    assert_eq!(space.read(32, 4), Ok(vec![2; 4]));
}

#[test]
fn pages_that_the_server_refuses_are_in_the_file_and_go_back() {
    let (server, mut space) = start();
    for status in [Status::Disk, Status::Full] {
        refuse_all(&server.interposer, Kind::Write, status);
        space.write(2, 4, 2).unwrap();
        assert_eq!(
            space.read(0, 8),
            Ok(vec![1, 1, 2, 2, 2, 2, 1, 1]),
            "{status:?}"
        );
        let last = write_until_probed(&mut space, &server, 0);
        assert_eq!(space.read(0, 3), Ok(vec![last, 1, 2]), "{status:?}");
        space.write(0, 8, 1).unwrap();
    }
}

#[test]
fn a_server_that_is_silent_delays_reads_of_its_pages_and_no_writes() {
    let (server, mut space) = start();
    server.interposer.set_network(Network::Partitioned);
    space.write(0, 4, 2).unwrap();
    space.write(16, 4, 3).unwrap();
    assert_eq!(space.read(0, 4), Ok(vec![2; 4]));
    assert_eq!(space.read(16, 4), Ok(vec![3; 4]));
    let is_read = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let read = space.read(2, 4);
            is_read.store(true, Ordering::Relaxed);
            read
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!is_read.load(Ordering::Relaxed));
        server.interposer.set_network(Network::Connected);
        assert_eq!(reader.join().unwrap(), Ok(vec![2, 2, 1, 1]));
    });
}

/// The write that was given up arrives at the server after the one that took its place there.
#[test]
fn a_write_that_arrives_after_it_was_given_up_is_never_read() {
    let (server, mut space) = start();
    let late = Arc::new(AtomicBool::new(false));
    let is_late = Arc::clone(&late);
    server.interposer.set(move |direction, header, _| {
        let is_write = direction == Direction::ToServer && header.kind == Kind::Write;
        match is_write && !is_late.swap(true, Ordering::Relaxed) {
            true => Verdict::Delay(Duration::from_millis(2500)),
            false => Verdict::Forward,
        }
    });
    space.write(0, 4, 2).unwrap();
    assert!(late.load(Ordering::Relaxed), "it was sent");
    assert_eq!(space.read(0, 4), Ok(vec![2; 4]), "from the file");
    // After the diversion's first pause the next write goes to the server.
    std::thread::sleep(Duration::from_millis(1100));
    space.write(0, 4, 3).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(space.read(0, 4), Ok(vec![3; 4]));
    let arrived = writes(&server);
    space.write(0, 4, 4).unwrap();
    assert_eq!(arrived.load(Ordering::Relaxed), 1, "it is at the server");
    assert_eq!(space.read(0, 4), Ok(vec![4; 4]));
}

#[test]
fn servers_get_no_more_pages_than_their_part_of_the_space() {
    let (server, mut space) = start();
    let pages = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&pages);
    server.interposer.set(move |direction, header, _| {
        if direction == Direction::ToServer && header.kind == Kind::Write {
            counted.fetch_add(header.pages.into(), Ordering::Relaxed);
        }
        Verdict::Forward
    });
    for first in (0..2 * PAGES).step_by(16) {
        space.write(first, 16, 1 + (first / 16) as u8).unwrap();
    }
    let pages = pages.load(Ordering::Relaxed);
    assert!((1..=PAGES).contains(&pages), "{pages} pages");
    for first in (0..2 * PAGES).step_by(16) {
        let byte = 1 + (first / 16) as u8;
        assert_eq!(space.read(first, 16), Ok(vec![byte; 16]));
    }
}

/// A write to a stripe waits for pages that no server sends.
#[test]
fn a_write_that_waits_for_the_end_of_its_stripe_goes_to_the_file() {
    let servers: Vec<_> = (1..=5).map(PagingServer::start).collect();
    let addresses: Vec<_> = servers.iter().map(PagingServer::address).collect();
    let mut space = Space::striped_with_file(4, &addresses);
    for object in 0..4 {
        write_at_servers(&mut space, &servers, 2, object * OBJECT_PAGES);
    }
    wait_until("there is a stripe", || space.progress.stripes_made() > 0);
    for server in &servers {
        server.interposer.set_network(Network::Partitioned);
    }
    space.write(0, 2, 2).unwrap();
    assert_eq!(space.read(0, 2), Ok(vec![2; 2]));
    for server in &servers {
        server.interposer.set_network(Network::Connected);
    }
    assert_eq!(space.read(0, 4), Ok(vec![2, 2, 1, 1]));
}
