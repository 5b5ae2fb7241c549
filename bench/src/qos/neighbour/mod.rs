//! A program that must answer, beside one that pages hard: ours beside what Linux offers.
//!
//! The victim reads pages at random over eight times its memory; the neighbour changes
//! pages at random, by several threads, over eight times its own. In every arm they have the
//! same data, the same memory and the same accesses at the same times. What is compared is
//! what the victim keeps of what it had alone: both are measured in the same process, one
//! after the other, in turn.

mod analysis;

use super::QosOptions;
use super::backing::Backing;
use super::pair::{Allotment, Limits, Side, WARM, alone_and_beside, run_arms};
use super::subject::{Done, Latency, Order, SubjectPlan};
use crate::prelude::*;

/// Times as much data as memory.
const OVER: u64 = 8;

/// Threads of the neighbour's.
const THREADS: u64 = 4;

/// The victim's figures, alone or beside the neighbour.
#[derive(Clone, Copy, Debug)]
struct VictimFigures {
    closed: Done,
    open: Latency,
}

/// One run of an arm.
#[derive(Clone, Copy, Debug)]
struct ArmRun {
    alone: VictimFigures,
    /// Alone with no more than the contract promises, where there is one.
    promised: Option<Done>,
    beside: VictimFigures,
    neighbour: Done,
}

/// Runs every arm in turn.
pub fn rows(env: &TestEnv, options: &QosOptions) -> Vec<Row> {
    let of = [options.victim, options.neighbour].map(|mib| Allotment {
        memory: (mib / OVER) << 20,
        swap: (mib * 3 / 2) << 20,
    });
    analysis::judged(run_arms("neighbour", options, |arm, repeat| {
        let mut limits = Limits::new(env, arm, of)?;
        let mut start = |side: Side, mib: u64| {
            let plan = SubjectPlan {
                memory: limits.memory(),
                mib,
                backing: Backing::default(),
            };
            let program = WorkerPlan::Subject(plan).command()?;
            limits.start(env, side, of[side as usize], &program, Worker::start)
        };
        let subjects = [
            start(Side::Victim, options.victim)?,
            start(Side::Neighbour, options.neighbour)?,
        ];
        run(options, repeat, &limits, subjects)
    }))
}

fn run(
    options: &QosOptions,
    repeat: u64,
    limits: &Limits,
    mut subjects: [Worker; 2],
) -> Result<ArmRun> {
    let [victim, neighbour] = &mut subjects;
    victim.call::<Done>(&Order::Fill)?;
    neighbour.call::<Done>(&Order::Fill)?;
    // What was written last goes out first, and is none of a reader's time.
    victim.call::<Done>(&Order::Closed(WARM))?;
    limits.throttle(|| Ok(Duration::from_nanos(churn(neighbour, || Ok(()))?.1.ns)))?;
    let mut busy = None;
    let alone = |victim: &mut Worker| phase(victim, options, repeat);
    let [alone, beside] = alone_and_beside(repeat, victim, alone, |victim| {
        let (figures, done) = churn(neighbour, || phase(victim, options, repeat))?;
        busy = Some(done);
        Ok(figures)
    })?;
    let during = Duration::from_secs_f64(options.phase);
    let promised = limits.promised(|| victim.call(&Order::Closed(during)))?;
    // Both end well, or the run has no figures.
    for subject in subjects {
        subject.end()?;
    }
    Ok(ArmRun {
        alone,
        promised,
        beside,
        neighbour: busy.ok_or_else(|| anyhow!("the neighbour did nothing"))?,
    })
}

/// Has the neighbour change pages while something is measured; what both did.
fn churn<F>(neighbour: &mut Worker, measure: impl FnOnce() -> Result<F>) -> Result<(F, Done)> {
    neighbour.send(&Order::Churn(THREADS))?;
    std::thread::sleep(WARM);
    let figures = measure()?;
    Ok((figures, neighbour.call(&Order::Rest)?))
}

fn phase(victim: &mut Worker, options: &QosOptions, repeat: u64) -> Result<VictimFigures> {
    let during = Duration::from_secs_f64(options.phase);
    let (rate, seed) = (options.rate, repeat + 1);
    let closed = victim.call(&Order::Closed(during))?;
    let open = victim.call(&Order::Open { during, rate, seed })?;
    Ok(VictimFigures { closed, open })
}
