//! Events as a trace that ui.perfetto.dev opens: Chrome's JSON trace format.
//!
//! Each client is a process; overlapping transactions get a track each, lax time is on the first
//! free track, allocations are instants.

use super::TraceEvent;
use crate::cost_model::Op;
use crate::time::Time;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Writes events in any order; `name` gives a client's name.
pub fn write_perfetto(
    out: &mut impl Write,
    events: &[TraceEvent],
    name: impl Fn(u32) -> String,
) -> io::Result<()> {
    let mut events = events.to_vec();
    events.sort_by_key(TraceEvent::at);
    let mut tracks: BTreeMap<u32, Vec<Time>> = BTreeMap::new();
    let mut entries = Vec::with_capacity(events.len());
    for event in &events {
        let tracks = tracks.entry(event.client()).or_default();
        entries.push(entry(event, tracks));
    }
    for &client in tracks.keys() {
        entries.push(json!({
            "pid": client,
            "ph": "M",
            "name": "process_name",
            "args": { "name": name(client) },
        }));
    }
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    for (at, entry) in entries.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        write!(out, "{comma}\n{entry}")?;
    }
    writeln!(out, "\n]}}")
}

fn entry(event: &TraceEvent, tracks: &mut Vec<Time>) -> Value {
    let (pid, ts) = (event.client(), micros(event.at().0));
    match *event {
        TraceEvent::Transaction {
            started,
            elapsed,
            charge,
            op,
            bytes,
            slack,
            ..
        } => {
            let name = match (op, slack) {
                (Op::Read, false) => "read",
                (Op::Read, true) => "slack read",
                (Op::Write, false) => "write",
                (Op::Write, true) => "slack write",
            };
            let track = track(tracks, started, started + elapsed);
            let args = json!({ "bytes": bytes, "charged_us": micros(charge.0) });
            json!({
                "pid": pid, "ts": ts, "ph": "X", "tid": track,
                "dur": micros(elapsed.0), "name": name, "args": args,
            })
        }
        TraceEvent::Lax { from, to, .. } => json!({
            "pid": pid, "ts": ts, "ph": "X", "tid": track(tracks, from, to),
            "dur": micros((to - from).0), "name": "lax",
        }),
        TraceEvent::Allocation {
            remaining,
            deadline,
            ..
        } => {
            let remaining = remaining as f64 / 1e3;
            let args = json!({ "remaining_us": remaining, "deadline_us": micros(deadline.0) });
            json!({
                "pid": pid, "ts": ts, "ph": "i", "s": "p", "tid": 0,
                "name": "allocation", "args": args,
            })
        }
    }
}

/// The first track that is free at that time.
fn track(tracks: &mut Vec<Time>, from: Time, to: Time) -> usize {
    match tracks.iter_mut().enumerate().find(|(_, end)| **end <= from) {
        Some((track, end)) => {
            *end = to;
            track
        }
        None => {
            tracks.push(to);
            tracks.len() - 1
        }
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Nanos;

    #[test]
    fn overlapping_transactions_have_tracks_of_their_own_and_names_are_escaped() {
        let transaction = |started, elapsed| TraceEvent::Transaction {
            started: Time(started),
            elapsed: Nanos(elapsed),
            charge: Nanos(1000),
            client: 3,
            op: Op::Read,
            bytes: 4096,
            slack: false,
        };
        let lax = TraceEvent::Lax {
            from: Time(9000),
            to: Time(9500),
            client: 3,
        };
        let events = [transaction(5000, 3000), transaction(4000, 2000), lax];
        let mut out = Vec::new();
        write_perfetto(&mut out, &events, |n| format!("\"{n}\"")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let lines: Vec<_> = events[..3]
            .iter()
            .map(|e| e["tid"].as_u64().unwrap())
            .collect();
        assert_eq!(lines, [0, 1, 0]);
        assert_eq!(events[0]["dur"], 2.0);
        assert_eq!(events[3]["args"]["name"], "\"3\"");
    }

    #[test]
    fn no_events_make_a_valid_trace() {
        let mut out = Vec::new();
        write_perfetto(&mut out, &[], |_| String::new()).unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&out).is_ok());
    }
}
