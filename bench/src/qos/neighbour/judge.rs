//! From runs to rows: ours over each of the kernel's, then every arm's own.

use super::{Arm, Run};
use crate::ExperimentError;
use crate::qos::sample;
use crate::real::goal::{Bound, Row};

/// A figure of a run.
struct Figure {
    what: &'static str,
    unit: &'static str,
    of: fn(&Run) -> f64,
}

const FIGURES: [Figure; 4] = [
    Figure {
        what: "throughput kept beside the neighbour",
        unit: "of alone",
        of: |run| run.beside.closed.rate() / run.alone.closed.rate(),
    },
    Figure {
        what: "p50 from due time, beside",
        unit: "of alone",
        of: |run| run.beside.open.p50_ns as f64 / run.alone.open.p50_ns as f64,
    },
    Figure {
        what: "p99 from due time, beside",
        unit: "of alone",
        of: |run| run.beside.open.p99_ns as f64 / run.alone.open.p99_ns as f64,
    },
    Figure {
        what: "p99.9 from due time, beside",
        unit: "of alone",
        of: |run| run.beside.open.p999_ns as f64 / run.alone.open.p999_ns as f64,
    },
];

/// First ours over each of the kernel's, then every arm's own.
pub fn judged(mut runs: Vec<(Arm, Vec<Run>, Option<ExperimentError>)>) -> Vec<Row> {
    let samples = |runs: &[Run], of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<_>>();
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
            rows.push(Row {
                what: format!("{}: system", figure.what),
                beside: Some(arm.name()),
                unit: figure.unit,
                bound: Bound::Open,
                samples: pairs.map(|(o, t)| sample(*o, Some(*t), &[])).collect(),
                failure: None,
            });
        }
    }
    for (arm, runs, failure) in &mut runs {
        let samples = runs
            .iter()
            .map(|run| sample((FIGURES[0].of)(run), None, &notes(run)));
        rows.push(Row {
            what: format!("{}: {}", arm.name(), FIGURES[0].what),
            beside: None,
            unit: FIGURES[0].unit,
            bound: Bound::Open,
            samples: samples.collect(),
            failure: failure.take(),
        });
    }
    rows
}

/// What is behind the ratios, so that nothing hides in them.
fn notes(run: &Run) -> [(&'static str, f64); 11] {
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
