//! The scheduler's cost of a transaction, from arrival to completion, with its trace on.
//!
//!     cargo run --release -p disk --example scheduler_cost

use disk::atropos::{Atropos, Decision, DiskContract, Dispatch, TransactionDesc, Utilization};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};
use disk::trace::ring;
use std::collections::VecDeque;
use std::time::Instant;

const TRANSACTIONS: u64 = 2_000_000;

fn main() {
    for (active, idle, extra) in [
        (1, 0, false),
        (32, 0, false),
        (32, 0, true),
        (32, 500, true),
        (128, 0, true),
    ] {
        let each = time(active, idle, extra);
        println!(
            "{active} clients at work, {idle} idle, slack {extra}: {each:.0} ns a transaction"
        );
    }
}

fn time(active: u64, idle: u64, extra: bool) -> f64 {
    let (writer, _reader) = ring(1 << 16);
    let mut disk = Atropos::new(Utilization::WHOLE, Nanos::micros(200), writer);
    let contract = |share: u64| DiskContract {
        period: Nanos::millis(250),
        slice: Nanos(250_000_000 / share),
        extra,
        laxity: Nanos::millis(10),
    };
    let clients: Vec<_> = (0..active + idle)
        .map(|_| {
            disk.admit(contract(active + idle))
                .expect("within capacity")
        })
        .collect();
    let job = |tag| TransactionDesc {
        op: Op::Read,
        bytes: 4096,
        cost: Nanos::micros(13),
        tag,
    };
    let mut now = Time(0);
    for client in 0..active {
        (0..16).for_each(|_| _ = disk.submit(now, clients[client as usize], job(client)));
    }
    let mut flying: VecDeque<Dispatch> = VecDeque::new();
    let begun = Instant::now();
    let mut done = 0;
    while done < TRANSACTIONS {
        match disk.next(now) {
            Decision::Dispatch(start) => flying.push_back(start),
            Decision::WaitUntil(until) if flying.is_empty() => now = until,
            _ => {
                let Some(start) = flying.pop_front() else {
                    panic!("neither work nor a deadline");
                };
                now = now + Nanos::micros(13);
                disk.complete(now, start.ticket, Nanos::micros(180));
                disk.submit(now, start.client, job(start.job.tag));
                done += 1;
            }
        }
    }
    begun.elapsed().as_nanos() as f64 / TRANSACTIONS as f64
}
