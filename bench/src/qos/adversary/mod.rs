//! A program under contract beside one that does what it can to harm it, under a contract, too.
//!
//! | adversary | what it does |
//! |---|---|
//! | `doorbells` | writes to every eventfd that it finds in its process, without an end, and asks for nothing by it |
//! | `writes` | changes all its pages in order, over and over: the most and the largest writes |
//! | `forks` | makes children, each of which changes some pages and ends |
//! | `stopped` | is stopped (SIGSTOP) with EXTRA in its hands, which another program claims |
//!
//! What is compared is the victim of `neighbour`, beside each of them and alone, in turn.

mod worker;

use super::QosOptions;
use super::pair::{Allotment, Arm, Limits, Side, WARM, alone_and_beside};
use super::subject::{Done, Latency, Order, SubjectPlan};
use crate::env::kib;
use crate::prelude::*;
use crate::process::within;
use crate::repeats::{Repeats, run_each};
pub use worker::{AdversaryKind, AdversaryPlan, serve};

/// Times as much data as memory.
const OVER: u64 = 8;

/// MiB that a stopped one has on top of its guarantee, and that another claims.
const EXTRA: u64 = 64;

/// Least that the victim keeps of its accesses.
const KEPT: Bound = Bound::AtLeast(0.95);

/// One run.
struct AdversaryRun {
    alone: (Done, Latency),
    beside: (Done, Latency),
    /// How long a claim took of what a stopped one has.
    claim: Option<Done>,
}

/// Runs the victim beside each of them in turn.
pub fn rows(env: &TestEnv, options: &QosOptions) -> Vec<Row> {
    let mut runs = Repeats::of(AdversaryKind::value_variants());
    for repeat in 0..options.repeats {
        run_each(&mut runs, repeat, |kind, _| {
            progress(&format!(
                "adversary: {}, repeat {}",
                kind.name(),
                repeat + 1
            ));
            run(env, options, kind, repeat)
        });
    }
    runs.into_iter().flat_map(judged).collect()
}

fn run(
    env: &TestEnv,
    options: &QosOptions,
    kind: AdversaryKind,
    repeat: u64,
) -> Result<AdversaryRun> {
    let of = [options.victim, options.neighbour].map(|mib| Allotment {
        memory: (mib / OVER) << 20,
        swap: (mib * 3 / 2) << 20,
    });
    let mut limits = Limits::new(env, Arm::System, of)?;
    let program = subject(options.victim)?;
    let victim = limits.start(env, Side::Victim, of[0], &program, Worker::start);
    let mut victim = victim?;
    victim.call::<Done>(&Order::Fill)?;
    victim.call::<Done>(&Order::Closed(WARM))?;
    let mut claim = None;
    let alone = |victim: &mut Worker| phase(victim, options, repeat);
    let [alone, beside] = alone_and_beside(repeat, &mut victim, alone, |victim| {
        let mut adversary = Adversary::start(env, options, kind, &limits, of[1])?;
        std::thread::sleep(WARM);
        if kind == AdversaryKind::Stopped {
            claim = Some(adversary.claim(env, &limits)?);
        }
        let figures = phase(victim, options, repeat)?;
        adversary.end()?;
        Ok(figures)
    })?;
    victim.end()?;
    Ok(AdversaryRun {
        alone,
        beside,
        claim,
    })
}

fn subject(mib: u64) -> Result<Command> {
    let (memory, backing) = (MemoryKind::Paged, Default::default());
    WorkerPlan::Subject(SubjectPlan {
        memory,
        mib,
        backing,
    })
    .command()
}

fn phase(victim: &mut Worker, options: &QosOptions, repeat: u64) -> Result<(Done, Latency)> {
    let during = Duration::from_secs_f64(options.phase);
    let (rate, seed) = (options.rate, repeat + 1);
    let closed = victim.call(&Order::Closed(during))?;
    Ok((closed, victim.call(&Order::Open { during, rate, seed })?))
}

/// A running one.
struct Adversary {
    kind: AdversaryKind,
    process: Worker,
}

impl Adversary {
    fn start(
        env: &TestEnv,
        options: &QosOptions,
        kind: AdversaryKind,
        limits: &Limits,
        of: Allotment,
    ) -> Result<Self> {
        let mib = match kind {
            AdversaryKind::Stopped => (of.memory >> 20) + EXTRA,
            _ => options.neighbour,
        };
        let frames = match kind {
            AdversaryKind::Stopped => format!("{}+{EXTRA}M", kib(of.memory)),
            _ => kib(of.memory),
        };
        let program = WorkerPlan::Adversary(AdversaryPlan { kind, mib }).command()?;
        let command = under_contract(env, limits, &frames, &kib(of.swap), &program)?;
        let mut process = Worker::start(command)?;
        process.go()?;
        Ok(Self { kind, process })
    }

    /// Has another program claim what this one has on top of its guarantee.
    fn claim(&mut self, env: &TestEnv, limits: &Limits) -> Result<Done> {
        let frames = format!("{EXTRA}M");
        let command = under_contract(env, limits, &frames, &frames, &subject(EXTRA / 2)?)?;
        let mut claimer = Worker::start(command)?;
        let done = claimer.call(&Order::Fill)?;
        claimer.end()?;
        Ok(done)
    }

    /// Ends it. One that was stopped is killed, if it has not been.
    fn end(mut self) -> Result<()> {
        match self.kind {
            AdversaryKind::Stopped => self.process.stop(),
            _ => return self.process.end().map(drop),
        };
        Ok(())
    }
}

/// A program with a contract like the neighbour's.
fn under_contract(
    env: &TestEnv,
    limits: &Limits,
    frames: &str,
    swap: &str,
    program: &Command,
) -> Result<Command> {
    let mut command = Command::new(env.selfpage()?);
    command.args(["run", "--frames", frames]);
    command.args(limits.contract(Side::Neighbour, swap)?);
    command.arg("--");
    Ok(within(command, program))
}

fn judged(mut runs: Repeats<AdversaryKind, AdversaryRun>) -> [Row; 2] {
    let name = runs.arm.name();
    let kept = |run: &AdversaryRun| run.beside.0.rate() / run.alone.0.rate();
    let samples = (runs.runs.iter()).map(|run| Sample::new(kept(run), None).notes(notes(run)));
    let row = Row::new(format!("throughput kept beside {name}"), "of alone", KEPT);
    let throughput = row.samples(samples);
    let tail = |of: &(Done, Latency)| of.1.p999_ns as f64 / 1e3;
    let row = Row::new(
        format!("p99.9 from due time, beside {name}"),
        "us",
        Bound::Open,
    );
    let latency = row.beside("alone").pairs(
        runs.each(|run| tail(&run.beside)),
        runs.each(|run| tail(&run.alone)),
    );
    [throughput.failure(runs.failure.take()), latency]
}

fn notes(run: &AdversaryRun) -> Vec<(&'static str, f64)> {
    let us = |ns: u64| ns as f64 / 1e3;
    let mut notes = vec![
        ("alone 1/s", run.alone.0.rate()),
        ("beside 1/s", run.beside.0.rate()),
        ("alone p50 us", us(run.alone.1.p50_ns)),
        ("beside p50 us", us(run.beside.1.p50_ns)),
        ("alone p99 us", us(run.alone.1.p99_ns)),
        ("beside p99 us", us(run.beside.1.p99_ns)),
    ];
    notes.extend(run.claim.map(|done| ("claim ms", done.ns as f64 / 1e6)));
    notes
}
