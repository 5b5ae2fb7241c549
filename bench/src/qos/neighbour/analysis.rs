//! From runs to rows: ours over each of the kernel's, then every arm's own.

use super::{Arm, ArmRun};
use crate::prelude::*;

/// A figure of a run.
struct ComparedFigure {
    what: &'static str,
    unit: &'static str,
    of: fn(&ArmRun) -> f64,
}

const FIGURES: [ComparedFigure; 4] = [
    ComparedFigure {
        what: "throughput kept beside the neighbour",
        unit: "of alone",
        of: |run| run.beside.closed.rate() / run.alone.closed.rate(),
    },
    ComparedFigure {
        what: "p50 from due time, beside",
        unit: "of alone",
        of: |run| run.beside.open.p50_ns as f64 / run.alone.open.p50_ns as f64,
    },
    ComparedFigure {
        what: "p99 from due time, beside",
        unit: "of alone",
        of: |run| run.beside.open.p99_ns as f64 / run.alone.open.p99_ns as f64,
    },
    ComparedFigure {
        what: "p99.9 from due time, beside",
        unit: "of alone",
        of: |run| run.beside.open.p999_ns as f64 / run.alone.open.p999_ns as f64,
    },
];

/// First ours over each of the kernel's, then every arm's own.
pub fn judged(mut runs: Vec<(Arm, Vec<ArmRun>, Option<Error>)>) -> Vec<Row> {
    let samples = |runs: &[ArmRun], of: fn(&ArmRun) -> f64| runs.iter().map(of).collect::<Vec<_>>();
    let mut rows = Vec::new();
    let find = |arm: Arm| {
        runs.iter()
            .find(|(a, ..)| *a == arm)
            .map_or(&[][..], |(_, r, _)| r)
    };
    let ours = find(Arm::System);
    let others = runs.iter().filter(|(arm, ..)| *arm != Arm::System);
    for (arm, theirs, _) in others.filter(|(_, theirs, _)| !ours.is_empty() && !theirs.is_empty()) {
        for figure in &FIGURES {
            let ours = samples(ours, figure.of);
            let theirs = samples(theirs, figure.of);
            let pairs = ours.iter().zip(&theirs);
            let what = format!("{}: system", figure.what);
            let row = Row::new(what, figure.unit, Bound::Open).beside(arm.name());
            rows.push(row.samples(pairs.map(|(o, t)| Sample::new(*o, *t))));
        }
    }
    for (arm, runs, failure) in &mut runs {
        let figure = &FIGURES[0];
        let samples = runs
            .iter()
            .map(|run| Sample::new((figure.of)(run), None).notes(notes(run)));
        let what = format!("{}: {}", arm.name(), figure.what);
        let mut row = Row::new(what, figure.unit, Bound::Open).samples(samples);
        row.failure = failure.take();
        rows.push(row);
    }
    rows
}

/// What is behind the ratios, so that nothing hides in them.
fn notes(run: &ArmRun) -> [(&'static str, f64); 11] {
    let us = |ns: u64| ns as f64 / 1e3;
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
        (
            "beside done of due",
            beside.open.done as f64 / beside.open.due as f64,
        ),
        (
            "alone done of due",
            alone.open.done as f64 / alone.open.due as f64,
        ),
    ]
}
