//! Every interleaving of a client and a server on a small channel, by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test --release -p iochannel
//! --lib interleavings`. A cell for each slot stands for its page buffers: loom complains
//! when the two sides touch one without the slot's state ordering it. A bell is a lock and a
//! condition: a lost wake-up is a deadlock, which loom reports.

use crate::alarm::Alarm;
use crate::asking::Asking;
use crate::fifo::Fifo;
use crate::serving::Serving;
use crate::shape::RUN;
use crate::slot::{Ask, Slot};
use crate::words::Words;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

const SLOTS: usize = 2;
const ROOM: usize = 4;
const PAGES: usize = RUN;

/// A bell that rings until it is heard.
#[derive(Default)]
struct Bell {
    ringing: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.ringing.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn sleep(&self) {
        let mut ringing = self.ringing.lock().unwrap();
        while !*ringing {
            ringing = self.heard.wait(ringing).unwrap();
        }
    }

    fn clear(&self) {
        *self.ringing.lock().unwrap() = false;
    }
}

struct Channel {
    server: Alarm,
    client: Alarm,
    tails: [AtomicU32; 2],
    numbers: [Vec<AtomicU32>; 2],
    slots: Vec<Slot>,
    /// What the page buffers of each slot hold.
    data: Vec<UnsafeCell<u32>>,
    doorbell: Bell,
    bell: Bell,
}

// SAFETY: what the model is to show; loom finds the interleaving where it is not so.
unsafe impl Sync for Channel {}
// SAFETY: as above.
unsafe impl Send for Channel {}

impl Channel {
    fn new() -> Arc<Self> {
        let numbers = || (0..ROOM).map(|_| AtomicU32::new(0)).collect();
        let channel = Self {
            server: Alarm::default(),
            client: Alarm::default(),
            tails: Default::default(),
            numbers: [numbers(), numbers()],
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            data: (0..SLOTS).map(|_| UnsafeCell::new(0)).collect(),
            doorbell: Bell::default(),
            bell: Bell::default(),
        };
        channel.client.raise();
        Arc::new(channel)
    }

    fn words(&self) -> Words<'_> {
        Words {
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

    /// The client's part of [`crate::Client::begin`] and `flush`.
    fn submit(&self, asking: &mut Asking<'_>, slot: usize) {
        self.data(slot, |data| *data = slot as u32 + 1);
        let ask = Ask {
            op: 1,
            count: 1,
            offset: 0,
            pages: [slot as u16; RUN],
        };
        asking.submit(slot, &ask);
        if self.server.answer() {
            self.doorbell.ring();
        }
    }

    /// The client's part of [`crate::Client::over`], waiting.
    fn hear(&self, asking: &mut Asking<'_>) -> usize {
        loop {
            if let Some((slot, result)) = asking.hear() {
                self.data(slot, |data| {
                    assert_eq!(*data, 10 * (slot as u32 + 1), "served, and once");
                    assert_eq!(result, *data as i32);
                    *data = 0;
                });
                return slot;
            }
            self.bell.clear();
            self.client.raise();
            if self.words().completions.tail() == asking.heard() {
                self.bell.sleep();
            }
        }
    }

    /// The device's part.
    fn serve(&self, slot: usize) -> i32 {
        let mut result = 0;
        self.data(slot, |data| {
            // A predecessor may have served it, too: the same thing again.
            if *data < 10 {
                *data *= 10;
            }
            result = *data as i32;
        });
        result
    }

    /// The server, until it has answered `count` requests.
    fn run(&self, serving: &mut Serving<'_>, count: usize) {
        let mut served = 0;
        while served < count {
            match serving.take(std::ptr::null_mut(), PAGES).unwrap() {
                Some(request) => {
                    let slot = usize::from(request.slot);
                    assert!(serving.finish(slot, self.serve(slot)));
                    if self.client.answer() {
                        self.bell.ring();
                    }
                    served += 1;
                }
                None => {
                    self.doorbell.clear();
                    self.server.raise();
                    if !serving.has_more() {
                        self.doorbell.sleep();
                    }
                    self.server.lower();
                }
            }
        }
    }
}

/// A server, until it has answered two requests.
fn serve_two(channel: &Arc<Channel>) -> thread::JoinHandle<()> {
    let channel = channel.clone();
    thread::spawn(move || {
        let mut serving = Serving::take_over(channel.words());
        channel.run(&mut serving, 2);
    })
}

#[test]
fn each_request_is_served_and_each_answer_heard_and_nobody_sleeps_for_ever() {
    loom::model(|| {
        let channel = Channel::new();
        let server = serve_two(&channel);
        let mut asking = Asking::new(channel.words()).unwrap();
        channel.submit(&mut asking, 0);
        assert_eq!(channel.hear(&mut asking), 0);
        channel.submit(&mut asking, 0);
        assert_eq!(channel.hear(&mut asking), 0);
        server.join().unwrap();
    });
}

#[test]
fn two_requests_at_once_are_each_heard() {
    loom::model(|| {
        let channel = Channel::new();
        let server = serve_two(&channel);
        let mut asking = Asking::new(channel.words()).unwrap();
        channel.submit(&mut asking, 1);
        channel.submit(&mut asking, 0);
        let heard = [channel.hear(&mut asking), channel.hear(&mut asking)];
        assert!(heard == [0, 1] || heard == [1, 0]);
        server.join().unwrap();
    });
}

/// Where a server dies: after it took a request, after the device served that, or after the
/// slot says so and before the FIFO or the bell does.
#[derive(Clone, Copy)]
enum Death {
    Taken,
    Served,
    Untold,
    Unrung,
}

#[test]
fn a_successor_leaves_nobody_waiting_wherever_its_predecessor_died() {
    for death in [Death::Taken, Death::Served, Death::Untold, Death::Unrung] {
        loom::model(move || {
            let channel = Channel::new();
            let server = {
                let channel = channel.clone();
                thread::spawn(move || die_and_be_replaced(&channel, death))
            };
            let mut asking = Asking::new(channel.words()).unwrap();
            channel.submit(&mut asking, 0);
            channel.submit(&mut asking, 1);
            let heard = [channel.hear(&mut asking), channel.hear(&mut asking)];
            assert!(heard == [0, 1] || heard == [1, 0]);
            server.join().unwrap();
        });
    }
}

fn die_and_be_replaced(channel: &Channel, death: Death) {
    let mut answered = 0;
    let mut first = Serving::take_over(channel.words());
    if let Some(request) = first.take(std::ptr::null_mut(), PAGES).unwrap() {
        let slot = usize::from(request.slot);
        match death {
            Death::Taken => {}
            Death::Served => {
                channel.serve(slot);
            }
            Death::Untold => {
                channel.slots[slot].finish(channel.serve(slot));
                answered += 1;
            }
            Death::Unrung => {
                assert!(first.finish(slot, channel.serve(slot)));
                let _ = channel.client.answer();
                answered += 1;
            }
        }
    }
    // As `Server::attach`.
    let mut second = Serving::take_over(channel.words());
    channel.client.lower();
    channel.bell.ring();
    channel.run(&mut second, 2 - answered);
}
