//! A simulated disk: a device with given latencies, clients with habits, a clock that only moves
//! when something happens.

#![allow(dead_code, reason = "no test file uses all of it")]

use disk::atropos::{
    Atropos, ClientId, ClientState, Decision, DiskContract, InFlightId, TransactionDesc,
};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};
use disk::trace::Event;
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
    pub events: Vec<Event>,
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
    let mut atropos = Atropos::new(capacity, device.bound, Vec::new());
    let ids: Vec<ClientId> = clients
        .iter()
        .map(|client| atropos.admit(client.contract).expect("within capacity"))
        .collect();
    let mut agenda = BinaryHeap::new();
    let mut flying: Vec<Flying> = Vec::new();
    let mut burst_left = vec![0u32; clients.len()];
    let mut asked: Vec<Vec<Time>> = vec![Vec::new(); clients.len()];
    let mut waits = vec![Vec::new(); clients.len()];
    for (at, client) in clients.iter().enumerate() {
        let count = match client.habit {
            Habit::Backlog { outstanding } => outstanding,
            Habit::Serial { .. } => 1,
            Habit::Bursts { burst, .. } => burst,
            Habit::Flood { requests } => requests,
        };
        burst_left[at] = count;
        (0..count).for_each(|_| agenda.push(Reverse((client.begins, What::Arrive(at)))));
    }
    let (mut free_at, mut now, mut wasted, mut idle_from) = (Time(0), Time(0), Nanos(0), None);
    let mut charges: Vec<Charge> = Vec::new();
    let mut looked = Time::NEVER;
    while let Some(Reverse((then, what))) = agenda.pop() {
        if then > Time(0) + time {
            break;
        }
        if let Some(from) = idle_from.take() {
            wasted += then - from;
        }
        now = then;
        match what {
            What::Look => {}
            What::Arrive(at) => {
                let cost = Nanos((clients[at].cost.0 * 100 / device.slower).max(1));
                let job = TransactionDesc {
                    op: Op::Read,
                    bytes: 4096,
                    cost,
                    tag: at as u64,
                };
                assert!(atropos.submit(now, ids[at], job));
                asked[at].push(now);
            }
            What::Finish(at) => {
                let Flying {
                    ticket,
                    client,
                    started,
                } = flying[at];
                atropos.complete(now, ticket, now - started);
                if let Some(Event::Transaction {
                    charge,
                    slack: false,
                    ..
                }) = atropos.trace().last()
                {
                    charges[at].time = *charge;
                }
                let next = match clients[client].habit {
                    Habit::Backlog { .. } => Some((now, 1)),
                    Habit::Serial { think } => Some((now + think, 1)),
                    Habit::Flood { .. } => None,
                    Habit::Bursts { burst, idle } => {
                        burst_left[client] -= 1;
                        (burst_left[client] == 0).then(|| {
                            burst_left[client] = burst;
                            (now + idle, burst)
                        })
                    }
                };
                let (then, count) = next.unwrap_or((now, 0));
                (0..count).for_each(|_| agenda.push(Reverse((then, What::Arrive(client)))));
            }
        }
        // All events of this moment happen before any decision.
        if agenda.peek().is_some_and(|Reverse((next, _))| *next == now) {
            continue;
        }
        loop {
            match atropos.next(now) {
                Decision::Dispatch(start) => {
                    let client = start.job.tag as usize;
                    let at = waits[client].len();
                    waits[client].push(now - asked[client][at]);
                    free_at = free_at.max(now) + clients[client].cost;
                    let done = free_at + device.latency;
                    flying.push(Flying {
                        ticket: start.ticket,
                        client,
                        started: now,
                    });
                    agenda.push(Reverse((done, What::Finish(flying.len() - 1))));
                    charges.push(Charge {
                        client,
                        after: atropos.trace().len(),
                        time: Nanos::ZERO,
                    });
                    let (count, cost) = (atropos.in_flight(), atropos.cost_in_flight());
                    assert!(
                        count == 1 || cost <= device.bound,
                        "{count} that cost {cost}"
                    );
                }
                Decision::WaitUntil(until) => {
                    assert!(until > now, "waits for {until:?} at {now:?}");
                    if until != looked || until <= now {
                        agenda.push(Reverse((until, What::Look)));
                        looked = until;
                    }
                    break;
                }
                Decision::Full | Decision::Idle => break,
            }
        }
        let entitled = ids.iter().filter_map(|&id| atropos.client(id)).any(|view| {
            view.queued > 0
                && (view.contract.extra || view.remaining > view.contract.slice.0 as i64 / 2)
        });
        let lax = ids.iter().filter_map(|&id| atropos.client(id)).any(|view| {
            !view.idle && view.queued == 0 && view.in_flight == 0 && view.remaining > 0
        });
        if entitled && !lax && atropos.in_flight() == 0 {
            idle_from = Some(now);
        }
    }
    atropos.next(now);
    let views = ids
        .iter()
        .map(|&id| atropos.client(id).expect("there"))
        .collect();
    let factor = atropos.correction().factor();
    let events = atropos.trace().clone();
    Run {
        events,
        views,
        waits,
        wasted,
        factor,
        charges,
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
    let of_client = |(_, event): &(usize, &Event)| event.client() == client as u32;
    let mut starts: Vec<(usize, Time)> = Vec::new();
    for (number, event) in run.events.iter().enumerate().filter(of_client) {
        if let Event::Allocation { at, .. } = *event {
            starts.push((number, at));
        }
    }
    let mut charged = vec![Nanos(0); starts.len()];
    for charge in run.charges.iter().filter(|charge| charge.client == client) {
        let period = starts.partition_point(|&(number, _)| number < charge.after);
        charged[period - 1] += charge.time;
    }
    for (_, event) in run.events.iter().enumerate().filter(of_client) {
        if let Event::Lax { from, to, .. } = *event {
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
