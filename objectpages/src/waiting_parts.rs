//! Parts that wait for a store which does not answer, while others could go on.
//!
//! The scheduler bounds what is in flight. Parts of a silent store, or of those of its connections that are silent, would
//! fill that bound, and stop the processes whose pages come from others. So what has waited for [`ASIDE`] without any
//! answer of the store is reported to the scheduler ([`Transport::next_waiting`](disk::usd::Transport::next_waiting)).
//! Reads and writes may have connections of their own (a Redis's do): the answers of the one say nothing of the other.

use disk::time::{Nanos, Time};
use disk::usd::PartId;
use std::collections::VecDeque;

/// As long as for remote memory.
const ASIDE: Nanos = Nanos::millis(200);

/// What answers a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Reads of pages.
    Reads,
    /// Everything else.
    Others,
}

/// Parts in flight that the scheduler knows to be so.
#[derive(Debug, Default)]
pub struct WaitingParts {
    reads: LaneParts,
    others: LaneParts,
    /// Those that wait, and are not reported.
    unreported: VecDeque<PartId>,
}

/// Those of one lane.
#[derive(Debug)]
struct LaneParts {
    /// With the times of their starts, which grow.
    in_flight: VecDeque<(PartId, Time)>,
    /// The time of the last answer.
    answered: Time,
}

impl Default for LaneParts {
    fn default() -> Self {
        Self {
            in_flight: VecDeque::new(),
            answered: Time(0),
        }
    }
}

impl LaneParts {
    fn due(&self) -> Option<Time> {
        let first = self.in_flight.front();
        first.map(|(_, started)| self.answered.max(*started) + ASIDE)
    }

    /// Returns true if the part was in flight.
    fn remove(&mut self, id: PartId) -> bool {
        let at = self.in_flight.iter().position(|(other, _)| *other == id);
        at.and_then(|at| self.in_flight.remove(at)).is_some()
    }
}

impl WaitingParts {
    fn lane(&mut self, lane: Lane) -> &mut LaneParts {
        match lane {
            Lane::Reads => &mut self.reads,
            Lane::Others => &mut self.others,
        }
    }

    pub fn on_started(&mut self, id: PartId, lane: Lane, now: Time) {
        self.lane(lane).in_flight.push_back((id, now));
    }

    pub fn on_ended(&mut self, id: PartId) {
        if !self.reads.remove(id) && !self.others.remove(id) {
            self.unreported.retain(|other| *other != id);
        }
    }

    /// The store has answered something.
    pub fn on_answer(&mut self, lane: Lane, now: Time) {
        self.lane(lane).answered = now;
    }

    /// When the first one that is in flight will wait, if the store is silent until then.
    pub fn due(&self) -> Option<Time> {
        let due = self.reads.due().into_iter();
        due.chain(self.others.due()).min()
    }

    /// Sets aside what waits.
    pub fn check(&mut self, now: Time) {
        for lane in [&mut self.reads, &mut self.others] {
            while lane.due().is_some_and(|due| due <= now)
                && let Some((id, _)) = lane.in_flight.pop_front()
            {
                self.unreported.push_back(id);
            }
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
        (1..=4).for_each(|number| parts.on_started(id(number), Lane::Reads, START));
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
        parts.on_started(id(1), Lane::Reads, START);
        let answered = START + Nanos::millis(150);
        parts.on_answer(Lane::Reads, answered);
        parts.check(START + ASIDE);
        assert_eq!(parts.next(), None);
        assert_eq!(parts.due(), Some(answered + ASIDE));
        parts.check(answered + ASIDE);
        assert_eq!(parts.next(), Some(id(1)));
    }

    #[test]
    fn answers_to_reads_keep_no_write_in_flight_that_waits() {
        let mut parts = WaitingParts::default();
        parts.on_started(id(1), Lane::Others, START);
        parts.on_started(id(2), Lane::Reads, START);
        parts.on_answer(Lane::Reads, START + Nanos::millis(150));
        assert_eq!(parts.due(), Some(START + ASIDE));
        parts.check(START + ASIDE);
        assert_eq!((parts.next(), parts.next()), (Some(id(1)), None));
        parts.on_ended(id(1));
        parts.on_ended(id(2));
        assert_eq!(parts.due(), None);
    }
}
