//! From runs to rows: ours over each of the kernel's, what was promised, then every arm's own.

use super::ArmRun;
use crate::prelude::*;
use crate::qos::pair::Arm;
use crate::qos::subject::Latency;
use crate::repeats::Repeats;

/// A quantile, in words.
type Quantile = (&'static str, fn(&Latency) -> u64);

const QUANTILES: [Quantile; 3] = [
    ("p50", |open| open.p50_ns),
    ("p99", |open| open.p99_ns),
    ("p99.9", |open| open.p999_ns),
];

/// Most that the slowest requests may take beside the neighbour, of what they take alone in the best of
/// the kernel's arms.
const TAIL: Bound = Bound::AtMost(1.5);

fn tail(open: &Latency) -> f64 {
    open.p999_ns as f64 / 1e3
}

/// First ours over each of the kernel's, then every arm's own.
pub fn judged(mut runs: Vec<Repeats<Arm, ArmRun>>) -> Vec<Row> {
    let mut rows = Vec::new();
    let ran = || runs.iter().filter(|one| !one.runs.is_empty());
    for ours in ran() {
        let others = || ran().filter(|theirs| ours.arm.is_compared_with(theirs.arm));
        for theirs in others() {
            rows.extend(QUANTILES.iter().map(|(what, ns)| {
                let us = |run: &ArmRun| ns(&run.beside) as f64 / 1e3;
                let what = format!("{what} from due time, beside: {}", ours.arm.name());
                let row = Row::new(what, "us", Bound::Open).beside(theirs.arm.name());
                row.pairs(ours.each(us), theirs.each(us))
            }));
        }
        let alone = |one: &Repeats<Arm, ArmRun>| one.each(|run| tail(&run.alone));
        let middle = |one: &Repeats<Arm, ArmRun>| median(&alone(one)).unwrap_or(f64::MAX);
        let kernels = others().filter(|one| one.arm != Arm::Run);
        if let Some(best) = kernels.min_by(|a, b| middle(a).total_cmp(&middle(b))) {
            let what = format!("p99.9 from due time, beside: {}", ours.arm.name());
            let row = Row::new(what, "us", TAIL).beside(format!("{} alone", best.arm.name()));
            rows.push(row.pairs(ours.each(|run| tail(&run.beside)), alone(best)));
        }
    }
    rows.extend(runs.iter_mut().map(|one| {
        let samples = one
            .runs
            .iter()
            .map(|run| Sample::new(tail(&run.beside), None).notes(notes(run)));
        let what = format!("{}: p99.9 from due time, beside", one.arm.name());
        let row = Row::new(what, "us", Bound::Open).samples(samples);
        row.failure(one.failure.take())
    }));
    rows
}

/// What is behind the ratios, so that nothing hides in them.
fn notes(run: &ArmRun) -> Vec<(String, f64)> {
    let mut notes = vec![("neighbour 1/s".to_owned(), run.neighbour)];
    for (name, open) in [("alone", &run.alone), ("beside", &run.beside)] {
        let us = |(what, ns): &Quantile| (format!("{name} {what} us"), ns(open) as f64 / 1e3);
        notes.extend(QUANTILES.iter().map(us));
        notes.push((format!("{name} most us"), open.most_ns as f64 / 1e3));
        let done = open.done as f64 / open.due as f64;
        notes.push((format!("{name} done of due"), done));
    }
    notes
}
