//! What the system domain costs: a page read through it beside one from a store of the
//! program's own, the processor time it burns for that, and its scheduler by itself.

use super::guest::{Done, Order};
use super::{Grounds, Options, fact, lacking, sample};
use crate::ExperimentError;
use crate::process::Process;
use crate::real::goal::{Bound, Row};
use crate::system::{Setup, System};
use disk::atropos::{Atropos, Decision, DiskContract, Dispatch, TransactionDesc, Utilization};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};
use disk::trace::ring;
use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

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
const LOOKS: [(Option<Duration>, &str, f64); 3] = [
    (
        Some(Duration::from_millis(100)),
        "the disk's thread spins",
        1.25,
    ),
    (None, "the disk's thread as it is by default", 1.25),
    (Some(Duration::ZERO), "the disk's thread sleeps", 2.0),
];

/// All of it.
pub fn rows(grounds: &Grounds<'_>, options: &Options) -> Vec<Row> {
    let mut rows = reads(grounds, options).unwrap_or_else(|failure| {
        vec![lacking("a read through the system domain".into(), failure)]
    });
    rows.push(
        idle(grounds, options).unwrap_or_else(|failure| lacking("idle contracts".into(), failure)),
    );
    rows.extend(scheduler(options));
    rows
}

fn reads(grounds: &Grounds<'_>, options: &Options) -> Result<Vec<Row>, ExperimentError> {
    let mut rows = LOOKS.map(|(_, how, most)| {
        let mut row = fact(
            format!("a random read through the system domain, {how}"),
            Bound::AtMost(most),
            0.0,
        );
        row.beside = Some("a store of its own".into());
        row.unit = "us";
        row.samples.clear();
        row
    });
    for repeat in 0..options.repeats {
        super::say(&format!("overhead, repeat {}", repeat + 1));
        let own = own(grounds, options)?;
        for (row, (spin, ..)) in rows.iter_mut().zip(LOOKS) {
            let (each, burned) = through(grounds, options, spin)?;
            let burned = [("processor us of the system domain's", burned)];
            row.samples.push(sample(each, Some(own), &burned));
        }
    }
    Ok(rows.into())
}

/// Microseconds of a read from a store of the program's own.
fn own(grounds: &Grounds<'_>, options: &Options) -> Result<f64, ExperimentError> {
    let (path, _owed) = grounds.base.file("store")?;
    let store = format!("disk:{},size={}M", path.display(), DATA * 2);
    let mut guest = start(grounds, &["--store", &store])?;
    let done = read(&mut guest, options)?;
    guest.end()?;
    Ok(1e6 / done.rate())
}

/// Microseconds of a read through the system domain, and processor time of its own for it.
fn through(
    grounds: &Grounds<'_>,
    options: &Options,
    spin: Option<Duration>,
) -> Result<(f64, f64), ExperimentError> {
    let setup = Setup {
        spin,
        ..Setup::of(FRAMES * 2)
    };
    let system = System::start(&grounds.base, &grounds.disk, setup)?;
    let socket = system.socket().to_string_lossy().into_owned();
    let swap = (DATA * 2).to_string();
    let mut guest = start(
        grounds,
        &["--system", &socket, "--swap", &swap, "--disk", SHARE],
    )?;
    let before = system.processor();
    let done = read(&mut guest, options)?;
    let burned = system.processor() - before;
    guest.end()?;
    Ok((
        1e6 / done.rate(),
        burned.as_secs_f64() * 1e6 / done.accesses as f64,
    ))
}

/// More than one reader at a time can use.
const SHARE: &str = "200ms/250ms,extra,laxity=10ms";

fn start(grounds: &Grounds<'_>, extra: &[&str]) -> Result<Process, ExperimentError> {
    let mut command = grounds.base.myself.command("guest");
    command.args(["--mib", &DATA.to_string()]);
    command.args(["--frames", &(FRAMES << 10).to_string()]);
    command.args(extra);
    Process::start(command)
}

fn read(guest: &mut Process, options: &Options) -> Result<Done, ExperimentError> {
    for (order, counts) in [
        (Order::Fill, false),
        (Order::Closed(Duration::from_millis(300)), false),
        (Order::Closed(Duration::from_secs_f64(options.phase)), true),
    ] {
        guest.tell(&order.to_string())?;
        let done: Done = guest.hear_as()?;
        if counts {
            return Ok(done);
        }
    }
    Err(ExperimentError::Worker("nothing was read".into()))
}

/// Processor time that idle contracts cost.
fn idle(grounds: &Grounds<'_>, options: &Options) -> Result<Row, ExperimentError> {
    let system = System::start(&grounds.base, &grounds.disk, Setup::of(FRAMES * 2))?;
    let socket = system.socket().to_string_lossy().into_owned();
    let part = |system: &System| {
        let before = system.processor();
        let time = Duration::from_secs_f64(options.phase.max(1.0));
        std::thread::sleep(time);
        (system.processor() - before).as_secs_f64() / time.as_secs_f64()
    };
    let none = part(&system);
    let mut guests = Vec::new();
    for _ in 0..IDLE {
        let mut command = grounds.base.myself.command("guest");
        command.args(["--mib", "1", "--frames", "64", "--swap", "1"]);
        command.args(["--system", &socket, "--disk", "5ms/250ms"]);
        guests.push(Process::start(command)?);
    }
    let all = part(&system);
    for guest in guests {
        guest.end()?;
    }
    let mut row = fact(
        format!("part of a processor for each of {IDLE} idle contracts"),
        Bound::AtMost(0.001),
        (all - none) / IDLE as f64,
    );
    row.samples[0].notes.insert("with none".into(), none);
    Ok(row)
}

/// The scheduler by itself, with its trace on.
fn scheduler(options: &Options) -> [Row; 2] {
    let mut alone = fact(
        "the scheduler's own time for a transaction".into(),
        Bound::AtMost(2.0),
        0.0,
    );
    let mut beside = fact(
        format!("the same with {SLEEPERS} idle contracts"),
        Bound::AtMost(1.05),
        0.0,
    );
    (alone.unit, beside.unit) = ("us", "us");
    beside.beside = Some("with none".into());
    (alone.samples, beside.samples) = (Vec::new(), Vec::new());
    for _ in 0..options.repeats {
        let (Some(none), Some(many)) = (transaction(0), transaction(SLEEPERS)) else {
            break;
        };
        alone.samples.push(sample(none, None, &[]));
        beside.samples.push(sample(many, Some(none), &[]));
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
        let client = disk.admit(contract).ok()?;
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
