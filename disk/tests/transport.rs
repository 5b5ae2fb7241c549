//! The disk's thread over a transport: pages in the memory of another thread.

mod tenant;

use disk::atropos::DiskContract;
use disk::time::{Nanos, Time};
use disk::usd::{BackgroundWork, IoTarget, PartId, Transport, Usd, UsdConfig};
use iochannel::{IoVec, MAX_RUN, Op};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tenant::*;

/// A byte of this page fails.
const BAD: u64 = 900;

/// Parts of this space are not served before the test permits it.
const STUCK: u32 = 77;

struct Part {
    id: PartId,
    op: Op,
    space: u32,
    pieces: Vec<(usize, usize)>,
    at: u64,
}

/// Keeps pages in a thread, which completes what it has in the opposite order.
struct Memory {
    queued: Vec<Part>,
    parts: Option<Sender<Vec<Part>>>,
    done: Receiver<(PartId, i32)>,
    bell: Arc<OwnedFd>,
    in_flight: usize,
    stuck: Vec<Part>,
    is_unstuck: Arc<AtomicBool>,
    own: OwnWork,
}

/// Pieces of a transport's own work, each of which takes some turns of the disk's thread.
#[derive(Default)]
struct OwnWork {
    left: u32,
    /// Parts are sent when it is done.
    is_awaited: bool,
    /// Turns that the piece in flight still takes.
    turns: Option<u32>,
    done: Arc<AtomicU32>,
}

impl Memory {
    fn start() -> Self {
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let (parts, work) = channel::<Vec<Part>>();
        let (sender, done) = channel();
        let ring = bell.clone();
        std::thread::spawn(move || {
            let mut pages = HashMap::new();
            while let Ok(mut all) = work.recv() {
                all.extend(work.try_iter().flatten());
                for part in all.into_iter().rev() {
                    let result = serve(&mut pages, &part);
                    sender.send((part.id, result)).unwrap();
                }
                write(&ring, &1u64.to_ne_bytes()).unwrap();
            }
        });
        Self {
            queued: Vec::new(),
            parts: Some(parts),
            done,
            bell,
            in_flight: 0,
            stuck: Vec::new(),
            is_unstuck: Arc::default(),
            own: OwnWork::default(),
        }
    }
}

fn serve(pages: &mut HashMap<(u32, u64), Page>, part: &Part) -> i32 {
    let mut at = part.at / PAGE as u64;
    for &(start, len) in &part.pieces {
        for start in (start..start + len).step_by(PAGE) {
            if at == BAD {
                return -Errno::IO.raw_os_error();
            }
            let place: *mut Page = std::ptr::with_exposed_provenance_mut(start);
            let page = pages.entry((part.space, at)).or_insert(Page([0; PAGE]));
            match part.op {
                // SAFETY: page buffers of a channel, which exist until the part is reaped.
                Op::Read => unsafe { place.write(*page) },
                // SAFETY: as above.
                Op::Write => *page = unsafe { place.read() },
            }
            at += 1;
        }
    }
    part.pieces.iter().map(|piece| piece.1 as i32).sum()
}

impl Transport for Memory {
    unsafe fn start(&mut self, _: Time, id: PartId, op: Op, space: u32, all: &[IoVec], at: u64) {
        let pieces = all
            .iter()
            .map(|one| (one.start.expose_provenance(), one.len));
        self.queued.push(Part {
            id,
            op,
            space,
            pieces: pieces.collect(),
            at,
        });
        self.in_flight += 1;
    }

    fn flush(&mut self, _: Time) {
        if self.own.is_awaited && (self.own.left > 0 || self.own.turns.is_some()) {
            return;
        }
        self.queued.append(&mut self.stuck);
        if !self.is_unstuck.load(Ordering::Relaxed) {
            let is_stuck = |part: &mut Part| part.space == STUCK;
            self.stuck = self.queued.extract_if(.., is_stuck).collect();
        }
        if let (false, Some(parts)) = (self.queued.is_empty(), &self.parts) {
            parts.send(std::mem::take(&mut self.queued)).unwrap();
        }
    }

    fn reap(&mut self, _: Time) -> Option<(PartId, i32)> {
        let _ = read(&self.bell, &mut [0; 8]);
        let done = self.done.try_recv().ok()?;
        self.in_flight -= 1;
        Some(done)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn next_due(&self) -> Option<Time> {
        (self.own.turns.is_some() || !self.stuck.is_empty()).then_some(Time(0))
    }

    fn background(&mut self) -> Option<BackgroundWork> {
        assert_eq!(self.own.turns, None, "a piece is in flight");
        (self.own.left > 0).then_some(BackgroundWork {
            read: 4 * PAGE as u32,
            written: 4 * PAGE as u32,
            is_awaited: self.own.is_awaited,
        })
    }

    fn start_background(&mut self, _: Time) {
        assert_eq!(self.own.turns, None, "a piece is in flight");
        self.own.left -= 1;
        self.own.turns = Some(3);
    }

    fn is_background_in_flight(&mut self) -> bool {
        match self.own.turns.take() {
            Some(1) => {
                self.own.done.fetch_add(1, Ordering::Relaxed);
                false
            }
            Some(turns) => {
                self.own.turns = Some(turns - 1);
                true
            }
            None => false,
        }
    }
}

fn space(number: u32) -> IoTarget {
    IoTarget::Space {
        number,
        size: 4 * MIB,
    }
}

/// Reads eight pages.
fn read_pages(channel: &mut Channel, first: u64) -> i32 {
    channel.transfer(false, &mut [Page([0; PAGE]); 8], first)
}

#[test]
fn pages_of_two_spaces_are_written_and_read_by_the_transport() {
    let usd = Usd::start_transport(Box::new(Memory::start()), quick()).unwrap();
    let mut tenants = [1, 2].map(|of| Tenant::new(&usd, plenty(), Some(space(of))));
    for (of, tenant) in (1..).zip(&mut tenants) {
        (0..256)
            .step_by(8)
            .for_each(|at| tenant.channel.write(of, at, 8));
    }
    for (of, tenant) in (1..).zip(&mut tenants) {
        (0..256)
            .step_by(4)
            .for_each(|at| tenant.channel.check(of, at, 4));
    }
    let stats = usd.client_stats(tenants[0].id).unwrap();
    assert_eq!((stats.totals.transactions, stats.failed), (96, 0));
    assert_eq!(usd.disk_stats().in_flight, 0);
}

#[test]
fn a_part_that_fails_or_lies_outside_fails_its_request_alone() {
    let usd = Usd::start_transport(Box::new(Memory::start()), quick()).unwrap();
    let mut tenant = Tenant::new(&usd, plenty(), Some(space(1)));
    let channel = &mut tenant.channel;
    channel.write(1, 890, 8);
    let failed = |errno: Errno| -errno.raw_os_error();
    assert_eq!(read_pages(channel, 896), failed(Errno::IO));
    assert_eq!(read_pages(channel, 1020), failed(Errno::INVAL));
    channel.check(1, 890, 8);
}

#[test]
fn a_thread_with_a_transport_alone_has_no_device() {
    let usd = Usd::start_transport(Box::new(Memory::start()), quick()).unwrap();
    let mut machine = Machine::new();
    let mut tenant = Tenant::new(&usd, plenty(), Some(machine.file(MIB)));
    let failed = -Errno::NODEV.raw_os_error();
    assert_eq!(read_pages(&mut tenant.channel, 0), failed);
}

/// A disk whose transport has work of its own, and how much of it is done.
fn with_own_work(pieces: u32) -> (Usd, Arc<AtomicU32>) {
    let mut memory = Memory::start();
    memory.own.left = pieces;
    let done = Arc::clone(&memory.own.done);
    (
        Usd::start_transport(Box::new(memory), quick()).unwrap(),
        done,
    )
}

#[test]
fn a_transports_own_work_is_done_once_it_has_a_contract_a_piece_at_a_time() {
    const PIECES: u32 = 200;
    let (usd, done) = with_own_work(PIECES);
    let mut tenant = Tenant::new(&usd, contract(80, 100), Some(space(1)));
    tenant.channel.write(1, 0, 8);
    assert_eq!(done.load(Ordering::Relaxed), 0);
    usd.admit_background(contract(1, 20)).unwrap();
    // Pages go on beside it.
    while done.load(Ordering::Relaxed) < PIECES {
        tenant.channel.check(1, 0, 8);
    }
    assert_eq!(usd.disk_stats().in_flight, 0);
}

#[test]
fn a_transports_own_work_without_slack_goes_on_beside_a_client_that_always_has_work() {
    let (usd, done) = with_own_work(u32::MAX);
    let mut tenant = Tenant::new(&usd, plenty(), Some(space(1)));
    tenant.channel.write(1, 0, 8);
    let own = DiskContract::new(Nanos::micros(100), Nanos::millis(20));
    usd.admit_background(own).unwrap();
    while done.load(Ordering::Relaxed) < 50 {
        tenant.channel.check(1, 0, 8);
    }
}

#[test]
fn own_work_that_a_request_waits_for_is_done_where_that_request_is_all_that_may_be_in_flight() {
    let mut memory = Memory::start();
    (memory.own.left, memory.own.is_awaited) = (5, true);
    let config = UsdConfig {
        bound: Nanos(1),
        ..quick()
    };
    let usd = Usd::start_transport(Box::new(memory), config).unwrap();
    usd.admit_background(contract(1, 20)).unwrap();
    let mut tenant = Tenant::new(&usd, plenty(), Some(space(1)));
    tenant.channel.write(1, 0, 8);
    tenant.channel.check(1, 0, 8);
}

#[test]
fn a_disk_whose_transport_completes_nothing_ends() {
    let usd = Usd::start_transport(Box::new(Memory::start()), quick()).unwrap();
    let mut stuck = Tenant::new(&usd, plenty(), Some(space(STUCK)));
    let mut page = pages(1, 0, 1);
    // SAFETY: no part of the operation is sent, and the transport has ended before the page has.
    unsafe { stuck.channel.client.begin(0, true, &pieces(&mut page), 0) };
    stuck.channel.client.flush();
    while usd.disk_stats().in_flight == 0 {}
    let (ended, is_over) = channel();
    let dropping = std::thread::spawn(move || {
        drop(usd);
        ended.send(()).unwrap();
    });
    let is_over = is_over.recv_timeout(Duration::from_secs(20));
    assert_eq!(is_over, Ok(()), "the disk's thread waits for the part");
    dropping.join().unwrap();
}

#[test]
fn a_client_whose_requests_do_not_complete_keeps_no_other_from_the_link() {
    let memory = Memory::start();
    let is_unstuck = Arc::clone(&memory.is_unstuck);
    let usd = Usd::start_transport(Box::new(memory), quick()).unwrap();
    let mut stuck = Tenant::new(&usd, plenty(), Some(space(STUCK)));
    let mut other = Tenant::new(&usd, plenty(), Some(space(1)));
    let mut written = pages(1, 0, 16 * MAX_RUN);
    let all: Vec<_> = written.chunks_mut(MAX_RUN).map(pieces).collect();
    for (op, pieces) in all.iter().enumerate() {
        // SAFETY: the pages outlive the operations, all of which end here.
        unsafe { stuck.channel.client.begin(op, true, pieces, 0) };
    }
    stuck.channel.client.flush();
    while usd.disk_stats().in_flight == 0 {}
    other.channel.write(2, 0, 8);
    other.channel.check(2, 0, 8);
    is_unstuck.store(true, Ordering::Relaxed);
    for _ in &all {
        let (_, moved) = stuck.channel.client.reap(true).unwrap();
        assert_eq!(moved, (MAX_RUN * PAGE) as i32);
    }
}
