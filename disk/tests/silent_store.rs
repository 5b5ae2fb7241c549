//! The disk's thread over a store that does not answer, with a paging file beside it.

mod tenant;

use disk::time::Time;
use disk::usd::last_resort::{LastResort, PlacesSize, SPARE_SLOTS};
use disk::usd::{IoTarget, PartId, Transport, Usd};
use iochannel::{IoVec, Op};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use tenant::*;
use wired::WiredMemory;

/// Pages of the store and of the file, each.
const PAGES: u32 = 1024;
/// Requests of a channel.
const DEPTH: usize = 16;

struct Part {
    id: PartId,
    op: Op,
    pieces: Vec<IoVec>,
    at: u64,
}

/// A store that answers while it is to.
struct Store {
    pages: HashMap<u64, Page>,
    asked: VecDeque<Part>,
    given_up: VecDeque<PartId>,
    is_silent: Arc<AtomicBool>,
    bell: OwnedFd,
}

// SAFETY: the memory of the pieces is a channel's, which the disk's thread has mapped.
unsafe impl Send for Store {}

impl Transport for Store {
    unsafe fn start(&mut self, _: Time, id: PartId, op: Op, _: u32, pieces: &[IoVec], at: u64) {
        let pieces = pieces.to_vec();
        let at = at / PAGE as u64;
        self.asked.push_back(Part { id, op, pieces, at });
    }

    fn flush(&mut self, _: Time) {}

    fn reap(&mut self, _: Time) -> Option<(PartId, i32)> {
        if let Some(id) = self.given_up.pop_front() {
            return Some((id, -Errno::TIMEDOUT.raw_os_error()));
        }
        if self.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let part = self.asked.pop_front()?;
        let mut moved = 0;
        for (page, piece) in (part.at..).zip(&part.pieces) {
            assert_eq!(piece.len, PAGE, "the paging file's are pages");
            let place = piece.start.cast::<Page>();
            // SAFETY: a page buffer of a channel, which exists until the part is reaped.
            unsafe {
                match part.op {
                    Op::Read => place.write(self.pages[&page]),
                    Op::Write => _ = self.pages.insert(page, place.read()),
                }
            }
            moved += PAGE as i32;
        }
        Some((part.id, moved))
    }

    fn in_flight(&self) -> usize {
        self.asked.len() + self.given_up.len()
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn next_due(&self) -> Option<Time> {
        (!self.asked.is_empty()).then_some(Time(0))
    }

    fn give_up(&mut self, _: Time, id: PartId) {
        self.asked.retain(|part| part.id != id);
        self.given_up.push_back(id);
    }
}

fn disk_over_a_store() -> (Usd, Arc<AtomicBool>) {
    let is_silent = Arc::new(AtomicBool::new(false));
    let store = Store {
        pages: HashMap::new(),
        asked: VecDeque::new(),
        given_up: VecDeque::new(),
        is_silent: Arc::clone(&is_silent),
        bell: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
    };
    let size = PlacesSize {
        // Pages from here on go to the file.
        inner: PAGES / 2,
        file: PAGES,
        spare: SPARE_SLOTS,
    };
    let file = memfd_create("paging", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, u64::from(size.slots()) * PAGE as u64).unwrap();
    let table = Arc::new(WiredMemory::private(size.table_bytes()).unwrap());
    let transport = LastResort::new(Box::new(store), file.as_fd(), (table, 0), size).unwrap();
    (
        Usd::start_transport(Box::new(transport), quick()).unwrap(),
        is_silent,
    )
}

const SPACE: IoTarget = IoTarget::Space {
    number: 0,
    size: PAGES as u64 * PAGE as u64,
};

/// A tenant whose pages are written: those of the store, and eight of the file.
fn tenant_of(usd: &Usd) -> Tenant {
    let mut tenant = Tenant::new(usd, plenty(), Some(SPACE));
    let in_file = u64::from(PAGES) / 2;
    for first in (0..in_file).step_by(8) {
        tenant.channel.write(1, first, 8);
    }
    tenant.channel.write(1, in_file, 8);
    tenant
}

#[test]
fn a_page_of_the_file_is_signalled_while_reads_of_the_same_channel_wait() {
    let (usd, is_silent) = disk_over_a_store();
    let mut tenant = tenant_of(&usd);
    is_silent.store(true, Ordering::Relaxed);
    let client = &mut tenant.channel.client;
    let mut buffers = vec![[Page([7; PAGE])]; DEPTH];
    let all: Vec<_> = buffers.iter_mut().map(|buffer| pieces(buffer)).collect();
    let (in_file, in_store) = all.split_last().unwrap();
    for (number, pieces) in in_store.iter().enumerate() {
        // SAFETY: the pages outlive the operations, all of which end here.
        unsafe { client.begin(number, false, pieces, (number * PAGE) as u64) };
    }
    client.flush();
    let number = DEPTH - 1;
    // SAFETY: as above.
    unsafe { client.begin(number, false, in_file, u64::from(PAGES) / 2 * PAGE as u64) };
    client.flush();
    // As a handler thread waits: by the bell alone.
    let patience = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    let mut first = client.reap(false);
    let is_signalled = first.is_some() || {
        let mut bell = [PollFd::from_borrowed_fd(client.poll_fd(), PollFlags::IN)];
        poll(&mut bell, Some(&patience)) == Ok(1)
    };
    is_silent.store(false, Ordering::Relaxed);
    first = first.or_else(|| client.reap(true));
    for _ in in_store {
        client.reap(true).unwrap();
    }
    assert_eq!((is_signalled, first), (true, Some((number, PAGE as i32))));
}

#[test]
fn reads_of_a_store_that_does_not_answer_delay_no_page_of_the_file() {
    let (usd, is_silent) = disk_over_a_store();
    let mut tenant = tenant_of(&usd);
    let in_file = u64::from(PAGES) / 2;

    is_silent.store(true, Ordering::Relaxed);
    // More than the scheduler's bound, and than a window.
    let mut readers: Vec<_> = (0..12)
        .map(|_| Channel::new(&usd, tenant.id, &tenant.doorbell))
        .collect();
    let mut buffers = vec![[Page([7; PAGE])]; readers.len() * DEPTH];
    let all: Vec<_> = buffers.iter_mut().map(|buffer| pieces(buffer)).collect();
    for (number, pieces) in all.iter().enumerate() {
        let reader = &mut readers[number / DEPTH].client;
        // SAFETY: the pages outlive the operations, all of which end here.
        unsafe { reader.begin(number % DEPTH, false, pieces, (number * PAGE) as u64) };
        reader.flush();
    }
    let (done, is_done) = channel();
    let pager = std::thread::spawn(move || {
        for round in 2..20 {
            tenant.channel.check(round - 1, in_file, 8);
            tenant.channel.write(round, in_file, 8);
        }
        let _ = done.send(());
    });
    let is_done = is_done.recv_timeout(Duration::from_secs(10));
    let went_on = is_silent.swap(false, Ordering::Relaxed);
    for reader in &mut readers {
        for _ in 0..DEPTH {
            let (_, moved) = reader.client.reap(true).unwrap();
            assert_eq!(moved, PAGE as i32);
        }
    }
    for (number, buffer) in (0..).zip(&buffers) {
        assert_eq!(buffer[..], pages(1, number, 1));
    }
    pager.join().unwrap();
    assert_eq!((is_done, went_on), (Ok(()), true));
}
