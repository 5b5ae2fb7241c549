//! Every interleaving of the scheduler and a reader on a small ring, by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p disk --lib interleavings`.

use super::{Event, Trace, ring};
use crate::time::Time;
use loom::thread;

/// One of which all words say its number.
fn event(number: u64) -> Event {
    Event::Allocation {
        at: Time(number),
        client: number as u32,
        remaining: number as i64,
        deadline: Time(number),
    }
}

/// What a reader sees of `count` events, in a ring of two, while they are recorded.
fn read_while_written(count: u64) {
    loom::model(move || {
        let (mut writer, reader) = ring(2);
        let writing = thread::spawn(move || (0..count).for_each(|n| writer.record(event(n))));
        let seen = reader.all();
        assert_eq!(seen.next - seen.lost, seen.events.len() as u64);
        for (number, &read) in (seen.lost..).zip(&seen.events) {
            assert_eq!(read, event(number));
        }
        writing.join().unwrap();
        let rest = reader.since(seen.next);
        assert_eq!(rest.next, count);
    });
}

#[test]
fn events_are_seen_whole_and_in_order_while_there_is_room() {
    read_while_written(2);
}

#[test]
fn an_event_that_is_overwritten_while_it_is_read_is_not_seen() {
    read_while_written(3);
}
