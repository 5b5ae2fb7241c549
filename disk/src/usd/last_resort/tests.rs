//! The transport with a real file, beside an inner one that does what a test says.

use super::{LastResort, PlacesSize, WRITE_DEADLINE};
use crate::time::{Nanos, Time};
use crate::usd::transport::{PartId, Transport};
use iochannel::{IoVec, Op};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    FlockOperation, MemfdFlags, SealFlags, fcntl_add_seals, flock, ftruncate, memfd_create,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use wired::{PAGE, WiredMemory};

const BLOKS: usize = 64;
const START: Time = Time(1);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Behavior {
    Healthy,
    Fails(Errno),
    Silent,
}

/// What the test and the inner transport share.
struct State {
    behavior: Behavior,
    pages: BTreeMap<u64, u8>,
    writes: usize,
}

struct Inner {
    state: Arc<Mutex<State>>,
    unanswered: Vec<PartId>,
    done: VecDeque<(PartId, i32)>,
    bell: OwnedFd,
}

impl Transport for Inner {
    unsafe fn start(&mut self, _: Time, id: PartId, op: Op, _: u32, pieces: &[IoVec], at: u64) {
        let mut state = self.state.lock().expect("no panic");
        state.writes += usize::from(op == Op::Write);
        match state.behavior {
            Behavior::Silent => return self.unanswered.push(id),
            Behavior::Fails(errno) => return self.done.push_back((id, -errno.raw_os_error())),
            Behavior::Healthy => {}
        }
        for (number, piece) in pieces.iter().enumerate() {
            let page = at / PAGE as u64 + number as u64;
            // SAFETY: the pieces' memory stays, and no other thread uses it.
            unsafe {
                match op {
                    Op::Write => drop(state.pages.insert(page, *piece.start)),
                    Op::Read => piece.start.write_bytes(state.pages[&page], PAGE),
                }
            }
        }
        self.done.push_back((id, (pieces.len() * PAGE) as i32));
    }

    fn flush(&mut self, _: Time) {}

    fn reap(&mut self, _: Time) -> Option<(PartId, i32)> {
        self.done.pop_front()
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.unanswered.len()
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn next_due(&self) -> Option<Time> {
        None
    }

    fn forget(&mut self, _: u32, page: u64) -> bool {
        self.state.lock().expect("no panic").pages.remove(&page);
        true
    }

    fn give_up(&mut self, _: Time, id: PartId) {
        self.unanswered.retain(|other| *other != id);
        self.done.push_back((id, -Errno::TIMEDOUT.raw_os_error()));
    }
}

struct Bench {
    transport: LastResort,
    state: Arc<Mutex<State>>,
    memory: WiredMemory,
    file: OwnedFd,
    now: Time,
}

impl Bench {
    /// With room for all bloks at the inner transport.
    fn new(slots: u32) -> Self {
        Self::with_parts(BLOKS as u32, slots)
    }

    fn with_parts(inner_part: u32, slots: u32) -> Self {
        let state = Arc::new(Mutex::new(State {
            behavior: Behavior::Healthy,
            pages: BTreeMap::new(),
            writes: 0,
        }));
        let inner = Inner {
            state: Arc::clone(&state),
            unanswered: Vec::new(),
            done: VecDeque::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
        };
        let size = PlacesSize {
            inner: inner_part,
            file: slots,
            spare: 0,
        };
        let file = memfd_create("paging", MemfdFlags::ALLOW_SEALING).expect("a file");
        ftruncate(&file, u64::from(slots) * PAGE as u64).expect("room");
        let table = WiredMemory::private(size.table_bytes()).expect("memory");
        let table = (Arc::new(table), 0);
        let transport = LastResort::new(Box::new(inner), file.as_fd(), table, size);
        Self {
            transport: transport.expect("a ring"),
            state,
            file,
            memory: WiredMemory::private(4 * PAGE).expect("memory"),
            now: START,
        }
    }

    fn behave(&self, behavior: Behavior) {
        self.state.lock().expect("no panic").behavior = behavior;
    }

    fn writes(&self) -> usize {
        self.state.lock().expect("no panic").writes
    }

    fn start(&mut self, op: Op, blok: u64, count: usize) {
        let id = PartId {
            client: 0,
            transaction: 0,
        };
        let pieces = [IoVec {
            start: self.memory.as_ptr(),
            len: count * PAGE,
        }];
        // SAFETY: the memory outlives the transport, and each test waits for its parts.
        unsafe {
            self.transport
                .start(self.now, id, op, 0, &pieces, blok * PAGE as u64)
        };
        self.transport.flush(self.now);
    }

    fn wait(&mut self) -> i32 {
        loop {
            if let Some((_, result)) = self.transport.reap(self.now) {
                return result;
            }
            self.transport.flush(self.now);
        }
    }

    fn fill(&mut self, count: usize, value: u8) {
        // SAFETY: nothing is in flight.
        unsafe { self.memory.as_ptr().write_bytes(value, count * PAGE) };
    }

    fn write(&mut self, blok: u64, count: usize, value: u8) -> i32 {
        self.fill(count, value);
        self.start(Op::Write, blok, count);
        self.wait()
    }

    /// The first byte of each page that is read.
    fn read(&mut self, blok: u64, count: usize) -> Result<Vec<u8>, i32> {
        self.fill(count, 0xEE);
        self.start(Op::Read, blok, count);
        let result = self.wait();
        // SAFETY: nothing is in flight.
        let first = |page| unsafe { *self.memory.as_ptr().add(page * PAGE) };
        (result > 0)
            .then(|| (0..count).map(first).collect())
            .ok_or(result)
    }
}

const PAGES: i32 = 2 * PAGE as i32;

#[test]
fn a_write_that_the_inner_transport_fails_goes_to_the_file() {
    let mut bench = Bench::new(8);
    assert_eq!(bench.write(0, 2, 1), PAGES);
    bench.behave(Behavior::Fails(Errno::NOSPC));
    assert_eq!(bench.write(2, 2, 2), PAGES);
    assert_eq!(bench.write(1, 1, 3), PAGE as i32);
    assert_eq!(bench.writes(), 3, "it may have room for a blok that it has");
    assert_eq!(bench.write(4, 1, 4), PAGE as i32);
    assert_eq!(bench.write(1, 1, 5), PAGE as i32);
    assert_eq!(bench.writes(), 3, "the others are diverted");
    bench.behave(Behavior::Healthy);
    assert_eq!(bench.read(0, 4), Ok(vec![1, 5, 2, 2]));
    assert_eq!(bench.read(4, 1), Ok(vec![4]));
}

#[test]
fn a_write_that_is_not_answered_by_its_deadline_goes_to_the_file() {
    let mut bench = Bench::new(8);
    bench.behave(Behavior::Silent);
    bench.fill(2, 7);
    bench.start(Op::Write, 0, 2);
    assert_eq!(bench.transport.next_due(), Some(START + WRITE_DEADLINE));
    assert_eq!(bench.transport.reap(bench.now), None);
    bench.now = START + WRITE_DEADLINE;
    assert_eq!(bench.wait(), PAGES);
    assert_eq!(bench.read(0, 2), Ok(vec![7, 7]), "from the file");
}

#[test]
fn reads_that_wait_for_a_silent_transport_are_named_once_and_those_after_them_at_once() {
    let mut bench = Bench::new(8);
    assert_eq!(bench.write(0, 2, 1), PAGES);
    bench.behave(Behavior::Silent);
    bench.start(Op::Read, 0, 2);
    let id = PartId::new(0, 0);
    assert_eq!(bench.transport.next_waiting(), None);
    assert_eq!(bench.transport.next_due(), Some(START + WRITE_DEADLINE));
    bench.now = START + WRITE_DEADLINE;
    bench.transport.flush(bench.now);
    assert_eq!(bench.transport.next_due(), Some(Time(0)));
    assert_eq!(bench.transport.next_waiting(), Some(id));
    assert_eq!(bench.transport.next_waiting(), None);
    bench.start(Op::Read, 1, 1);
    assert_eq!(bench.transport.next_waiting(), Some(id));
    assert_eq!(bench.transport.next_due(), None);
    bench.behave(Behavior::Healthy);
    assert_eq!(bench.read(0, 2), Ok(vec![1, 1]), "it answers");
    bench.behave(Behavior::Silent);
    bench.start(Op::Read, 1, 1);
    assert_eq!(bench.transport.next_waiting(), None);
}

#[test]
fn that_no_answer_came_is_no_error_of_pages_that_did() {
    let mut bench = Bench::new(8);
    assert_eq!(bench.write(0, 2, 1), PAGES);
    bench.behave(Behavior::Fails(Errno::NOSPC));
    assert_eq!(bench.write(1, 1, 2), PAGE as i32);
    bench.behave(Behavior::Fails(Errno::TIMEDOUT));
    assert_eq!(bench.read(0, 2), Err(-Errno::IO.raw_os_error()));
    assert_eq!(bench.read(1, 1), Ok(vec![2]), "from the file");
    assert_eq!(bench.read(0, 1), Err(-Errno::TIMEDOUT.raw_os_error()));
}

#[test]
fn a_blok_goes_back_when_the_inner_transport_answers_a_probe() {
    let mut bench = Bench::new(2);
    bench.behave(Behavior::Fails(Errno::IO));
    assert_eq!(bench.write(0, 2, 1), PAGES);
    bench.behave(Behavior::Healthy);
    bench.now = bench.now + Nanos::seconds(2);
    assert_eq!(bench.write(0, 2, 2), PAGES);
    assert_eq!(bench.read(0, 2), Ok(vec![2, 2]));
    bench.behave(Behavior::Fails(Errno::IO));
    assert_eq!(bench.write(2, 2, 3), PAGES, "its slots are free again");
    assert_eq!(bench.read(0, 2), Err(-Errno::IO.raw_os_error()));
}

#[test]
fn a_write_that_neither_has_room_for_has_the_inner_transports_error() {
    let mut bench = Bench::new(2);
    bench.behave(Behavior::Fails(Errno::NOSPC));
    assert_eq!(bench.write(0, 2, 1), PAGES);
    assert_eq!(bench.write(2, 1, 2), -Errno::NOSPC.raw_os_error());
    assert_eq!(bench.read(0, 2), Ok(vec![1, 1]));
}

#[test]
fn the_inner_transport_gets_no_more_than_its_part() {
    let mut bench = Bench::with_parts(4, BLOKS as u32);
    (0..3).for_each(|at| assert_eq!(bench.write(2 * at, 2, 1 + at as u8), PAGES));
    assert_eq!(
        bench.writes(),
        2,
        "the third is beyond the inner transport's part"
    );
    assert_eq!(bench.write(0, 2, 9), PAGES);
    assert_eq!(bench.writes(), 3, "it has those bloks");
    assert_eq!(bench.read(0, 4), Ok(vec![9, 9, 2, 2]));
    assert_eq!(bench.read(2, 4), Ok(vec![2, 2, 3, 3]));
}

#[test]
fn a_page_that_goes_to_the_file_gives_its_room_at_the_inner_transport_to_others() {
    let mut bench = Bench::with_parts(2, BLOKS as u32);
    assert_eq!(bench.write(0, 2, 1), PAGES);
    bench.behave(Behavior::Fails(Errno::NOSPC));
    assert_eq!(bench.write(0, 2, 2), PAGES);
    let there = bench.state.lock().expect("no panic").pages.len();
    assert_eq!(there, 0, "no copy is kept");
    bench.behave(Behavior::Healthy);
    assert_eq!(bench.write(4, 2, 3), PAGES);
    assert_eq!(bench.writes(), 3, "there is room again");
    assert_eq!(bench.read(0, 2), Ok(vec![2, 2]));
    assert_eq!(bench.read(4, 2), Ok(vec![3, 3]));
}

#[test]
fn nothing_is_readable_once_all_is_reaped() {
    let mut bench = Bench::new(8);
    bench.behave(Behavior::Fails(Errno::IO));
    assert_eq!(bench.write(0, 2, 1), PAGES);
    assert_eq!(bench.transport.reap(bench.now), None);
    let mut fds = [PollFd::from_borrowed_fd(
        bench.transport.poll_fd(),
        PollFlags::IN,
    )];
    assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0));
}

#[test]
fn another_process_has_the_file_when_the_last_request_of_this_one_has_ended() {
    let bench = Bench::new(8);
    let path = format!("/proc/self/fd/{}", bench.file.as_raw_fd());
    let other = std::fs::File::open(path).expect("another description");
    let lock = || flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(lock(), Err(Errno::WOULDBLOCK));
    drop(bench.transport);
    assert_eq!(lock(), Ok(()));
}

#[test]
fn a_page_that_the_file_fails_is_an_error_and_its_blok_keeps_its_place() {
    let mut bench = Bench::new(8);
    assert_eq!(bench.write(0, 2, 1), PAGES);
    bench.behave(Behavior::Fails(Errno::IO));
    assert_eq!(bench.write(2, 2, 2), PAGES);
    // Pages of a file that ends before them are not whole.
    ftruncate(&bench.file, 0).expect("a shorter file");
    assert_eq!(bench.read(2, 2), Err(-Errno::IO.raw_os_error()));
    let seals = SealFlags::WRITE | SealFlags::GROW;
    fcntl_add_seals(&bench.file, seals).expect("a file that cannot be written");
    assert_eq!(bench.write(0, 2, 3), -Errno::IO.raw_os_error());
    bench.behave(Behavior::Healthy);
    assert_eq!(bench.read(0, 2), Ok(vec![1, 1]));
}
