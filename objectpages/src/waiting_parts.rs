//! Parts that wait for a store which does not answer, while others could go on.
//!
//! The scheduler bounds what is in flight. Parts of a silent store, or of those of its connections that are silent, would
//! fill that bound, and stop the processes whose pages come from others. So what has waited for [`ASIDE`] without any
//! answer of the store is reported to the scheduler ([`Transport::next_waiting`](disk::usd::Transport::next_waiting)).

use disk::time::{Nanos, Time};
use disk::usd::PartId;
use std::collections::VecDeque;

/// As long as for remote memory.
const ASIDE: Nanos = Nanos::millis(200);

/// Parts in flight that the scheduler knows to be so.
#[derive(Debug)]
pub struct WaitingParts {
    /// With the times of their starts, which grow.
    in_flight: VecDeque<(PartId, Time)>,
    /// Those that wait, and are not reported.
    unreported: VecDeque<PartId>,
    /// The time of the last answer.
    answered: Time,
}

impl Default for WaitingParts {
    fn default() -> Self {
        Self {
            in_flight: VecDeque::new(),
            unreported: VecDeque::new(),
            answered: Time(0),
        }
    }
}

impl WaitingParts {
    pub fn on_started(&mut self, id: PartId, now: Time) {
        self.in_flight.push_back((id, now));
    }

    pub fn on_ended(&mut self, id: PartId) {
        let is_it = |(other, _): &(PartId, Time)| *other == id;
        match self.in_flight.iter().position(is_it) {
            Some(at) => _ = self.in_flight.remove(at),
            None => self.unreported.retain(|other| *other != id),
        }
    }

    /// The store has answered something.
    pub fn on_answer(&mut self, now: Time) {
        self.answered = now;
    }

    /// When the first one that is in flight will wait, if the store is silent until then.
    pub fn due(&self) -> Option<Time> {
        let first = self.in_flight.front();
        first.map(|(_, started)| self.answered.max(*started) + ASIDE)
    }

    /// Sets aside what waits.
    pub fn check(&mut self, now: Time) {
        while self.due().is_some_and(|due| due <= now)
            && let Some((id, _)) = self.in_flight.pop_front()
        {
            self.unreported.push_back(id);
        }
    }

    /// The next part that waits.
    pub fn next(&mut self) -> Option<PartId> {
        self.unreported.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_000_000_000);

    fn id(number: u32) -> PartId {
        PartId::new(0, number)
    }

    #[test]
    fn parts_of_a_silent_store_are_reported_once_and_those_that_have_ended_are_not() {
        let mut parts = WaitingParts::default();
        (1..=4).for_each(|number| parts.on_started(id(number), START));
        parts.on_ended(id(1));
        parts.check(START + Nanos::millis(199));
        assert_eq!(parts.next(), None);
        parts.check(START + ASIDE);
        parts.on_ended(id(3));
        assert_eq!(parts.next(), Some(id(2)));
        assert_eq!(parts.next(), Some(id(4)));
        assert_eq!((parts.next(), parts.due()), (None, None));
        parts.on_ended(id(2));
    }

    #[test]
    fn a_store_that_answers_others_is_not_silent() {
        let mut parts = WaitingParts::default();
        parts.on_started(id(1), START);
        let answered = START + Nanos::millis(150);
        parts.on_answer(answered);
        parts.check(START + ASIDE);
        assert_eq!(parts.next(), None);
        assert_eq!(parts.due(), Some(answered + ASIDE));
        parts.check(answered + ASIDE);
        assert_eq!(parts.next(), Some(id(1)));
    }
}
