//! Operations through a channel, compared with the contents that the disk must have.

mod common;

use common::*;
use iochannel::{ChannelClient, ChannelGeometry, ChannelServer, IoVec, MAX_RUN, Request};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

#[test]
fn written_pages_are_read_back() {
    let (mut server, doorbell, mut client, kept) = channel(ChannelGeometry::for_depth(4));
    let (disk, end) = (Disk::new(64), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&mut server, &doorbell, &disk, &end));
        let mut out = pages(20, 7);
        assert_eq!(transfer(&mut client, true, &mut out, 3), (20 * PAGE) as i32);
        let mut back = pages(20, 1000);
        assert_eq!(
            transfer(&mut client, false, &mut back, 3),
            (20 * PAGE) as i32
        );
        assert!(out == back);
        // A transfer past the disk's end moves less, reported in whole pages.
        assert_eq!(
            transfer(&mut client, false, &mut back, 60),
            (4 * PAGE) as i32
        );
        assert_eq!(transfer(&mut client, false, &mut back, 64), 0);
        stop(&end, &kept);
    });
}

#[test]
fn more_operations_than_page_buffers_wait_their_turn_and_complete() {
    let (mut server, doorbell, mut client, kept) =
        channel(ChannelGeometry::new(64, MAX_RUN).unwrap());
    let (disk, end) = (Disk::new(64 * MAX_RUN), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&mut server, &doorbell, &disk, &end));
        for write in [true, false] {
            let mut memory: Vec<Vec<Page>> = (0..64u64)
                .map(|op| {
                    if write {
                        pages(MAX_RUN - op as usize % 3, 100 * op)
                    } else {
                        pages(MAX_RUN - op as usize % 3, 1)
                    }
                })
                .collect();
            let lists: Vec<Vec<IoVec>> = memory.iter_mut().map(|all| pieces(all)).collect();
            for (op, list) in lists.iter().enumerate() {
                // SAFETY: pages and lists outlive the operations, which complete below.
                unsafe { client.begin(op, write, list, (op * MAX_RUN * PAGE) as u64) };
            }
            client.flush();
            let mut completed: Vec<usize> = (0..64)
                .map(|_| {
                    let (op, result) = client.reap(true).unwrap();
                    assert_eq!(result as usize, lists[op].len() * PAGE);
                    op
                })
                .collect();
            assert_eq!(client.reap(true), None);
            completed.sort();
            assert!(completed.into_iter().eq(0..64));
            for (op, all) in memory.iter().enumerate() {
                assert!(*all == pages(all.len(), 100 * op as u64));
            }
        }
        stop(&end, &kept);
    });
}

#[test]
fn invalid_operations_complete_with_an_error() {
    let (_server, _doorbell, mut client, _kept) = channel(ChannelGeometry::for_depth(4));
    let mut memory = pages(MAX_RUN + 1, 0);
    let good = pieces(&mut memory);
    let unaligned = [IoVec::page(good[0].start.wrapping_add(8))];
    let short = [IoVec {
        start: good[0].start,
        len: 512,
    }];
    for (list, offset) in [
        (&good[..], 0),
        (&good[..0], 0),
        (&unaligned, 0),
        (&short, 0),
        (&good[..1], 512),
    ] {
        // SAFETY: the memory is not accessed.
        unsafe { client.begin(3, true, list, offset) };
        client.flush();
        assert_eq!(client.reap(true), Some((3, -libc::EINVAL)));
    }
    assert_eq!(client.reap(true), None);
}

#[test]
fn the_bell_rings_for_a_client_that_only_polls() {
    let (mut server, _doorbell, mut client, _kept) = channel(ChannelGeometry::for_depth(4));
    let disk = Disk::new(8);
    let mut memory = pages(4, 0);
    let lists: Vec<Vec<IoVec>> = memory.chunks_mut(1).map(pieces).collect();
    for round in 0..3 {
        assert!(!readable(client.poll_fd()));
        for (op, list) in lists.iter().enumerate() {
            // SAFETY: pages and lists outlive the operations, which complete below.
            unsafe { client.begin(op, false, list, 0) };
        }
        client.flush();
        if round == 1 {
            assert_eq!(client.reap(false), None);
        }
        while let Some(request) = server.take().unwrap() {
            server.complete(request.slot, disk.serve(&request));
        }
        assert!(!readable(client.poll_fd()), "rung once for all");
        server.notify_completions();
        for _ in 0..4 {
            assert!(readable(client.poll_fd()), "another has completed");
            assert!(client.reap(false).is_some());
        }
        // Nothing is in flight: a pending ring is drained with the next operation.
        // SAFETY: as above.
        unsafe { client.begin(0, false, &lists[0], 0) };
        client.flush();
        assert_eq!(client.reap(false), None);
        assert!(!readable(client.poll_fd()));
        let request = server.take().unwrap().unwrap();
        server.complete(request.slot, PAGE as i32);
        server.notify_completions();
        assert!(readable(client.poll_fd()));
        assert_eq!(client.reap(true), Some((0, PAGE as i32)));
        // SAFETY: as above.
        unsafe { client.begin(0, false, &lists[0], 0) };
        assert_eq!(client.reap(false), None);
        let request = server.take().unwrap().unwrap();
        server.complete(request.slot, PAGE as i32);
        assert_eq!(client.reap(true), Some((0, PAGE as i32)));
    }
}

#[test]
fn the_doorbell_rings_only_while_the_server_sleeps() {
    let (mut server, doorbell, mut client, _kept) = channel(ChannelGeometry::for_depth(4));
    let mut memory = pages(1, 0);
    let list = pieces(&mut memory);
    let submit = |client: &mut ChannelClient, op| {
        // SAFETY: the page outlives the operations: the server completes them with errors.
        unsafe { client.begin(op, false, &list, 0) };
        client.flush();
    };
    submit(&mut client, 0);
    assert!(!readable(&doorbell));
    assert!(!server.arm(), "a request is pending");
    server.take().unwrap().unwrap();
    assert!(server.arm());
    submit(&mut client, 1);
    submit(&mut client, 2);
    assert!(readable(&doorbell));
    doorbell.drain();
    assert!(!readable(&doorbell), "rung once");
    server.disarm();
    submit(&mut client, 3);
    assert!(!readable(&doorbell));
    assert!(server.has_pending());
}

/// The outcome of a request at the test's disk.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Serve,
    Fail,
    Short,
}

#[derive(Clone, Debug)]
enum Step {
    Begin {
        write: bool,
        first: usize,
        count: usize,
    },
    /// The server takes all requests and completes some, in any order.
    Complete {
        pick: usize,
        outcome: Outcome,
    },
    Reap,
    Replace,
}

fn step() -> impl Strategy<Value = Step> {
    let outcome =
        prop_oneof![6 => Just(Outcome::Serve), 1 => Just(Outcome::Fail), 1 => Just(Outcome::Short)];
    prop_oneof![
        6 => (any::<bool>(), 0usize..4, 1..=MAX_RUN)
            .prop_map(|(write, first, count)| Step::Begin { write, first, count }),
        6 => (any::<usize>(), outcome).prop_map(|(pick, outcome)| Step::Complete { pick, outcome }),
        4 => Just(Step::Reap),
        1 => Just(Step::Replace),
    ]
}

const OPS: usize = 8;

/// An operation of the model.
struct PendingOp {
    write: bool,
    first_page: usize,
    memory: Vec<Page>,
    list: Vec<IoVec>,
    /// The expected result, once the server has completed it.
    expected: Option<i32>,
}

struct Model {
    server: Option<ChannelServer>,
    taken: Vec<Request>,
    pending: Vec<Option<PendingOp>>,
    disk: Disk,
    seed: u64,
}

impl Model {
    fn complete(&mut self, pick: usize, outcome: Outcome) {
        let server = self.server.as_mut().unwrap();
        while let Some(request) = server.take().unwrap() {
            self.taken.push(request);
        }
        assert_eq!(server.in_flight(), self.taken.len());
        if self.taken.is_empty() {
            return;
        }
        let request = self.taken.swap_remove(pick % self.taken.len());
        let result = match outcome {
            Outcome::Serve => self.disk.serve(&request),
            Outcome::Fail => -libc::EIO,
            // Half a page more than is reported.
            Outcome::Short => (self.disk.serve(&request) / 2).max(PAGE as i32 / 2),
        };
        let reported = match result {
            0.. => result / PAGE as i32 * PAGE as i32,
            _ => result,
        };
        let pending = self.pending[usize::from(request.slot)].as_mut().unwrap();
        assert!(
            pending.expected.replace(reported).is_none(),
            "submitted twice"
        );
        assert!(server.complete(request.slot, result));
        assert!(!server.complete(request.slot, result), "completed once");
        server.notify_completions();
    }

    /// Checks a completed operation's data.
    fn check(&mut self, op: usize, result: i32) {
        let mut pending = self.pending[op].take().expect("in flight");
        assert_eq!(Some(result), pending.expected);
        let mut there = vec![Page([0; PAGE]); result.max(0) as usize / PAGE];
        for (at, page) in there.iter_mut().enumerate() {
            let offset = ((pending.first_page + at) * PAGE) as u64;
            rustix::io::pread(&self.disk.0, &mut page.0[..], offset).unwrap();
        }
        assert!(pending.memory[..there.len()] == there[..]);
        if !pending.write {
            let rest = pending.memory.split_off(there.len());
            let before = pages(pending.list.len(), self.seed_of(op));
            assert!(
                rest == before[there.len()..],
                "pages that were not read are unchanged"
            );
        }
    }

    fn seed_of(&self, op: usize) -> u64 {
        1_000_000 + op as u64
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn each_operation_completes_once_with_its_own_data(
        steps in prop::collection::vec(step(), 1..120), pages_of in MAX_RUN..3 * MAX_RUN,
    ) {
        let (server, _doorbell, mut client, kept) = channel(ChannelGeometry::new(OPS, pages_of).unwrap());
        let mut model = Model {
            server: Some(server),
            taken: Vec::new(),
            pending: (0..OPS).map(|_| None).collect(),
            disk: Disk::new(OPS * 64),
            seed: 0,
        };
        for step in steps {
            match step {
                Step::Begin { write, first, count } => {
                    let Some(op) = model.pending.iter().position(Option::is_none) else { continue };
                    model.seed += 1000;
                    let seed = if write { model.seed } else { model.seed_of(op) };
                    let mut memory = pages(count, seed);
                    let list = pieces(&mut memory);
                    // Each operation has its own part of the disk, so that order does not matter.
                    let first_page = op * 64 + first;
                    model.pending[op] = Some(PendingOp { write, first_page, memory, list, expected: None });
                    let list = &model.pending[op].as_ref().unwrap().list;
                    // SAFETY: pages and list stay in the model until the operation completes.
                    unsafe { client.begin(op, write, list, (first_page * PAGE) as u64) };
                    client.flush();
                }
                Step::Complete { pick, outcome } => model.complete(pick, outcome),
                Step::Reap => {
                    if let Some((op, result)) = client.reap(false) {
                        model.check(op, result);
                    }
                }
                Step::Replace => {
                    // The successor serves the requests in flight.
                    model.taken.clear();
                    drop(model.server.take());
                    model.server = Some(kept.attach_successor().0);
                }
            }
        }
        while model.pending.iter().any(Option::is_some) {
            model.complete(0, Outcome::Serve);
            while let Some((op, result)) = client.reap(false) {
                model.check(op, result);
            }
        }
        prop_assert_eq!(client.reap(true), None);
        prop_assert_eq!(model.server.unwrap().in_flight(), 0);
    }
}

#[test]
fn a_client_that_is_dropped_ends_its_channel() {
    let (mut server, _doorbell, mut client, kept) = channel(ChannelGeometry::for_depth(4));
    let mut page = pages(1, 7);
    let list = pieces(&mut page);
    // SAFETY: the page outlives the operation, which completes below.
    unsafe { client.begin(0, true, &list, 0) };
    client.flush();
    let request = server.take().unwrap().expect("a request");
    assert!(server.arm(), "nothing else is pending");
    server.complete(request.slot, PAGE as i32);
    assert_eq!(client.reap(true), Some((0, PAGE as i32)));
    assert!(server.take().unwrap().is_none() && !server.has_ended());
    drop(client);
    assert!(server.has_pending(), "the end is pending");
    assert!(server.take().unwrap().is_none() && server.has_ended());
    assert!(server.arm(), "it may sleep");
    drop(server);
    let mut successor = ChannelServer::attach(&kept.memory, &kept.server_bell).unwrap();
    assert!(successor.take().unwrap().is_none() && successor.has_ended());
}
