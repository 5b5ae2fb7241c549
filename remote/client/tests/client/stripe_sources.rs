//! What a stripe's parts are made of: objects that end early, and pages that cannot be read.

use crate::interposer::{Direction, Verdict};
use crate::space::Space;
use crate::stripes::{MEMBERS, RUN, check, runs, striped};
use crate::{EIO, PagingServer, is_create, refuse, wait_until};
use remote_wire::{Kind, Status};
use selfpage_remote_client::OBJECT_PAGES;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A page that each member has, and the server that cannot read it.
const BAD: u64 = 33;
const BAD_SERVER: usize = 1;
/// Pages of an object that ends within a run of a copy.
const SHORT: u64 = 100;

/// A stripe whose first server has ended. One of the others reads all pages but one place of its objects, and they make
/// copies or not.
fn with_bad_page(makes_copies: bool) -> (Vec<PagingServer>, Space) {
    let (mut servers, space) = striped(5);
    let requested = Arc::new(AtomicU64::new(0));
    for server in &servers {
        let requested = Arc::clone(&requested);
        server.interposer.set(move |_, header, body| {
            if !is_create(header, body) {
                return Verdict::Forward;
            }
            requested.fetch_add(1, Ordering::Relaxed);
            refuse(header, body, Status::Full)
        });
    }
    servers.remove(0);
    wait_until("its copies are given up", || {
        requested.load(Ordering::Relaxed) > 0
    });
    for (at, server) in servers.iter().enumerate() {
        server.interposer.set(move |direction, header, body| {
            let pages = header.page.0..header.page.0 + u64::from(header.pages);
            let is_read = direction == Direction::ToServer && header.kind == Kind::Read;
            if at == BAD_SERVER && is_read && pages.contains(&BAD) {
                return refuse(header, body, Status::Disk);
            }
            match !makes_copies && is_create(header, body) {
                true => refuse(header, body, Status::Full),
                false => Verdict::Forward,
            }
        });
    }
    (servers, space)
}

/// Reads all written pages but the bad ones, and returns the members whose bad page is an error.
fn check_beside_bad_page(space: &mut Space, byte_of: impl Fn(u64, u64) -> u8) -> Vec<u64> {
    let mut bad = Vec::new();
    for object in 0..MEMBERS {
        for page in runs(object).flat_map(|from| from..from + RUN as u64) {
            let read = space.read(page, 1);
            match page == object * OBJECT_PAGES + BAD && read.is_err() {
                true => {
                    assert_eq!(read, Err(EIO), "object {object}");
                    bad.push(object);
                }
                false => assert_eq!(read, Ok(vec![byte_of(object, page)]), "page {page}"),
            }
        }
    }
    bad
}

fn first_byte(object: u64, _: u64) -> u8 {
    1 + object as u8
}

#[test]
fn a_degraded_read_of_a_page_that_a_source_cannot_read_is_an_error_and_the_others_are_read() {
    let (servers, mut space) = with_bad_page(false);
    let bad = check_beside_bad_page(&mut space, first_byte);
    assert_eq!(bad.len(), 2, "{bad:?}");
    // The disk has recovered, and no page was lost by it.
    servers[BAD_SERVER].interposer.clear();
    check(&mut space);
}

#[test]
fn a_part_is_made_again_but_for_a_page_that_a_source_cannot_read() {
    let (servers, mut space) = with_bad_page(true);
    // A write waits until the part is made again, and the stripe has ended.
    for object in 0..MEMBERS {
        let first = runs(object).next().unwrap();
        assert_eq!(space.write(first, 1, 9), Ok(()), "object {object}");
    }
    let written = |object, page| match runs(object).next() == Some(page) {
        true => 9,
        false => first_byte(object, page),
    };
    let bad = check_beside_bad_page(&mut space, written);
    assert_eq!(bad.len(), 2, "{bad:?}");
    // What is written again is there again.
    servers[BAD_SERVER].interposer.clear();
    for object in bad {
        let page = object * OBJECT_PAGES + BAD;
        assert_eq!(space.write(page, 1, 7), Ok(()));
        assert_eq!(space.read(page, 1), Ok(vec![7]));
    }
}

#[test]
fn an_object_that_is_shorter_than_the_others_is_part_of_a_stripe() {
    for lost in [0, 1] {
        let mut servers: Vec<_> = (1..=5).map(PagingServer::start).collect();
        let addresses: Vec<SocketAddr> = servers.iter().map(PagingServer::address).collect();
        let mut space = Space::striped_pages((MEMBERS - 1) * OBJECT_PAGES + SHORT, &addresses);
        let firsts = (0..MEMBERS).map(|object| object * OBJECT_PAGES);
        let runs: Vec<u64> = firsts
            .flat_map(|first| (first..first + SHORT).step_by(RUN))
            .chain((0..MEMBERS - 1).map(|object| object * OBJECT_PAGES + SHORT))
            .collect();
        for from in &runs {
            space.write(*from, RUN, (*from % 251) as u8).unwrap();
        }
        wait_until("there is a stripe", || space.progress.stripes_made() > 0);
        // The second copies go with the next ticks.
        std::thread::sleep(Duration::from_millis(500));
        servers.remove(lost);
        for object in 0..MEMBERS - 1 {
            // Beyond the end of the short one.
            let around = object * OBJECT_PAGES + SHORT - 5;
            let read = space
                .read(around, RUN)
                .map(|pages| [pages[0], pages[RUN - 1]]);
            let written = [around - 5, around + 5].map(|from| (from % 251) as u8);
            assert_eq!(read, Ok(written), "object {object}");
        }
        for from in &runs {
            assert_eq!(space.read(*from, RUN), Ok(vec![(*from % 251) as u8; RUN]));
        }
    }
}
