//! Objects without a copy that no server takes in: how long their writes wait for one.
//!
//! A server refuses for a moment, too: it lends nothing while its host is short of memory, it is excluded for [`FULL`]
//! after a refusal, or its connection is just made again. A program dies of `ENOSPC`, so it is no answer to a moment.
//! Rule: a round of requests for a place follows each refusal after [`RETRY`]; the writes fail with the first round
//! that began [`PATIENCE`] after the first refusal and was refused. Writes that follow fail with a round of their own, since a
//! pager tries many pages before it gives up, until none was refused for [`FULL`].

use crate::placement::FULL;
use disk::time::{Nanos, Time};
use std::collections::BTreeMap;

/// How long after a refusal a place is requested again.
const RETRY: Nanos = Nanos::seconds(1);
/// How long refusals are taken for those of a moment: a server that refused is excluded for as long, so each one that a
/// round before excluded has been asked since. A cluster that is full answers `ENOSPC` a round later, long before the
/// 30 s after which a write without a server fails.
const PATIENCE: Nanos = FULL;

/// The refusals of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusals {
    first: Time,
    last: Time,
    /// When the present round, or the last one, began.
    round: Time,
}

impl Refusals {
    fn is_in_round(&self) -> bool {
        self.round > self.last
    }

    fn is_patience_over(&self) -> bool {
        self.round >= self.first + PATIENCE
    }
}

/// What a refusal means for the writes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedWrites {
    /// They wait for the next round.
    Wait,
    /// They fail.
    Fail,
}

/// The objects without a copy that were refused one.
#[derive(Debug, Default)]
pub struct PlacementRefusals {
    of: BTreeMap<usize, Refusals>,
}

impl PlacementRefusals {
    /// Begins a round for an object without a copy, or goes on with it. Returns false before it is time for one.
    pub fn may_place(&mut self, object: usize, now: Time) -> bool {
        let Some(refusals) = self.of.get_mut(&object) else {
            return true;
        };
        if refusals.is_in_round() {
            return true;
        }
        if now < refusals.last + RETRY && !refusals.is_patience_over() {
            return false;
        }
        if now >= refusals.last + FULL {
            // No write has waited since: those refusals were of another moment.
            self.of.remove(&object);
            return true;
        }
        refusals.round = now;
        true
    }

    /// No server takes an object in.
    pub fn on_refused(&mut self, object: usize, now: Time) -> RefusedWrites {
        let first = Refusals {
            first: now,
            last: now,
            round: now,
        };
        let refusals = self.of.entry(object).or_insert(first);
        refusals.last = now;
        match refusals.is_patience_over() {
            true => RefusedWrites::Fail,
            false => RefusedWrites::Wait,
        }
    }

    /// An object has a copy.
    pub fn on_created(&mut self, object: usize) {
        self.of.remove(&object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time(0) + Nanos::millis(millis)
    }

    /// When the writes of an object fail, in milliseconds, if each round takes so long and is refused.
    fn fails_at(round: u64) -> u64 {
        let mut refusals = PlacementRefusals::default();
        let mut now = 0;
        loop {
            // The client looks with each tick.
            while !refusals.may_place(7, at(now)) {
                now += 20;
            }
            now += round;
            if refusals.on_refused(7, at(now)) == RefusedWrites::Fail {
                return now;
            }
        }
    }

    #[test]
    fn writes_fail_with_the_first_round_after_each_excluded_server_was_asked() {
        assert_eq!(fails_at(0), 5000);
        for round in [1, 50, 900, 4000, 9000] {
            let failed = fails_at(round);
            assert!(failed >= round + 5000 + round, "{failed}");
            assert!(failed <= round + 6020 + 2 * round, "{failed}");
        }
    }

    #[test]
    fn a_place_is_requested_once_a_second() {
        let mut refusals = PlacementRefusals::default();
        let mut rounds = 0;
        for now in (0..4900).step_by(20) {
            if refusals.may_place(1, at(now)) {
                // A server was asked, and then another one.
                assert!(refusals.may_place(1, at(now)) && refusals.may_place(2, at(now)));
                rounds += 1;
                assert_eq!(refusals.on_refused(1, at(now)), RefusedWrites::Wait);
            }
        }
        assert_eq!(rounds, 5);
    }

    #[test]
    fn a_write_after_one_that_failed_fails_at_once_unless_it_comes_seconds_later() {
        let mut refusals = PlacementRefusals::default();
        for second in 0..6 {
            assert!(refusals.may_place(1, at(second * 1000)));
            refusals.on_refused(1, at(second * 1000));
        }
        for now in [5001, 5010, 8000] {
            assert!(refusals.may_place(1, at(now)));
            assert_eq!(refusals.on_refused(1, at(now)), RefusedWrites::Fail);
        }
        assert!(refusals.may_place(1, at(13_500)));
        assert_eq!(refusals.on_refused(1, at(13_500)), RefusedWrites::Wait);
    }

    #[test]
    fn an_object_that_had_a_copy_waits_again() {
        let mut refusals = PlacementRefusals::default();
        refusals.on_refused(1, at(0));
        assert!(refusals.may_place(1, at(4900)));
        refusals.on_created(1);
        refusals.on_refused(1, at(6000));
        assert!(refusals.may_place(1, at(7000)));
        assert_eq!(refusals.on_refused(1, at(7010)), RefusedWrites::Wait);
    }
}
