//! A ring of the latest events, readable at any time without stopping the scheduler.
//!
//! One thread writes and overwrites the oldest; any number of threads read. The writer publishes
//! the event that it is about to write before it touches the slot, and the event that it has
//! written afterwards. A reader copies the written events, then checks which events the writer
//! began since: slots that it may have touched meanwhile are left out, and counted.

use super::{Trace, TraceEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

type EventWords = [AtomicU64; 5];

#[derive(Debug)]
struct Shared {
    slots: Box<[EventWords]>,
    begun: AtomicU64,
    written: AtomicU64,
}

/// The scheduler's end.
#[derive(Debug)]
pub struct Writer(Arc<Shared>);

/// A reader's end.
#[derive(Clone, Debug)]
pub struct Reader(Arc<Shared>);

/// Events copied by a reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceBatch {
    /// The events, as they were recorded.
    pub events: Vec<TraceEvent>,
    /// The number to read from next.
    pub next: u64,
    /// Events overwritten between the requested start and the first event returned.
    pub lost: u64,
}

/// A ring of at least two events.
pub fn ring(events: usize) -> (Writer, Reader) {
    let slots = (0..events.max(2)).map(|_| EventWords::default()).collect();
    let shared = Arc::new(Shared {
        slots,
        begun: AtomicU64::new(0),
        written: AtomicU64::new(0),
    });
    (Writer(shared.clone()), Reader(shared))
}

impl Trace for Writer {
    fn record(&mut self, event: TraceEvent) {
        let shared = &*self.0;
        let number = shared.written.load(Ordering::Relaxed);
        shared.begun.store(number + 1, Ordering::Relaxed);
        // A reader that sees a word of this event also sees that the event was begun.
        fence(Ordering::Release);
        let slot = &shared.slots[(number % shared.slots.len() as u64) as usize];
        for (place, word) in slot.iter().zip(event.to_words()) {
            place.store(word, Ordering::Relaxed);
        }
        shared.written.store(number + 1, Ordering::Release);
    }
}

impl Reader {
    /// Copies the events from number `from` on that the ring still holds.
    pub fn since(&self, from: u64) -> TraceBatch {
        let shared = &*self.0;
        let size = shared.slots.len() as u64;
        let end = shared.written.load(Ordering::Acquire);
        let from = from.min(end);
        let start = from.max(end.saturating_sub(size));
        let words: Vec<[u64; 5]> = (start..end)
            .map(|number| {
                let slot = &shared.slots[(number % size) as usize];
                slot.each_ref().map(|place| place.load(Ordering::Relaxed))
            })
            .collect();
        // After the words: if one was of a later event, `begun` shows it.
        fence(Ordering::Acquire);
        let begun = shared.begun.load(Ordering::Relaxed);
        let whole = start.max(begun.saturating_sub(size)).min(end);
        let events = words[(whole - start) as usize..].iter();
        TraceBatch {
            events: events.map(|&words| TraceEvent::from_words(words)).collect(),
            next: end,
            lost: whole - from,
        }
    }

    /// Copies all events that the ring still holds.
    pub fn all(&self) -> TraceBatch {
        self.since(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    fn event(number: u64) -> TraceEvent {
        TraceEvent::Allocation {
            at: Time(number),
            client: number as u32,
            remaining: number as i64,
            deadline: Time(number),
        }
    }

    #[test]
    fn the_oldest_are_overwritten_and_counted() {
        let (mut writer, reader) = ring(4);
        assert_eq!(reader.all(), TraceBatch::default());
        (0..3).for_each(|n| writer.record(event(n)));
        let seen = reader.all();
        assert_eq!((seen.events.len(), seen.lost, seen.next), (3, 0, 3));
        (3..10).for_each(|n| writer.record(event(n)));
        let later = reader.since(seen.next);
        assert_eq!(later.events, [6, 7, 8, 9].map(event));
        assert_eq!((later.lost, later.next), (3, 10));
        assert_eq!(reader.since(10).events, []);
    }

    #[test]
    fn events_read_during_writes_are_whole_and_in_order() {
        let (mut writer, reader) = ring(16);
        let reading = std::thread::spawn(move || {
            let (mut next, mut got) = (0, 0);
            while next < 200_000 {
                let seen = reader.since(next);
                let first = next + seen.lost;
                assert_eq!(seen.next - first, seen.events.len() as u64);
                for (number, &read) in (first..).zip(&seen.events) {
                    assert_eq!(read, event(number));
                    got += 1;
                }
                next = seen.next;
            }
            got
        });
        (0..200_000).for_each(|n| writer.record(event(n)));
        assert!(reading.join().unwrap() > 0);
    }
}
