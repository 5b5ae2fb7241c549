//! Events as a trace that ui.perfetto.dev opens: Chrome's JSON trace format.
//!
//! Each client is a process; overlapping transactions get a track each, lax time is on the first
//! free track, allocations are instants.

use super::Event;
use crate::cost_model::Op;
use crate::time::{Nanos, Time};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Writes events in any order; `name` gives a client's name.
pub fn write_perfetto(
    out: &mut impl Write,
    events: &[Event],
    name: impl Fn(u32) -> String,
) -> io::Result<()> {
    let mut events = events.to_vec();
    events.sort_by_key(Event::at);
    let mut lanes: BTreeMap<u32, Vec<Time>> = BTreeMap::new();
    let mut comma = "";
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    for event in &events {
        let client = event.client();
        let lanes = lanes.entry(client).or_default();
        write!(
            out,
            "{comma}\n{{\"pid\":{client},\"ts\":{}",
            micros(event.at())
        )?;
        comma = ",";
        match *event {
            Event::Transaction {
                started,
                elapsed,
                charge,
                op,
                bytes,
                slack,
                ..
            } => {
                let lane = lane(lanes, started, started + elapsed);
                let what = match op {
                    Op::Read => "read",
                    Op::Write => "write",
                };
                let how = if slack { "slack " } else { "" };
                write!(
                    out,
                    ",\"ph\":\"X\",\"tid\":{lane},\"dur\":{},\"name\":\"{how}{what}\",\
                     \"args\":{{\"bytes\":{bytes},\"charged_us\":{}}}}}",
                    length(elapsed),
                    length(charge)
                )?;
            }
            Event::Lax { from, to, .. } => {
                let lane = lane(lanes, from, to);
                let length = length(to - from);
                write!(
                    out,
                    ",\"ph\":\"X\",\"tid\":{lane},\"dur\":{length},\"name\":\"lax\"}}"
                )?;
            }
            Event::Allocation {
                remaining,
                deadline,
                ..
            } => write!(
                out,
                ",\"ph\":\"i\",\"s\":\"p\",\"tid\":0,\"name\":\"allocation\",\
                 \"args\":{{\"remaining_us\":{},\"deadline_us\":{}}}}}",
                remaining as f64 / 1e3,
                micros(deadline)
            )?,
        }
    }
    for &client in lanes.keys() {
        let name = serde_json::to_string(&name(client))?;
        write!(
            out,
            "{comma}\n{{\"pid\":{client},\"ph\":\"M\",\"name\":\"process_name\",\
             \"args\":{{\"name\":{name}}}}}"
        )?;
    }
    writeln!(out, "\n]}}")
}

/// The first track that is free at that time.
fn lane(lanes: &mut Vec<Time>, from: Time, to: Time) -> usize {
    match lanes.iter_mut().enumerate().find(|(_, end)| **end <= from) {
        Some((lane, end)) => {
            *end = to;
            lane
        }
        None => {
            lanes.push(to);
            lanes.len() - 1
        }
    }
}

fn micros(time: Time) -> f64 {
    time.0 as f64 / 1e3
}

fn length(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_transactions_have_tracks_of_their_own_and_names_are_escaped() {
        let transaction = |started, elapsed| Event::Transaction {
            started: Time(started),
            elapsed: Nanos(elapsed),
            charge: Nanos(1000),
            client: 3,
            op: Op::Read,
            bytes: 4096,
            slack: false,
        };
        let lax = Event::Lax {
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
