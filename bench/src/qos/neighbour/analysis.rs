//! From runs to rows: ours over each of the kernel's, then every arm's own.

use super::{ArmRun, VictimFigures};
use crate::prelude::*;
use crate::qos::pair::Arm;
use crate::qos::subject::Latency;
use crate::repeats::Repeats;

/// A figure of a run, in words.
type ComparedFigure = (&'static str, fn(&ArmRun) -> f64);

/// Beside the neighbour over alone.
const FIGURES: [ComparedFigure; 4] = [
    ("throughput kept beside the neighbour", |run| {
        run.beside.closed.rate() / run.alone.closed.rate()
    }),
    ("p50 from due time, beside", |run| {
        run.over(|open| open.p50_ns)
    }),
    ("p99 from due time, beside", |run| {
        run.over(|open| open.p99_ns)
    }),
    ("p99.9 from due time, beside", |run| {
        run.over(|open| open.p999_ns)
    }),
];

/// Least that a victim under contract keeps of what it was promised.
const PROMISE: Bound = Bound::AtLeast(0.95);

/// Most that an access may take of the kernel's own.
const MISS: Bound = Bound::AtMost(1.05);

impl ArmRun {
    /// Accesses a second of what the contract promises, or alone where that is less.
    fn promised(&self) -> Option<f64> {
        let promised = self.promised?.rate();
        Some(promised.min(self.alone.closed.rate()))
    }

    fn over(&self, ns: fn(&Latency) -> u64) -> f64 {
        ns(&self.beside.open) as f64 / ns(&self.alone.open) as f64
    }
}

/// First ours over each of the kernel's, then every arm's own.
pub fn judged(mut runs: Vec<Repeats<Arm, ArmRun>>) -> Vec<Row> {
    let mut rows = Vec::new();
    let ran = || runs.iter().filter(|one| !one.runs.is_empty());
    for ours in ran() {
        for theirs in ran().filter(|theirs| ours.arm.is_compared_with(theirs.arm)) {
            rows.extend(FIGURES.iter().map(|(what, of)| {
                let what = format!("{what}: {}", ours.arm.name());
                let row = Row::new(what, "of alone", Bound::Open);
                row.beside(theirs.arm.name())
                    .pairs(ours.each(of), theirs.each(of))
            }));
            let p50 = |run: &ArmRun| run.alone.open.p50_ns as f64 / 1e3;
            let row = Row::new(format!("p50, alone: {}", ours.arm.name()), "us", MISS);
            let row = row.beside(theirs.arm.name());
            rows.push(row.pairs(ours.each(p50), theirs.each(p50)));
        }
    }
    for one in ran() {
        let over = |run: &ArmRun| Some(Sample::new(run.beside.closed.rate(), run.promised()?));
        let samples: Vec<_> = one.runs.iter().filter_map(over).collect();
        if !samples.is_empty() {
            let what = format!("accesses beside the neighbour: {}", one.arm.name());
            let row = Row::new(what, "1/s", PROMISE).beside("what is promised, or alone");
            rows.push(row.samples(samples));
        }
    }
    rows.extend(runs.iter_mut().map(|one| {
        let (what, of) = &FIGURES[0];
        let samples = one
            .runs
            .iter()
            .map(|run| Sample::new(of(run), None).notes(notes(run)));
        let what = format!("{}: {what}", one.arm.name());
        let row = Row::new(what, "of alone", Bound::Open).samples(samples);
        row.failure(one.failure.take())
    }));
    rows
}

/// What is behind the ratios, so that nothing hides in them.
fn notes(run: &ArmRun) -> [(&'static str, f64); 11] {
    let us = |ns: u64| ns as f64 / 1e3;
    let done = |of: &VictimFigures| of.open.done as f64 / of.open.due as f64;
    let (alone, beside) = (&run.alone, &run.beside);
    [
        ("alone 1/s", alone.closed.rate()),
        ("beside 1/s", beside.closed.rate()),
        ("neighbour 1/s", run.neighbour.rate()),
        ("alone p50 us", us(alone.open.p50_ns)),
        ("alone p99 us", us(alone.open.p99_ns)),
        ("alone p99.9 us", us(alone.open.p999_ns)),
        ("beside p50 us", us(beside.open.p50_ns)),
        ("beside p99 us", us(beside.open.p99_ns)),
        ("beside p99.9 us", us(beside.open.p999_ns)),
        ("beside done of due", done(beside)),
        ("alone done of due", done(alone)),
    ]
}
