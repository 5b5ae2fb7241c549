//! Objects without a copy that no server takes in, and those whose only copy has no room for a write: how long their
//! writes wait.
//!
//! A server refuses for a moment, too: it lends nothing while its host is short of memory, and takes back what was not
//! written; it is excluded for [`FULL`] after a refusal, or its connection is just made again. A program dies of `ENOSPC`,
//! so it is no answer to a moment. Rule: a round of requests, for a place or for more pages at the only copy, follows each
//! refusal after [`RETRY`]; the writes fail with the first round that began [`PATIENCE`] after the first refusal and was
//! refused. Until none was refused for [`FULL`] writes that follow fail with a round, or at once between two rounds, since a
//! pager tries many pages before it gives up. What fails so for many pages is one line for people.

use crate::placement::FULL;
use crate::server::Server;
use crate::transport::{self, RemoteTransport};
use disk::time::{Nanos, Time};
use remote_policy::broker::Refusal;
use remote_policy::identity::ObjectId;
use std::collections::BTreeMap;

/// How long no further copies are asked for after there was no server to be asked.
const UNREACHABLE: Nanos = Nanos::millis(100);
/// Likewise after the broker had none: it learns within as long of one that has started.
const NOT_KNOWN: Nanos = Nanos::seconds(1);
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
    is_in_round: bool,
    has_failed: bool,
}

impl Refusals {
    fn new(now: Time) -> Self {
        Self {
            first: now,
            last: now,
            round: now,
            is_in_round: false,
            has_failed: false,
        }
    }

    /// Returns true between two rounds.
    fn is_pausing(&self, now: Time) -> bool {
        !self.is_in_round && now < self.last + RETRY
    }

    fn is_patience_over(&self) -> bool {
        self.round >= self.first + PATIENCE
    }

    /// Returns true if no write can have waited since: they are refusals of another moment.
    fn is_past(&self, now: Time) -> bool {
        match self.is_in_round {
            true => now >= self.round + transport::PATIENCE,
            false => now >= self.last + FULL,
        }
    }
}

/// What a refusal means for the writes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedWrites {
    /// They wait for the next round.
    Wait,
    /// They fail.
    Fail {
        /// No write of the object has failed since its first refusal.
        is_first: bool,
    },
}

/// What the refusal of a write for want of room means for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullWrite {
    /// More pages are to be requested: it waits for the answer.
    RequestPages,
    /// It is sent again at this time.
    Hold(Time),
    /// It fails.
    Fail,
}

/// The objects that were refused a copy, or room at their only one.
#[derive(Debug, Default)]
pub struct PlacementRefusals {
    of: BTreeMap<usize, Refusals>,
    /// When a write that its object's only copy could not take failed last, by the copy's server.
    failed: BTreeMap<usize, Time>,
    /// When a write failed last whose object had no answer to its request for a place. None since one
    /// was answered.
    unanswered: Option<Time>,
}

impl PlacementRefusals {
    /// Begins a round for an object, or goes on with it. Returns false before it is time for one.
    pub fn may_place(&mut self, object: usize, now: Time) -> bool {
        let Some(refusals) = self.of.get_mut(&object) else {
            return true;
        };
        if refusals.is_past(now) {
            self.of.remove(&object);
            return true;
        }
        if refusals.is_in_round {
            return true;
        }
        if refusals.is_pausing(now) {
            return false;
        }
        (refusals.round, refusals.is_in_round) = (now, true);
        true
    }

    /// Returns true if the writes of an object fail before the next round.
    pub fn fails_at_once(&self, object: usize, now: Time) -> bool {
        let refusals = self.of.get(&object).filter(|it| !it.is_past(now));
        refusals.is_some_and(|it| it.is_pausing(now) && it.is_patience_over())
    }

    /// The only copy of an object, at a server, cannot take a write. Returns true if it is the first one there of an outage.
    pub fn on_write_failed(&mut self, server: usize, now: Time) -> bool {
        let last = self.failed.insert(server, now);
        last.is_none_or(|last| now >= last + transport::PATIENCE)
    }

    /// No server takes an object in, or has more pages for its only copy.
    pub fn on_refused(&mut self, object: usize, now: Time) -> RefusedWrites {
        self.unanswered = None;
        let refusals = self.of.entry(object).or_insert(Refusals::new(now));
        (refusals.last, refusals.is_in_round) = (now, false);
        match refusals.is_patience_over() {
            true => RefusedWrites::Fail {
                is_first: !std::mem::replace(&mut refusals.has_failed, true),
            },
            false => RefusedWrites::Wait,
        }
    }

    /// The only copy of an object has no room for a write, and no more pages are being asked for.
    pub fn on_full(&mut self, object: usize, now: Time) -> FullWrite {
        let known = self.of.get(&object).filter(|it| !it.is_past(now)).copied();
        match known {
            // The answer was no, or too few pages.
            Some(refusals) if refusals.is_in_round => match self.on_refused(object, now) {
                RefusedWrites::Wait => FullWrite::Hold(now + RETRY),
                RefusedWrites::Fail { .. } => FullWrite::Fail,
            },
            Some(refusals) if refusals.is_pausing(now) => match refusals.is_patience_over() {
                true => FullWrite::Fail,
                false => FullWrite::Hold(refusals.last + RETRY),
            },
            _ => {
                self.may_place(object, now);
                let refusals = self.of.entry(object).or_insert(Refusals::new(now));
                refusals.is_in_round = true;
                FullWrite::RequestPages
            }
        }
    }

    /// How long a write waits for an answer to the request for a place. Those that follow a failure do not wait, since a
    /// pager tries many pages before it gives up; the request goes on meanwhile.
    pub fn patience(&self, now: Time) -> Nanos {
        match self.is_unanswered(now) {
            true => Nanos(0),
            false => transport::PATIENCE,
        }
    }

    /// A write fails, since there is no answer. Returns true if it is the first.
    pub fn on_unanswered(&mut self, now: Time) -> bool {
        let is_first = !self.is_unanswered(now);
        self.unanswered = Some(now);
        is_first
    }

    fn is_unanswered(&self, now: Time) -> bool {
        let failed = self.unanswered;
        failed.is_some_and(|failed| now < failed + transport::PATIENCE)
    }

    /// An object has a copy, or room for a write that was refused.
    pub fn on_room(&mut self, object: usize) {
        self.unanswered = None;
        self.of.remove(&object);
    }
}

/// No server takes a copy of an object now: none is asked for one for a while.
pub fn give_up(
    transport: &mut RemoteTransport,
    object: ObjectId,
    (why, is_full): (Refusal, bool),
    now: Time,
) {
    // Of servers alone, only one that refused is full; others are without a connection for now.
    let refuses = |server: &Server| server.is_up() && now < server.full_until;
    let pause = match &transport.broker {
        Some(_) if !is_full => NOT_KNOWN,
        None if !transport.servers.iter().any(refuses) => UNREACHABLE,
        _ => FULL,
    };
    transport.copies_full_until = now + pause;
    let at = transport.objects.find(object);
    let at = at.filter(|at| pause != UNREACHABLE && transport.objects.at(*at).copies.is_empty());
    let writes = at.map(|at| (at, transport.placement_refusals.on_refused(at, now)));
    let is_known = matches!(writes, Some((_, RefusedWrites::Fail { is_first: false })));
    match pause {
        FULL if !is_known => tracing::info!("no further copy of {object}: {why}"),
        _ => tracing::debug!("no further copy of {object} for now: {why}"),
    }
    if let Some((at, RefusedWrites::Fail { .. })) = writes {
        transport.fail_writes(at);
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
            if refusals.on_refused(7, at(now)) != RefusedWrites::Wait {
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
        for now in [5001, 5010, 5990] {
            assert!(refusals.fails_at_once(1, at(now)) && !refusals.may_place(1, at(now)));
        }
        for now in [6000, 8000] {
            assert!(!refusals.fails_at_once(1, at(now)) && refusals.may_place(1, at(now)));
            let is_first = false;
            let failed = RefusedWrites::Fail { is_first };
            assert_eq!(refusals.on_refused(1, at(now)), failed);
        }
        assert!(refusals.may_place(1, at(13_500)));
        assert_eq!(refusals.on_refused(1, at(13_500)), RefusedWrites::Wait);
    }

    #[test]
    fn a_full_copy_is_asked_once_a_second_and_its_writes_fail_after_some_seconds() {
        let mut refusals = PlacementRefusals::default();
        let mut now = 0;
        for second in 0..=5 {
            // The answer is refused, too, and so is the write after it.
            assert_eq!(refusals.on_full(1, at(now)), FullWrite::RequestPages);
            let answered = at(now + 20);
            match refusals.on_full(1, answered) {
                FullWrite::Hold(until) if second < 5 => now = (until - Time(0)).0 / 1_000_000,
                FullWrite::Fail if second == 5 => {}
                other => panic!("{other:?}"),
            }
        }
        // Those that follow do not ask for each page.
        for later in [30, 500, 900] {
            assert_eq!(refusals.on_full(1, at(now + later)), FullWrite::Fail);
        }
        assert_eq!(refusals.on_full(1, at(now + 1100)), FullWrite::RequestPages);
        refusals.on_room(1);
        assert_eq!(refusals.on_full(1, at(now + 1200)), FullWrite::RequestPages);
        assert!(matches!(
            refusals.on_full(1, at(now + 1300)),
            FullWrite::Hold(_)
        ));
        // Its write has failed otherwise meanwhile.
        assert_eq!(refusals.on_full(1, at(now + 2300)), FullWrite::RequestPages);
        assert_eq!(
            refusals.on_full(1, at(now + 32_300)),
            FullWrite::RequestPages
        );
        assert!(matches!(
            refusals.on_full(1, at(now + 32_400)),
            FullWrite::Hold(_)
        ));
    }

    #[test]
    fn an_outage_of_a_server_is_one_line_for_people() {
        let mut refusals = PlacementRefusals::default();
        let mut is_first = |server, now| refusals.on_write_failed(server, at(now));
        assert!(is_first(0, 0) && is_first(1, 0));
        assert!((1..100).all(|second| !is_first(0, second * 1000)));
        assert!(is_first(0, 200_000));
    }

    #[test]
    fn an_object_that_had_a_copy_waits_again() {
        let mut refusals = PlacementRefusals::default();
        refusals.on_refused(1, at(0));
        assert!(refusals.may_place(1, at(4900)));
        refusals.on_room(1);
        refusals.on_refused(1, at(6000));
        assert!(refusals.may_place(1, at(7000)));
        assert_eq!(refusals.on_refused(1, at(7010)), RefusedWrites::Wait);
    }
}
