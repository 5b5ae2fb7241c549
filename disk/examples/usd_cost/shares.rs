//! Contracts for all of the disk, with clients that use all of it.

use crate::asker::Asker;
use crate::ground::Ground;
use crate::{Outcome, median, unscheduled};
use disk::atropos::{ClientId, ClientTotals, DiskContract, Utilization};
use disk::time::Nanos;
use disk::usd::Usd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const PARTS: [u64; 3] = [1, 2, 4];
/// Time for the correction to settle.
const SETTLING: Duration = Duration::from_millis(750);
const COUNTED: Duration = Duration::from_secs(2);
const UNSCHEDULED: Duration = Duration::from_millis(500);
/// Interval of the newcomer's arrivals.
const PAUSE: Duration = Duration::from_millis(130);
const SPIN: Duration = Duration::from_micros(100);

pub fn contract(share: Utilization, period: u64, extra: bool) -> DiskContract {
    let period = Nanos::millis(period);
    DiskContract {
        period,
        slice: share.in_period(period),
        extra,
        laxity: Nanos::ZERO,
    }
}

/// The result of one round.
struct Round {
    rate: f64,
    /// Charged time and bytes of each client.
    charged: Vec<f64>,
    bytes: Vec<f64>,
    /// Fraction of the promised time that was charged.
    kept: f64,
    correction: f64,
    processor: f64,
    /// The newcomer's requests, in microseconds: inside the thread, and as it observed them.
    waits: (f64, f64),
    seen: Vec<f64>,
}

pub fn print(ground: &Ground, depth: usize, flood: bool) -> Outcome {
    let (mut rounds, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(unscheduled::run(ground, 3, depth, UNSCHEDULED)?.rate);
        rounds.push(round(ground, depth, flood)?);
        alone.push(unscheduled::run(ground, 3, depth, UNSCHEDULED)?.rate);
    }
    let of = |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let ratio = |at: usize, round: &Round| {
        round.rate / ((alone[2 * at] + alone[2 * at + 1]) / 2.0).max(1.0)
    };
    let ratios = rounds
        .iter()
        .enumerate()
        .map(|(at, round)| ratio(at, round));
    println!(
        "1:2:4 of all, {depth} outstanding each{}: {:.0} reads/s, {:.2} of unscheduled ({:.0}); charged {:.3} of what was \
         promised; correction {:.2}; the thread used {:.0} % of a processor",
        if flood {
            ", and a doorbell without end"
        } else {
            ""
        },
        of(&|round| round.rate),
        median(ratios.collect()),
        median(alone.clone()),
        of(&|round| round.kept),
        of(&|round| round.correction),
        of(&|round| 100.0 * round.processor),
    );
    println!(
        "  error from 1:2:4: charged {:.2} %, bytes {:.2} %; by round: {}",
        of(&|round| 100.0 * error(&round.charged)),
        of(&|round| 100.0 * error(&round.bytes)),
        rounds
            .iter()
            .map(|round| format!(
                "{:.2}/{:.2}",
                100.0 * error(&round.charged),
                100.0 * error(&round.bytes)
            ))
            .collect::<Vec<_>>()
            .join(" ")
    );
    let seen: Vec<f64> = rounds.iter().flat_map(|round| round.seen.clone()).collect();
    println!(
        "  a newcomer's request waits {:.0} us in the thread, {:.0} at most by round (median; \
         worst {:.0}), of a bound of {}; it sees {:.0} us",
        of(&|round| round.waits.0),
        of(&|round| round.waits.1),
        rounds.iter().map(|round| round.waits.1).fold(0.0, f64::max),
        ground.calibration.model.bound,
        median(seen)
    );
    Ok(())
}

/// The greatest relative error of a client's part.
fn error(had: &[f64]) -> f64 {
    let (sum, parts) = (had.iter().sum::<f64>(), PARTS.iter().sum::<u64>() as f64);
    let off = |(had, part): (&f64, &u64)| (had / sum / (*part as f64 / parts) - 1.0).abs();
    had.iter().zip(&PARTS).map(off).fold(0.0, f64::max)
}

fn round(ground: &Ground, depth: usize, flood: bool) -> Outcome<Round> {
    let usd = ground.usd(SPIN)?;
    let newcomers = Utilization::percent(2);
    let all = ground.calibration.model.capacity - newcomers;
    let mut askers = Vec::new();
    for part in PARTS {
        let slice = Nanos(all.in_period(Nanos::millis(250)).0 * part / 7);
        let contract = DiskContract {
            slice,
            ..contract(all, 250, true)
        };
        askers.push(Asker::new(&usd, contract, ground)?);
    }
    let ids: Vec<_> = askers.iter().map(|asker| asker.id).collect();
    let newcomer = Asker::new(&usd, contract(newcomers, 100, false), ground)?;
    let noise = match flood {
        true => Some(Asker::new(
            &usd,
            contract(Utilization::default(), 100, true),
            ground,
        )?),
        false => None,
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mut asker in askers {
            let stop = &stop;
            scope.spawn(move || asker.keep(depth, stop));
        }
        if let Some(noise) = noise {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = rustix::io::write(&noise.doorbell, &1u64.to_ne_bytes());
                }
            });
        }
        let round = count(&usd, &ids, newcomer, all);
        stop.store(true, Ordering::Relaxed);
        round
    })
}

/// What the clients have in one interval, while a newcomer reads one page after another.
fn count(usd: &Usd, ids: &[ClientId], mut newcomer: Asker, all: Utilization) -> Outcome<Round> {
    let totals = || -> Vec<ClientTotals> {
        let stats = ids.iter().filter_map(|&id| usd.client_stats(id));
        stats.map(|stats| stats.totals).collect()
    };
    std::thread::sleep(SETTLING);
    let (begun, before, used) = (Instant::now(), totals(), usd.disk_stats().processor);
    let (pieces, mut seen) = (newcomer.pieces(), Vec::new());
    while begun.elapsed() < COUNTED {
        std::thread::sleep(PAUSE);
        let asked = Instant::now();
        newcomer.one(&pieces);
        seen.push(asked.elapsed().as_secs_f64() * 1e6);
    }
    let (after, whole) = (totals(), usd.disk_stats());
    let elapsed = begun.elapsed().as_secs_f64();
    let both = || before.iter().zip(&after);
    let charged = both().map(|(b, a)| (a.charged - b.charged).0 as f64 / 1e9);
    let charged: Vec<f64> = charged.collect();
    let reads: u64 = both().map(|(b, a)| a.transactions - b.transactions).sum();
    let wait = usd.client_stats(newcomer.id).and_then(|stats| stats.wait);
    let wait = wait.ok_or("the newcomer came")?;
    Ok(Round {
        rate: reads as f64 / elapsed,
        kept: charged.iter().sum::<f64>() / elapsed / f64::from(all),
        charged,
        bytes: both().map(|(b, a)| (a.bytes - b.bytes) as f64).collect(),
        correction: whole.correction,
        processor: (whole.processor - used).as_secs_f64() / elapsed,
        waits: (
            wait.value_at_quantile(0.5) as f64 / 1e3,
            wait.max() as f64 / 1e3,
        ),
        seen,
    })
}
