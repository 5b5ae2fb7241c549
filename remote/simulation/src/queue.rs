//! The events to come.
//!
//! Rule: events of one time come in the order in which they were entered, so that a run depends on
//! nothing but its seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A queue of events by time.
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    /// Events are kept beside the heap, which moves its entries often.
    events: Vec<Option<E>>,
    free: Vec<usize>,
    entered: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            entered: 0,
        }
    }
}

impl<E> EventQueue<E> {
    /// Enters an event.
    pub fn push(&mut self, at: Duration, event: E) {
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() - 1
            }
        };
        self.heap.push(Reverse((at, self.entered, place)));
        self.entered += 1;
    }

    /// The next event, if it is due by `until`.
    pub fn pop(&mut self, until: Duration) -> Option<(Duration, E)> {
        let Reverse((at, _, place)) = *self.heap.peek()?;
        if at > until {
            return None;
        }
        self.heap.pop();
        self.free.push(place);
        Some((at, self.events[place].take()?))
    }

    /// Events entered so far.
    pub fn entered(&self) -> u64 {
        self.entered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn events_come_by_time_and_those_of_one_time_in_the_order_of_entry() {
        let mut queue = EventQueue::default();
        for (at, event) in [(2, 'c'), (1, 'a'), (2, 'd'), (1, 'b'), (3, 'e')] {
            queue.push(at * SECOND, event);
        }
        let until = 2 * SECOND;
        let order: String = std::iter::from_fn(|| queue.pop(until))
            .map(|(_, event)| event)
            .collect();
        assert_eq!(order, "abcd");
        assert_eq!(queue.pop(3 * SECOND), Some((3 * SECOND, 'e')));
        assert_eq!(queue.entered(), 5);
    }
}
