//! Turns the results of the participants into rows.

use super::{ClientResult, Participant, RunResult};
use crate::prelude::*;
use crate::qos::progress::Progress;
use crate::qos::schedule::{Client, DiskShare, Interval, ScheduleStats};
use crate::qos::shares;

/// Figure 9: what the file client keeps, and the scheduler's rules.
pub fn file_system(plays: &[[RunResult; 2]]) -> Vec<Row> {
    let reader = |play: &RunResult| play.parts.last().map_or(0.0, |part| mean(&part.progress));
    let samples = plays.iter().map(|[alone, beside]| {
        let notes = alone.parts.iter().flat_map(each);
        let notes = notes.map(|(name, value)| (format!("alone: {name}"), value));
        Sample::new(reader(beside), reader(alone))
            .notes(beside.parts.iter().flat_map(each))
            .notes(notes)
    });
    let what = "figure 9: the file client's bandwidth beside two pagers";
    let row = Row::new(what, "Mbit/s", Bound::AtLeast(0.95)).beside("alone");
    let row = row.samples(samples);
    let beside: Vec<&RunResult> = plays.iter().map(|[_, beside]| beside).collect();
    let mut rows = vec![row];
    rows.extend(rules(9, &beside));
    rows
}

/// Figure 7 or 8: shares as promised, and the scheduler's rules.
pub fn paging(number: u32, play: &RunResult, participants: &[Participant]) -> Vec<Row> {
    let promised: Vec<f64> = participants
        .iter()
        .map(|actor| actor.slice as f64)
        .collect();
    let charged = play.charged();
    let bytes: Vec<f64> = play.parts.iter().map(ClientResult::bytes).collect();
    let bandwidth = |part: &ClientResult| {
        let what = format!("{}, Mbit/s", part.client.name);
        (what, mean(&part.progress))
    };
    let bandwidths = play.parts.iter().map(bandwidth);
    let notes = bandwidths.chain(play.parts.iter().flat_map(each));
    let row = |what, bound, value| Row::fact(format!("figure {number}: {what}"), bound, value);
    let time = shares::worst(&charged, &promised);
    let jain = shares::jain(&charged, &promised);
    let bytes = shares::worst(&bytes, &promised);
    let far = Bound::AtMost(0.02);
    let mut rows = vec![
        row("charged time, farthest from 1:2:4", far, time).notes(notes),
        row("charged time, Jain's index", Bound::AtLeast(0.999), jain),
        row("bytes, farthest from 1:2:4", Bound::AtMost(0.05), bytes),
    ];
    rows.extend(rules(number, &[play]));
    rows
}

/// What each client moves beside programs that compute, over the same on a quiet machine: the least.
pub fn beside_computing(number: u32, play: &RunResult, quiet: &RunResult) -> Row {
    let pairs = play.parts.iter().zip(&quiet.parts);
    let kept = pairs.map(|(beside, alone)| {
        let name = format!("{}, of the quiet machine's bytes", beside.client.name);
        (name, mean(&beside.progress) / mean(&alone.progress))
    });
    let kept: Vec<_> = kept.collect();
    let least = kept.iter().map(|(_, kept)| *kept).fold(f64::MAX, f64::min);
    let what =
        format!("figure {number}: least bytes beside programs that compute, of a quiet machine's");
    Row::fact(what, Bound::AtLeast(0.8), least).notes(kept)
}

/// What is behind a part's bandwidth: time charged, and what of it each transaction took and
/// each wait for the next.
fn each(part: &ClientResult) -> [(String, f64); 3] {
    let Client {
        name,
        transactions,
        lax,
        ..
    } = &part.client;
    let mean = |spans: &[Interval]| {
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
fn rules(number: u32, plays: &[&RunResult]) -> [Row; 2] {
    let parts = plays.iter().flat_map(|play| &play.parts);
    let all: Vec<(ScheduleStats, DiskShare)> = parts
        .map(|part| (part.client.stats(), part.client.contract))
        .collect();
    let lost: u64 = plays.iter().map(|play| play.lost).sum();
    let row = |what, of: fn(&(ScheduleStats, DiskShare)) -> f64| {
        let most = all.iter().map(of).fold(0.0, f64::max);
        let row = Row::fact(format!("figure {number}: {what}"), Bound::AtMost(1.0), most);
        row.notes([("events lost", lost as f64)])
    };
    [
        row("longest lax time / laxity", |(stats, share)| {
            stats.longest_lax.div_duration_f64(share.laxity)
        }),
        row(
            "largest overrun of a period, repaid / a transaction",
            |(stats, _)| stats.overrun.as_secs_f64() / stats.transaction.as_secs_f64().max(1e-9),
        ),
    ]
}
