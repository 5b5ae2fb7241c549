//! What the daemon costs: a page read through it beside one from a store of the
//! program's own, the processor time it burns for that, and its scheduler by itself.

use super::backing::Backing;
use super::subject::{Done, Order, SubjectPlan};
use super::{QosOptions, lacking};
use crate::prelude::*;
use disk::atropos::{Atropos, Decision, DiskContract, Dispatch, TransactionDesc, Utilization};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};
use disk::trace::ring;
use std::collections::VecDeque;
use std::hint::black_box;

/// MiB of data, and of frames.
const DATA: u64 = 64;
const FRAMES: u64 = 8;

/// Idle contracts.
const IDLE: u64 = 20;

/// Of the scheduler by itself.
const TRANSACTIONS: u64 = 200_000;
const CLIENTS: u64 = 32;
const SLEEPERS: u64 = 500;

/// How long the disk's thread looks for more: always, as it does by default, never. What each
/// is called, and what its reads may take of those from a store of one's own.
const POLLS: [(Option<Duration>, &str, f64); 3] = [
    (
        Some(Duration::from_millis(100)),
        "the disk's thread spins",
        1.25,
    ),
    (None, "the disk's thread as it is by default", 1.25),
    (Some(Duration::ZERO), "the disk's thread sleeps", 2.0),
];

/// All of it.
pub fn rows(env: &TestEnv, options: &QosOptions) -> Vec<Row> {
    let mut rows = lacking("a read through the daemon", reads(env, options));
    rows.extend(lacking("idle contracts", idle(env, options)));
    rows.extend(scheduler(options));
    rows
}

fn reads(env: &TestEnv, options: &QosOptions) -> Result<Vec<Row>> {
    let mut rows = POLLS.map(|(_, how, most)| {
        let what = format!("a random read through the daemon, {how}");
        Row::new(what, "us", Bound::AtMost(most)).beside("a store of its own")
    });
    for repeat in 0..options.repeats {
        progress(&format!("overhead, repeat {}", repeat + 1));
        let own = own(env, options)?;
        for (row, (spin, ..)) in rows.iter_mut().zip(POLLS) {
            let (each, burned) = through(env, options, spin)?;
            let burned = [("processor us of the daemon", burned)];
            row.samples.push(Sample::new(each, own).notes(burned));
        }
    }
    Ok(rows.into())
}

/// Microseconds of a read from a store of the program's own.
fn own(env: &TestEnv, options: &QosOptions) -> Result<f64> {
    let path = env.file("store")?;
    let store = Some(format!("disk:{},size={}M", path.display(), DATA * 2));
    let frames = FRAMES << 10;
    let backing = Backing {
        store,
        frames,
        ..Backing::default()
    };
    let mut subject = SubjectPlan::start(DATA, backing)?;
    let done = read(&mut subject, options)?;
    subject.end()?;
    Ok(1e6 / done.rate())
}

/// Microseconds of a read through the daemon, and processor time of its own for it.
fn through(env: &TestEnv, options: &QosOptions, spin: Option<Duration>) -> Result<(f64, f64)> {
    let config = DaemonConfig {
        spin,
        ..DaemonConfig::of(FRAMES * 2)
    };
    let system = DaemonFixture::start(env, config)?;
    let backing = Backing::of(&system, SHARE, DATA * 2, FRAMES << 10);
    let mut subject = SubjectPlan::start(DATA, backing)?;
    let before = system.processor();
    let done = read(&mut subject, options)?;
    let burned = system.processor() - before;
    subject.end()?;
    Ok((
        1e6 / done.rate(),
        burned.as_secs_f64() * 1e6 / done.accesses as f64,
    ))
}

/// More than one reader at a time can use.
const SHARE: &str = "200ms/250ms,extra,laxity=10ms";

/// The last of the reads counts.
fn read(subject: &mut Worker, options: &QosOptions) -> Result<Done> {
    subject.call::<Done>(&Order::Fill)?;
    subject.call::<Done>(&Order::Closed(Duration::from_millis(300)))?;
    subject.call(&Order::Closed(Duration::from_secs_f64(options.phase)))
}

/// Processor time that idle contracts cost.
fn idle(env: &TestEnv, options: &QosOptions) -> Result<Vec<Row>> {
    let system = DaemonFixture::start(env, DaemonConfig::of(FRAMES * 2))?;
    let part = || {
        let before = system.processor();
        let time = Duration::from_secs_f64(options.phase.max(1.0));
        std::thread::sleep(time);
        (system.processor() - before).as_secs_f64() / time.as_secs_f64()
    };
    let none = part();
    let start = |_| SubjectPlan::start(1, Backing::of(&system, "5ms/250ms", 1, 64));
    let subjects = (0..IDLE).map(start).collect::<Result<Vec<_>>>()?;
    let all = part();
    subjects
        .into_iter()
        .try_for_each(|subject| subject.end().map(drop))?;
    let what = format!("part of a processor for each of {IDLE} idle contracts");
    let row = Row::fact(what, Bound::AtMost(0.001), (all - none) / IDLE as f64);
    Ok(vec![row.notes([("with none", none)])])
}

/// The scheduler by itself, with its trace on.
fn scheduler(options: &QosOptions) -> [Row; 2] {
    let what = "the scheduler's own time for a transaction";
    let mut alone = Row::new(what, "us", Bound::AtMost(2.0));
    let what = format!("the same with {SLEEPERS} idle contracts");
    let mut beside = Row::new(what, "us", Bound::AtMost(1.05)).beside("with none");
    for _ in 0..options.repeats {
        let (Some(none), Some(many)) = (transaction(0), transaction(SLEEPERS)) else {
            break;
        };
        alone.samples.push(Sample::new(none, None));
        beside.samples.push(Sample::new(many, none));
    }
    [alone, beside]
}

/// Microseconds from a transaction's arrival to its end, on a virtual device.
fn transaction(idle: u64) -> Option<f64> {
    const COST: Nanos = Nanos::micros(13);
    let (trace, _reader) = ring(1 << 16);
    let mut disk = Atropos::new(Utilization::WHOLE, Nanos::micros(200), trace);
    let contract = DiskContract {
        period: Nanos::millis(250),
        // The same slice with and without sleepers: smaller slices make more periods a second.
        slice: Nanos(250_000_000 / (CLIENTS + SLEEPERS)),
        extra: true,
        laxity: Nanos::millis(10),
    };
    let job = |tag| TransactionDesc {
        op: Op::Read,
        bytes: 4096,
        cost: COST,
        tag,
    };
    let mut now = Time(0);
    for tag in 0..CLIENTS + idle {
        let client = disk.admit(now, contract).ok()?;
        if tag < CLIENTS {
            (0..16).for_each(|_| _ = black_box(disk.submit(now, client, job(tag))));
        }
    }
    let mut flying: VecDeque<Dispatch> = VecDeque::new();
    let (began, mut done) = (Instant::now(), 0);
    while done < TRANSACTIONS {
        match disk.next(now) {
            Decision::Dispatch(start) => flying.push_back(start),
            Decision::WaitUntil(until) if flying.is_empty() => now = until,
            _ => {
                let start = flying.pop_front()?;
                now = now + COST;
                disk.complete(now, start.ticket, COST);
                disk.submit(now, start.client, job(start.job.tag));
                done += 1;
            }
        }
    }
    Some(began.elapsed().as_secs_f64() * 1e6 / TRANSACTIONS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_comes_to_an_end_of_its_transactions() {
        assert!(transaction(0).is_some_and(|us| us > 0.0));
    }
}
