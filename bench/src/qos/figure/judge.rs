//! Turns the results of the actors into rows.

use super::{Actor, Part, Play};
use crate::qos::progress::Progress;
use crate::qos::schedule::{Client, Contract, Kept, Span};
use crate::qos::{fact, sample, shares};
use crate::real::goal::{Bound, Row};
use std::time::Duration;

/// Figure 9: what the file client keeps, and the scheduler's rules.
pub fn file_system(plays: &[[Play; 2]]) -> Vec<Row> {
    let reader = |play: &Play| play.parts.last().map_or(0.0, |part| mean(&part.progress));
    let mut row = fact(
        "figure 9: the file client's bandwidth beside two pagers".into(),
        Bound::AtLeast(0.95),
        0.0,
    );
    row.beside = Some("alone".into());
    row.unit = "Mbit/s";
    row.samples = plays
        .iter()
        .map(|[alone, beside]| {
            let mut sample = sample(reader(beside), Some(reader(alone)), &[]);
            sample.notes.extend(beside.parts.iter().flat_map(each));
            let alone = alone.parts.iter().flat_map(each);
            let alone = alone.map(|(name, value)| (format!("alone: {name}"), value));
            sample.notes.extend(alone);
            sample
        })
        .collect();
    let beside: Vec<&Play> = plays.iter().map(|[_, beside]| beside).collect();
    let mut rows = vec![row];
    rows.extend(rules(9, &beside));
    rows
}

/// Figure 7 or 8: shares as promised, and the scheduler's rules.
pub fn paging(number: u32, play: &Play, actors: &[Actor]) -> Vec<Row> {
    let promised: Vec<f64> = actors.iter().map(|actor| actor.slice as f64).collect();
    let (charged, bytes) = (
        play.charged(),
        play.parts.iter().map(Part::bytes).collect::<Vec<_>>(),
    );
    let notes: Vec<(String, f64)> = play
        .parts
        .iter()
        .map(|part| {
            (
                format!("{}, Mbit/s", part.client.name),
                mean(&part.progress),
            )
        })
        .chain(play.parts.iter().flat_map(each))
        .collect();
    let row = |what: &str, bound, value| fact(format!("figure {number}: {what}"), bound, value);
    let mut rows = vec![
        row(
            "charged time, farthest from 1:2:4",
            Bound::AtMost(0.02),
            shares::worst(&charged, &promised),
        ),
        row(
            "charged time, Jain's index",
            Bound::AtLeast(0.999),
            shares::jain(&charged, &promised),
        ),
        row(
            "bytes, farthest from 1:2:4",
            Bound::AtMost(0.05),
            shares::worst(&bytes, &promised),
        ),
    ];
    rows[0].samples[0].notes.extend(notes);
    rows.extend(rules(number, &[play]));
    rows
}

/// What is behind a part's bandwidth: time charged, and what of it each transaction took and
/// each wait for the next.
fn each(part: &Part) -> [(String, f64); 3] {
    let Client {
        name,
        transactions,
        lax,
        ..
    } = &part.client;
    let mean = |spans: &[Span]| {
        let sum: Duration = spans.iter().map(|span| span.charged).sum();
        sum.as_secs_f64() * 1e6 / transactions.len().max(1) as f64
    };
    [
        (format!("{name}, charged s"), part.charged.as_secs_f64()),
        (format!("{name}, us a transaction"), mean(transactions)),
        (format!("{name}, us lax for each"), mean(lax)),
    ]
}

/// Megabits a second, of all the time.
fn mean(progress: &[Progress]) -> f64 {
    let last = progress.last().filter(|last| last.ns > 0);
    last.map_or(0.0, |last| last.bytes as f64 * 8e3 / last.ns as f64)
}

/// The scheduler's rules, of the client that came nearest to breaking each.
fn rules(number: u32, plays: &[&Play]) -> [Row; 2] {
    let kept: Vec<(Kept, Contract)> = plays
        .iter()
        .flat_map(|play| &play.parts)
        .map(|part| (part.client.kept(), part.client.contract))
        .collect();
    let most = |of: fn(&(Kept, Contract)) -> f64| kept.iter().map(of).fold(0.0, f64::max);
    let row = |what: &str, value| {
        let mut row = fact(
            format!("figure {number}: {what}"),
            Bound::AtMost(1.0),
            value,
        );
        let lost = (
            "events lost".to_owned(),
            plays.iter().map(|play| play.lost).sum::<u64>() as f64,
        );
        row.samples[0].notes.extend([lost]);
        row
    };
    [
        row(
            "longest lax time / laxity",
            most(|(kept, contract)| kept.longest_lax.as_secs_f64() / contract.laxity.as_secs_f64()),
        ),
        row(
            "largest overrun of a period, repaid / a transaction",
            most(|(kept, _)| kept.overrun.as_secs_f64() / kept.transaction.as_secs_f64().max(1e-9)),
        ),
    ]
}
