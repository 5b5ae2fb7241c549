//! A simulated disk: a device with given latencies, clients with habits, a clock that only moves
//! when something happens.

#![allow(dead_code, reason = "no test file uses all of it")]

use disk::atropos::{
    Atropos, ClientId, ClientState, Decision, DiskContract, Dispatch, InFlightId, TransactionDesc,
};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};
use disk::trace::TraceEvent;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A client's pattern of requests.
#[derive(Clone, Copy, Debug)]
pub enum Habit {
    /// Always that many outstanding.
    Backlog { outstanding: u32 },
    /// One at a time, with a pause between a completion and the next request.
    Serial { think: Nanos },
    /// Bursts of requests, with idleness after each burst.
    Bursts { burst: u32, idle: Nanos },
    /// All requests at the beginning.
    Flood { requests: u32 },
}

#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub contract: DiskContract,
    pub habit: Habit,
    /// The device's real time for one of its transactions.
    pub cost: Nanos,
    pub begins: Time,
}

/// Error of the model, in hundredths: 130 is a device slower than modelled.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Cost that may be in flight.
    pub bound: Nanos,
    pub slower: u64,
    /// Additional time of each transaction while others are in flight.
    pub latency: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Finish(usize),
    Arrive(usize),
    Look,
}

pub struct Run {
    pub events: Vec<TraceEvent>,
    pub views: Vec<ClientState>,
    /// For each client, the wait of each request before its start.
    pub waits: Vec<Vec<Nanos>>,
    /// Time in which the device was idle though a client had work that it was allowed to start;
    /// without lax time.
    pub wasted: Nanos,
    pub factor: f64,
    /// Charges to slices, in order of start.
    pub charges: Vec<Charge>,
}

/// A transaction that was charged to a slice.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    pub client: usize,
    /// Number of events recorded when it started.
    pub after: usize,
    pub time: Nanos,
}

struct Flying {
    ticket: InFlightId,
    client: usize,
    started: Time,
}

/// Runs the clients for a while.
pub fn run(
    device: Device,
    clients: &[Client],
    capacity: disk::atropos::Utilization,
    time: Nanos,
) -> Run {
    let mut simulation = Simulation::new(device, clients, capacity);
    let mut idle_from: Option<Time> = None;
    while let Some(Reverse((then, what))) = simulation.agenda.pop() {
        if then > Time(0) + time {
            break;
        }
        if let Some(from) = idle_from.take() {
            simulation.wasted += then - from;
        }
        simulation.now = then;
        match what {
            What::Look => {}
            What::Arrive(at) => simulation.arrive(at),
            What::Finish(at) => simulation.finish(at),
        }
        // All events of this moment happen before any decision.
        let next = simulation.agenda.peek();
        if next.is_some_and(|Reverse((next, _))| *next == then) {
            continue;
        }
        simulation.decide();
        idle_from = simulation.is_wasting().then_some(then);
    }
    simulation.end()
}

struct Simulation<'a> {
    device: Device,
    clients: &'a [Client],
    atropos: Atropos<Vec<TraceEvent>>,
    ids: Vec<ClientId>,
    agenda: BinaryHeap<Reverse<(Time, What)>>,
    flying: Vec<Flying>,
    /// For each client, what is left of its burst, its requests' times, and their waits.
    burst_left: Vec<u32>,
    asked: Vec<Vec<Time>>,
    waits: Vec<Vec<Nanos>>,
    now: Time,
    free_at: Time,
    looked: Time,
    wasted: Nanos,
    charges: Vec<Charge>,
}

impl<'a> Simulation<'a> {
    fn new(device: Device, clients: &'a [Client], capacity: disk::atropos::Utilization) -> Self {
        let mut atropos = Atropos::new(capacity, device.bound, Vec::new());
        let admit = |client: &Client| {
            atropos
                .admit(Time(0), client.contract)
                .expect("within capacity")
        };
        let ids = clients.iter().map(admit).collect();
        let mut simulation = Self {
            device,
            clients,
            atropos,
            ids,
            agenda: BinaryHeap::new(),
            flying: Vec::new(),
            burst_left: vec![0; clients.len()],
            asked: vec![Vec::new(); clients.len()],
            waits: vec![Vec::new(); clients.len()],
            now: Time(0),
            free_at: Time(0),
            looked: Time::NEVER,
            wasted: Nanos(0),
            charges: Vec::new(),
        };
        for (at, client) in clients.iter().enumerate() {
            let count = match client.habit {
                Habit::Backlog { outstanding } => outstanding,
                Habit::Serial { .. } => 1,
                Habit::Bursts { burst, .. } => burst,
                Habit::Flood { requests } => requests,
            };
            simulation.burst_left[at] = count;
            simulation.plan(client.begins, count, What::Arrive(at));
        }
        simulation
    }

    fn plan(&mut self, then: Time, count: u32, what: What) {
        (0..count).for_each(|_| self.agenda.push(Reverse((then, what))));
    }

    fn arrive(&mut self, at: usize) {
        let cost = self.clients[at].cost.0 * 100 / self.device.slower;
        let job = TransactionDesc {
            op: Op::Read,
            bytes: 4096,
            cost: Nanos(cost.max(1)),
            tag: at as u64,
        };
        assert!(self.atropos.submit(self.now, self.ids[at], job));
        self.asked[at].push(self.now);
    }

    /// Completes a transaction, and plans what its client requests next.
    fn finish(&mut self, at: usize) {
        let now = self.now;
        let Flying {
            ticket,
            client,
            started,
        } = self.flying[at];
        self.atropos.complete(now, ticket, now - started);
        if let Some(TraceEvent::Transaction {
            charge,
            slack: false,
            ..
        }) = self.atropos.trace().last()
        {
            self.charges[at].time = *charge;
        }
        let (then, count) = match self.clients[client].habit {
            Habit::Backlog { .. } => (now, 1),
            Habit::Serial { think } => (now + think, 1),
            Habit::Flood { .. } => (now, 0),
            Habit::Bursts { burst, idle } => {
                let left = &mut self.burst_left[client];
                *left -= 1;
                let ended = *left == 0;
                if ended {
                    *left = burst;
                }
                (now + idle, if ended { burst } else { 0 })
            }
        };
        self.plan(then, count, What::Arrive(client));
    }

    /// Starts what the scheduler names, until it names nothing.
    fn decide(&mut self) {
        let now = self.now;
        loop {
            match self.atropos.next(now) {
                Decision::Dispatch(start) => self.start(start),
                Decision::WaitUntil(until) => {
                    assert!(until > now, "waits for {until:?} at {now:?}");
                    if until != self.looked || until <= now {
                        self.plan(until, 1, What::Look);
                        self.looked = until;
                    }
                    break;
                }
                Decision::Full(_) | Decision::Idle => break,
            }
        }
    }

    fn start(&mut self, start: Dispatch) {
        let client = start.job.tag as usize;
        let at = self.waits[client].len();
        self.waits[client].push(self.now - self.asked[client][at]);
        self.free_at = self.free_at.max(self.now) + self.clients[client].cost;
        let done = self.free_at + self.device.latency;
        self.plan(done, 1, What::Finish(self.flying.len()));
        self.flying.push(Flying {
            ticket: start.ticket,
            client,
            started: self.now,
        });
        self.charges.push(Charge {
            client,
            after: self.atropos.trace().len(),
            time: Nanos::ZERO,
        });
        let (count, cost) = (self.atropos.in_flight(), self.atropos.cost_in_flight());
        assert!(
            count == 1 || cost <= self.device.bound,
            "{count} that cost {cost}"
        );
    }

    /// Returns true if the device is idle though a client has work that it may start now.
    fn is_wasting(&self) -> bool {
        let views = || self.ids.iter().filter_map(|&id| self.atropos.client(id));
        let entitled = views().any(|view| {
            view.queued > 0
                && (view.contract.extra || view.remaining > view.contract.slice.0 as i64 / 2)
        });
        let lax = views().any(|view| {
            !view.idle && view.queued == 0 && view.in_flight == 0 && view.remaining > 0
        });
        entitled && !lax && self.atropos.in_flight() == 0
    }

    fn end(mut self) -> Run {
        self.atropos.next(self.now);
        let view = |&id: &ClientId| self.atropos.client(id).expect("there");
        Run {
            views: self.ids.iter().map(view).collect(),
            factor: self.atropos.correction().factor(),
            events: self.atropos.trace().clone(),
            waits: self.waits,
            wasted: self.wasted,
            charges: self.charges,
        }
    }
}

/// A contract in milliseconds.
pub fn contract(slice: u64, period: u64, laxity: u64) -> DiskContract {
    DiskContract {
        period: Nanos::millis(period),
        slice: Nanos::millis(slice),
        extra: false,
        laxity: Nanos::millis(laxity),
    }
}

/// A client's charges in each whole period, with the period's length.
pub fn periods(run: &Run, client: usize) -> Vec<(Nanos, Nanos)> {
    let of_client = |(_, event): &(usize, &TraceEvent)| event.client() == client as u32;
    let mut starts: Vec<(usize, Time)> = Vec::new();
    for (number, event) in run.events.iter().enumerate().filter(of_client) {
        if let TraceEvent::Allocation { at, .. } = *event {
            starts.push((number, at));
        }
    }
    let mut charged = vec![Nanos(0); starts.len()];
    for charge in run.charges.iter().filter(|charge| charge.client == client) {
        let period = starts.partition_point(|&(number, _)| number < charge.after);
        charged[period - 1] += charge.time;
    }
    for (_, event) in run.events.iter().enumerate().filter(of_client) {
        if let TraceEvent::Lax { from, to, .. } = *event {
            // A transaction may overlap the end of a period.
            let ends = starts
                .iter()
                .skip(1)
                .map(|&(_, at)| at)
                .chain([Time::NEVER]);
            for ((&(_, begin), end), charged) in starts.iter().zip(ends).zip(&mut charged) {
                *charged += to.min(end) - from.max(begin);
            }
        }
    }
    let lengths = starts.windows(2).map(|pair| pair[1].1 - pair[0].1);
    lengths
        .zip(charged)
        .map(|(length, charged)| (charged, length))
        .collect()
}
