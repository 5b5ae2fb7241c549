//! Processor time of the disk's thread.

use crate::asker::Asker;
use crate::ground::Ground;
use crate::shares::contract;
use crate::{Outcome, median, unscheduled};
use disk::atropos::Utilization;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROUNDS: usize = 5;
const DEPTH: usize = 16;
const TIME: Duration = Duration::from_millis(800);

pub fn print(ground: &Ground) -> Outcome {
    let (mut bare, mut few, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(unscheduled::run(ground, 1, DEPTH, TIME)?.processor);
        few.push(each(ground, 0)?);
        many.push(each(ground, 500)?);
    }
    let (bare, few, many) = (median(bare), median(few), median(many));
    println!(
        "one client with {DEPTH} outstanding: a transaction takes {few:.2} us of the thread's \
         processor time, {many:.2} us beside 500 idle contracts; by a ring of the client's own \
         it takes {bare:.2} us"
    );
    Ok(())
}

/// Processor time of the thread a transaction, in microseconds. It never spins.
fn each(ground: &Ground, idle: usize) -> Outcome<f64> {
    let usd = ground.usd(Duration::ZERO)?;
    let mut asker = Asker::new(&usd, contract(Utilization::percent(40), 100, true), ground)?;
    for _ in 0..idle {
        usd.admit(contract(Utilization::percent(0), 100, true))?;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let id = asker.id;
        scope.spawn(|| asker.keep(DEPTH, &stop));
        std::thread::sleep(TIME / 4);
        let figures = || usd.client_stats(id).ok_or("a client");
        let (before, used) = (figures()?, usd.disk_stats().processor);
        std::thread::sleep(TIME);
        let (after, whole) = (figures()?, usd.disk_stats());
        stop.store(true, Ordering::Relaxed);
        let count = (after.totals.transactions - before.totals.transactions).max(1);
        Ok((whole.processor - used).as_secs_f64() * 1e6 / count as f64)
    })
}
