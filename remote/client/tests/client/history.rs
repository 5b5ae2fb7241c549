//! Reads and writes at random while servers and the network fail, checked by a history of each page.
//!
//! One writer has several requests under way, of pages that differ. A page that is read has what the last
//! acknowledged write wrote, or what a later one that failed had begun to write.

use crate::interposer::{Direction, Network, Verdict};
use crate::space::{Page, Space};
use crate::{PagingServer, encryption, refuse, space_on, wait_until};
use iochannel::IoVec;
use remote_wire::{Kind, Status};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wired::PAGE;

const PAGES: u64 = 256;
/// Pages in a row: where a space has several objects, the next are in the next one.
const ROW: u64 = 64;
/// Requests under way at once: each has pages of its own.
const DEPTH: usize = 8;
/// Pages of a request, at most.
const RUN: u64 = 8;

/// What a page may have.
#[derive(Clone, Debug, Default)]
struct History {
    acknowledged: u64,
    /// Writes after it that failed.
    failed: Vec<u64>,
}

struct Request {
    first: u64,
    pages: Vec<Page>,
    pieces: Vec<IoVec>,
    /// What is written; `None` of a read.
    written: Option<u64>,
}

/// Random requests of one space, and what its pages may have.
struct Checker {
    random: fastrand::Rng,
    history: Vec<History>,
    /// The space's objects.
    objects: u64,
    under_way: BTreeMap<usize, Request>,
    last: u64,
    reads: u64,
    writes: u64,
    failures: u64,
}

/// The number that a page is full of, with its own number beside it.
fn fill(page: &mut Page, number: u64, written: u64) {
    for word in page.0.as_chunks_mut::<16>().0 {
        word[..8].copy_from_slice(&written.to_le_bytes());
        word[8..].copy_from_slice(&number.to_le_bytes());
    }
}

impl Checker {
    fn new(seed: u64, objects: u64) -> Self {
        Self {
            objects,
            random: fastrand::Rng::with_seed(seed),
            history: vec![History::default(); PAGES as usize],
            under_way: BTreeMap::new(),
            last: 0,
            reads: 0,
            writes: 0,
            failures: 0,
        }
    }

    /// Has requests made and checked until `is_over`, and then reads every page.
    fn run(&mut self, space: &mut Space, is_over: impl Fn() -> bool) {
        if self.objects > 1 {
            self.make_stripe(space);
        }
        while !is_over() {
            while self.under_way.len() < DEPTH {
                self.begin(space);
            }
            self.end_one(space);
        }
        while !self.under_way.is_empty() {
            self.end_one(space);
        }
        for first in (0..PAGES).step_by(RUN as usize) {
            self.start(space, 0, first, RUN, None);
            self.end_one(space);
        }
    }

    /// Writes every page, and waits for a stripe of all objects.
    fn make_stripe(&mut self, space: &mut Space) {
        for first in (0..PAGES).step_by(RUN as usize) {
            self.last += 1;
            self.start(space, 0, first, RUN, Some(self.last));
            self.end_one(space);
        }
        wait_until("there is a stripe", || space.progress.stripes_made() > 0);
    }

    /// Begins a request of pages that no other has.
    fn begin(&mut self, space: &mut Space) {
        let free = (0..DEPTH).find(|op| !self.under_way.contains_key(op));
        let count = self.random.u64(1..=RUN);
        let row = self.random.u64(0..PAGES / ROW) * ROW;
        let first = row + self.random.u64(0..=ROW - count);
        let is_apart = |other: &Request| {
            first + count <= other.first || other.first + other.pages.len() as u64 <= first
        };
        let (Some(op), true) = (free, self.under_way.values().all(is_apart)) else {
            return;
        };
        // A stripe ends with the first write of it.
        let requests_a_write = if self.objects > 1 { 300 } else { 2 };
        let written = (self.random.u32(0..requests_a_write) == 0).then(|| {
            self.last += 1;
            self.last
        });
        self.start(space, op, first, count, written);
    }

    fn start(
        &mut self,
        space: &mut Space,
        op: usize,
        first: u64,
        count: u64,
        written: Option<u64>,
    ) {
        let mut pages = vec![Page([0xee; PAGE]); count as usize];
        if let Some(written) = written {
            let numbered = pages.iter_mut().zip(first..);
            numbered.for_each(|(page, number)| fill(page, number, written));
        }
        let piece = |page: &mut Page| IoVec::page(page.0.as_mut_ptr());
        let pieces = pages.iter_mut().map(piece).collect();
        self.under_way.insert(
            op,
            Request {
                first,
                pages,
                pieces,
                written,
            },
        );
        let request = &self.under_way[&op];
        let row = first / ROW % self.objects;
        let at = (row * selfpage_remote_client::OBJECT_PAGES + first) * PAGE as u64;
        // SAFETY: pages and pieces are in vectors, which stay until the operation is reaped.
        unsafe {
            space
                .channel
                .begin(op, written.is_some(), &request.pieces, at)
        };
        space.channel.flush();
    }

    fn end_one(&mut self, space: &mut Space) {
        let (op, result) = space.channel.reap(true).unwrap();
        let request = self.under_way.remove(&op).unwrap();
        let is_done = result == (request.pages.len() * PAGE) as i32;
        self.failures += u64::from(!is_done);
        for (number, page) in (request.first..).zip(&request.pages) {
            let history = &mut self.history[number as usize];
            match (request.written, is_done) {
                (Some(written), true) => {
                    self.writes += 1;
                    *history = History {
                        acknowledged: written,
                        failed: Vec::new(),
                    };
                }
                (Some(written), false) => history.failed.push(written),
                (None, true) => {
                    self.reads += 1;
                    check(number, page, history);
                }
                (None, false) => {}
            }
        }
    }
}

fn check(number: u64, page: &Page, history: &History) {
    let there = u64::from_le_bytes(page.0[..8].try_into().unwrap());
    let mut expected = Page([0; PAGE]);
    if there != 0 {
        fill(&mut expected, number, there);
    }
    assert!(page.0 == expected.0, "page {number} is torn or another one");
    let is_known = there == history.acknowledged || history.failed.contains(&there);
    assert!(is_known, "page {number} has write {there}: {history:?}");
}

/// Runs the checker beside `disturb`, which has the servers; no request may fail.
fn none_fails(seed: u64, disturb: impl FnOnce(&mut Vec<PagingServer>) + Send) {
    none_fails_in(2, space_on, 1, seed, disturb);
}

/// Likewise, in a space of some kind.
fn none_fails_in(
    servers: u64,
    space: impl FnOnce(&[PagingServer]) -> Space,
    objects: u64,
    seed: u64,
    disturb: impl FnOnce(&mut Vec<PagingServer>) + Send,
) {
    let mut servers: Vec<_> = (1..=servers).map(PagingServer::start).collect();
    let mut space = space(&servers);
    let is_over = AtomicBool::new(false);
    let mut checker = Checker::new(seed, objects);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            disturb(&mut servers);
            is_over.store(true, Ordering::Relaxed);
        });
        checker.run(&mut space, || is_over.load(Ordering::Relaxed));
    });
    let Checker {
        reads,
        writes,
        failures,
        ..
    } = checker;
    eprintln!("{reads} reads, {writes} writes, {failures} failures");
    assert_eq!(failures, 0);
    assert!(reads > PAGES && writes > PAGES);
}

fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

/// Waits until a server has a copy of all pages: the client reads from it.
fn wait_for_copy(server: &PagingServer) {
    let pages = crate::count(&server.interposer, |header, _| header.kind == Kind::Read);
    let begun = Instant::now();
    while pages.load(Ordering::Relaxed) == 0 && begun.elapsed() < Duration::from_secs(10) {
        pause(10);
    }
}

#[test]
fn no_read_is_older_than_the_last_write_while_one_server_of_two_is_killed() {
    none_fails(1, |servers| {
        pause(300);
        servers.pop();
        pause(2500);
    });
}

#[test]
fn no_read_is_older_than_the_last_write_while_servers_are_partitioned_in_turn() {
    none_fails(2, |servers| {
        for turn in 0..4 {
            let server = &servers[turn % 2];
            pause(200);
            server.interposer.set_network(Network::Partitioned);
            // Longer than a silent server is waited for, and shorter.
            pause([4000, 500][turn / 2]);
            server.interposer.set_network(Network::Connected);
            // The copy is made again before the other one is lost.
            pause(6500);
            wait_for_copy(server);
        }
    });
}

#[test]
fn no_read_is_older_than_the_last_write_while_servers_of_stripes_are_silent_and_one_is_killed() {
    let addresses = |servers: &[PagingServer]| -> Vec<_> {
        servers.iter().map(PagingServer::address).collect()
    };
    let space = |servers: &[PagingServer]| Space::striped(4, &addresses(servers));
    none_fails_in(5, space, 4, 7, |servers| {
        pause(3000);
        for server in &*servers {
            pause(400);
            server.interposer.set_network(Network::Partitioned);
            pause(500);
            server.interposer.set_network(Network::Connected);
        }
        servers.pop();
        pause(3000);
    });
}

#[test]
fn no_read_is_older_than_the_last_write_while_connections_end_at_any_frame() {
    none_fails(3, |servers| end_connections(servers));
}

#[test]
fn no_encrypted_page_is_older_than_the_last_write_while_connections_end_at_any_frame() {
    none_fails_in(2, encryption::space, 1, 6, |servers| {
        end_connections(servers)
    });
}

fn end_connections(servers: &[PagingServer]) {
    for (seed, server) in servers.iter().enumerate() {
        let mut random = fastrand::Rng::with_seed(seed as u64);
        server
            .interposer
            .set(move |_, _, _| match random.u32(0..2000) {
                0 => Verdict::Close,
                1 => Verdict::HalfAndClose,
                _ => Verdict::Forward,
            });
    }
    pause(5000);
    servers.iter().for_each(|server| server.interposer.clear());
    pause(500);
}

#[test]
fn no_read_is_older_than_the_last_write_while_replies_are_delayed_and_reordered() {
    none_fails(4, |servers| {
        for (seed, server) in servers.iter().enumerate() {
            let mut random = fastrand::Rng::with_seed(seed as u64);
            server.interposer.set(move |direction, header, _| {
                let is_page = matches!(header.kind, Kind::ReadReply | Kind::WriteReply);
                match direction == Direction::ToClient && is_page {
                    true => Verdict::Delay(Duration::from_millis(random.u64(0..30))),
                    false => Verdict::Forward,
                }
            });
        }
        pause(3000);
    });
}

#[test]
fn no_read_is_older_than_the_last_write_while_requests_of_pages_are_reordered() {
    none_fails(5, |servers| {
        for (seed, server) in servers.iter().enumerate() {
            let mut random = fastrand::Rng::with_seed(seed as u64);
            server.interposer.set(move |_, header, _| {
                match matches!(header.kind, Kind::Read | Kind::Write) {
                    true => Verdict::Delay(Duration::from_millis(random.u64(0..30))),
                    false => Verdict::Forward,
                }
            });
        }
        pause(3000);
    });
}

/// Writes that were given up arrive late, once others of the same pages are in the file or at the server.
#[test]
fn no_read_is_older_than_the_last_write_while_writes_are_late_or_refused_before_a_paging_file() {
    let space = |servers: &[PagingServer]| Space::with_file(servers[0].address(), PAGES / 2, PAGES);
    none_fails_in(1, space, 1, 8, |servers| {
        let mut random = fastrand::Rng::with_seed(8);
        let interposer = &servers[0].interposer;
        interposer.set(move |direction, header, body| {
            match (direction == Direction::ToServer && header.kind == Kind::Write)
                .then(|| random.u32(0..100))
            {
                Some(0..3) => Verdict::Delay(Duration::from_millis(random.u64(600..2500))),
                Some(3) => Verdict::Drop,
                Some(4) => refuse(header, body, Status::Full),
                _ => Verdict::Forward,
            }
        });
        pause(3000);
        interposer.set_network(Network::Partitioned);
        pause(700);
        interposer.set_network(Network::Connected);
        pause(3500);
    });
}
