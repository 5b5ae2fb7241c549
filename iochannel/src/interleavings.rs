//! Every interleaving of a client and a server on a small channel, by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test --release -p iochannel
//! --lib interleavings`. A cell for each slot stands for its page buffers: loom reports when the
//! two sides touch one without the slot's state ordering it. A bell is a lock and a condition: a
//! lost wake-up is a deadlock, which loom reports.

use crate::fifo::Fifo;
use crate::geometry::MAX_RUN;
use crate::need_wakeup::WakeFlag;
use crate::service_queue::ServiceQueue;
use crate::shared_words::SharedWords;
use crate::slot::{RawRequest, RequestSlot};
use crate::submission_queue::SubmissionQueue;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

const SLOTS: usize = 2;
const CAPACITY: usize = 4;
const PAGES: usize = MAX_RUN;

/// A bell that stays rung until it is drained.
#[derive(Default)]
struct Bell {
    ringing: Mutex<bool>,
    drained: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.ringing.lock().unwrap() = true;
        self.drained.notify_one();
    }

    fn sleep(&self) {
        let mut ringing = self.ringing.lock().unwrap();
        while !*ringing {
            ringing = self.drained.wait(ringing).unwrap();
        }
    }

    fn drain(&self) {
        *self.ringing.lock().unwrap() = false;
    }
}

struct Channel {
    server: WakeFlag,
    client: WakeFlag,
    tails: [AtomicU32; 2],
    numbers: [Vec<AtomicU32>; 2],
    slots: Vec<RequestSlot>,
    /// The contents of each slot's page buffers.
    data: Vec<UnsafeCell<u32>>,
    doorbell: Bell,
    bell: Bell,
}

// SAFETY: this is what the model proves; loom reports an interleaving where it does not hold.
unsafe impl Sync for Channel {}
// SAFETY: as above.
unsafe impl Send for Channel {}

impl Channel {
    fn new() -> Arc<Self> {
        let numbers = || (0..CAPACITY).map(|_| AtomicU32::new(0)).collect();
        let channel = Self {
            server: WakeFlag::default(),
            client: WakeFlag::default(),
            tails: Default::default(),
            numbers: [numbers(), numbers()],
            slots: (0..SLOTS).map(|_| RequestSlot::default()).collect(),
            data: (0..SLOTS).map(|_| UnsafeCell::new(0)).collect(),
            doorbell: Bell::default(),
            bell: Bell::default(),
        };
        channel.client.set();
        Arc::new(channel)
    }

    fn words(&self) -> SharedWords<'_> {
        SharedWords {
            server: &self.server,
            client: &self.client,
            requests: Fifo::new(&self.tails[0], &self.numbers[0]),
            completions: Fifo::new(&self.tails[1], &self.numbers[1]),
            slots: &self.slots,
        }
    }

    fn data(&self, slot: usize, with: impl FnOnce(&mut u32)) {
        // SAFETY: as for the type.
        self.data[slot].with_mut(|at| with(unsafe { &mut *at }));
    }

    /// The client's part of [`crate::ChannelClient::begin`] and `flush`.
    fn submit(&self, queue: &mut SubmissionQueue<'_>, slot: usize) {
        self.data(slot, |data| *data = slot as u32 + 1);
        let request = RawRequest {
            op: 1,
            count: 1,
            offset: 0,
            pages: [slot as u16; MAX_RUN],
        };
        queue.submit(slot, &request);
        if self.server.take() {
            self.doorbell.ring();
        }
    }

    /// The client's part of [`crate::ChannelClient::reap`], waiting.
    fn reap(&self, queue: &mut SubmissionQueue<'_>) -> usize {
        loop {
            if let Some((slot, result)) = queue.reap() {
                self.data(slot, |data| {
                    assert_eq!(*data, 10 * (slot as u32 + 1), "served, and once");
                    assert_eq!(result, *data as i32);
                    *data = 0;
                });
                return slot;
            }
            self.bell.drain();
            self.client.set();
            if self.words().completions.tail() == queue.completions_read() {
                self.bell.sleep();
            }
        }
    }

    /// The device's part.
    fn serve(&self, slot: usize) -> i32 {
        let mut result = 0;
        self.data(slot, |data| {
            // A predecessor may have served it, too: idempotently.
            if *data < 10 {
                *data *= 10;
            }
            result = *data as i32;
        });
        result
    }

    /// The server, until it has completed `count` requests.
    fn run(&self, service: &mut ServiceQueue<'_>, count: usize) {
        let mut served = 0;
        while served < count {
            match service.take(std::ptr::null_mut(), PAGES).unwrap() {
                Some(request) => {
                    let slot = usize::from(request.slot);
                    assert!(service.complete(slot, self.serve(slot)));
                    if self.client.take() {
                        self.bell.ring();
                    }
                    served += 1;
                }
                None => {
                    self.doorbell.drain();
                    self.server.set();
                    if !service.has_pending() {
                        self.doorbell.sleep();
                    }
                    self.server.clear();
                }
            }
        }
    }
}

/// A server, until it has completed two requests.
fn serve_two(channel: &Arc<Channel>) -> thread::JoinHandle<()> {
    let channel = channel.clone();
    thread::spawn(move || {
        let mut service = ServiceQueue::recover(channel.words());
        channel.run(&mut service, 2);
    })
}

#[test]
fn each_request_is_served_and_each_completion_reaped_and_no_side_sleeps_for_ever() {
    loom::model(|| {
        let channel = Channel::new();
        let server = serve_two(&channel);
        let mut queue = SubmissionQueue::new(channel.words()).unwrap();
        channel.submit(&mut queue, 0);
        assert_eq!(channel.reap(&mut queue), 0);
        channel.submit(&mut queue, 0);
        assert_eq!(channel.reap(&mut queue), 0);
        server.join().unwrap();
    });
}

#[test]
fn two_concurrent_requests_are_each_reaped() {
    loom::model(|| {
        let channel = Channel::new();
        let server = serve_two(&channel);
        let mut queue = SubmissionQueue::new(channel.words()).unwrap();
        channel.submit(&mut queue, 1);
        channel.submit(&mut queue, 0);
        let reaped = [channel.reap(&mut queue), channel.reap(&mut queue)];
        assert!(reaped == [0, 1] || reaped == [1, 0]);
        server.join().unwrap();
    });
}

/// Where a server dies: after it took a request, after the device served it, or after the slot is
/// done and before the FIFO or the bell is.
#[derive(Clone, Copy)]
enum Death {
    Taken,
    Served,
    Unpublished,
    Unrung,
}

#[test]
fn a_successor_leaves_no_request_waiting_wherever_its_predecessor_died() {
    for death in [
        Death::Taken,
        Death::Served,
        Death::Unpublished,
        Death::Unrung,
    ] {
        loom::model(move || {
            let channel = Channel::new();
            let server = {
                let channel = channel.clone();
                thread::spawn(move || die_and_be_replaced(&channel, death))
            };
            let mut queue = SubmissionQueue::new(channel.words()).unwrap();
            channel.submit(&mut queue, 0);
            channel.submit(&mut queue, 1);
            let reaped = [channel.reap(&mut queue), channel.reap(&mut queue)];
            assert!(reaped == [0, 1] || reaped == [1, 0]);
            server.join().unwrap();
        });
    }
}

fn die_and_be_replaced(channel: &Channel, death: Death) {
    let mut completed = 0;
    let mut first = ServiceQueue::recover(channel.words());
    if let Some(request) = first.take(std::ptr::null_mut(), PAGES).unwrap() {
        let slot = usize::from(request.slot);
        match death {
            Death::Taken => {}
            Death::Served => {
                channel.serve(slot);
            }
            Death::Unpublished => {
                channel.slots[slot].complete(channel.serve(slot));
                completed += 1;
            }
            Death::Unrung => {
                assert!(first.complete(slot, channel.serve(slot)));
                let _ = channel.client.take();
                completed += 1;
            }
        }
    }
    // As `ChannelServer::attach`.
    let mut second = ServiceQueue::recover(channel.words());
    channel.client.clear();
    channel.bell.ring();
    channel.run(&mut second, 2 - completed);
}
