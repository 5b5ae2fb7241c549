//! Objects without a copy that no server takes in, and those whose only copy has no room for a write: how long their
//! writes wait.
//!
//! A server refuses for a moment, too: it lends nothing while its host is short of memory, and takes back what was not
//! written; it is excluded for [`FULL`] after a refusal, or its connection is just made again. A program dies of `ENOSPC`,
//! so it is no answer to a moment. Rule: a round of requests, for a place or for more pages at the only copy, follows each
//! refusal after [`RETRY`]; the writes fail with the first round that began [`PATIENCE`] after the first refusal and was
//! refused. Until none was refused for [`FULL`] writes that follow fail with a round, or at once between two rounds, since a
//! pager tries many pages before it gives up. These are of many objects: one that is refused beside others has the first
//! refusal of those, so a cluster that is full makes a program wait once. What fails so for many pages is one line for people.

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

/// How long servers on this machine are taken after no other had room. The next request of a place comes within [`FULL`].
const FULL_ELSEWHERE: Nanos = Nanos::seconds(30);

/// What is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// A place for a first copy.
    Place,
    /// More pages at a server, which has the only copy.
    PagesAt(usize),
}

/// The refusals of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusals {
    what: Refused,
    /// When this object, or another one that goes on being refused, was first refused the same.
    first: Time,
    last: Time,
    /// When the present round, or the last one, began.
    round: Time,
    is_in_round: bool,
    has_failed: bool,
}

impl Refusals {
    fn new(what: Refused, first: Time, now: Time) -> Self {
        Self {
            what,
            first,
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
    /// Whether people know that there is no room for second copies.
    has_warned_of_single: bool,
    /// Until when servers on this machine are taken as well, since no other had room.
    pub full_elsewhere_until: Time,
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

    /// No server takes an object in.
    pub fn on_refused(&mut self, object: usize, now: Time) -> RefusedWrites {
        self.end_round(object, Refused::Place, now)
    }

    /// The refusals of an object, which others that are refused the same may have begun.
    fn enter(&mut self, object: usize, what: Refused, now: Time) -> &mut Refusals {
        let others = self.of.values();
        let same = others.filter(|it| it.what == what && !it.is_past(now));
        let first = same.map(|it| it.first).min().unwrap_or(now);
        let refusals = Refusals::new(what, first, now);
        let known = self.of.entry(object).or_insert(refusals);
        if known.what != what {
            *known = refusals;
        }
        known
    }

    fn end_round(&mut self, object: usize, what: Refused, now: Time) -> RefusedWrites {
        self.unanswered = None;
        let refusals = self.enter(object, what, now);
        (refusals.last, refusals.is_in_round) = (now, false);
        match refusals.is_patience_over() {
            true => RefusedWrites::Fail {
                is_first: !std::mem::replace(&mut refusals.has_failed, true),
            },
            false => RefusedWrites::Wait,
        }
    }

    /// The only copy of an object, at a server, has no room for a write, and no more pages are being asked for.
    pub fn on_full(&mut self, object: usize, server: usize, now: Time) -> FullWrite {
        let what = Refused::PagesAt(server);
        let known = self.of.get(&object).filter(|it| !it.is_past(now)).copied();
        match known {
            // The answer was no, or too few pages.
            Some(refusals) if refusals.is_in_round => match self.end_round(object, what, now) {
                RefusedWrites::Wait => FullWrite::Hold(now + RETRY),
                RefusedWrites::Fail { .. } => FullWrite::Fail,
            },
            Some(refusals) if refusals.is_pausing(now) => match refusals.is_patience_over() {
                true => FullWrite::Fail,
                false => FullWrite::Hold(refusals.last + RETRY),
            },
            _ => {
                self.may_place(object, now);
                self.enter(object, what, now).is_in_round = true;
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

    /// An object has a copy, or room for a write that was refused. Others that were refused the same wait anew.
    pub fn on_room(&mut self, object: usize) {
        self.unanswered = None;
        if let Some(refused) = self.of.remove(&object) {
            self.of.retain(|_, other| other.what != refused.what);
        }
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
    if pause == FULL {
        transport.placement_refusals.full_elsewhere_until = now + FULL_ELSEWHERE;
    }
    let at = transport.objects.find(object);
    let copies = at.map(|at| transport.objects.at(at).copies.len());
    let has_warned = &mut transport.placement_refusals.has_warned_of_single;
    if pause == FULL && copies == Some(1) && !std::mem::replace(has_warned, true) {
        tracing::warn!(
            "pages have one copy only, since no other paging server has room for a second one: if their server ends, the program does; \
             lend more memory (`selfpage serve --ram`)"
        );
    }
    let at = at.filter(|_| pause != UNREACHABLE && copies == Some(0));
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
mod tests;
