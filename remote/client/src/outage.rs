//! When a server that does not answer is given up, and when its silence may be an outage of this host's own
//! network.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 1: a client that moves breaks its connections. Rule: a
//! server is given up for a silence only if another one answered throughout it, a *witness*. In an outage
//! of this host's network all servers are silent, no two are found to be so in the same moment, and they come
//! back one after the other.
//!
//! | a server | is given up when a witness |
//! |---|---|
//! | leaves a request unanswered and answers no other for [`STALLED`], or answers what was sent as long after it | answered since before the request |
//! | has no connection for [`GRACE`] | answered for as long, in which an attempt to connect failed |
//! | is not connected to, since it broke the protocol | answered for [`GRACE`] |
//!
//! A read whose servers have all left another request unanswered until it failed, and have not answered since, fails
//! after [`STILL_SILENT`]: a program reads many pages of a server that is gone, and each one would wait anew.

use crate::objects::{ServerSet, bit};
use crate::transport::PATIENCE;
use disk::time::{Nanos, Time};

/// How long writes wait for a server whose connection ended, before they go on without it.
pub const GRACE: Nanos = Nanos::millis(1000);
/// A server that leaves a request unanswered for as long, or is busy for as long, is not waited for.
pub const STALLED: Nanos = Nanos::millis(3000);
/// A server that was silent for as long did not answer throughout: two renewals of its lease.
const GAP: Nanos = Nanos::millis(2000);
/// How long a read waits for servers that have left another request unanswered.
pub const STILL_SILENT: Nanos = Nanos::millis(1000);

/// What is known of a server's presence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Since when there is no connection.
    down_since: Option<Time>,
    /// When a request was answered last on the present connection, and since when there was no [`GAP`].
    answers: Option<Answers>,
    /// When the last attempt to connect that failed was begun.
    failed_attempt: Option<Time>,
    /// When a request failed last that it has left unanswered; none where it has answered since.
    failed_request: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answers {
    since: Time,
    last: Time,
}

impl Presence {
    /// There is a connection.
    pub fn on_connected(&mut self, now: Time) {
        *self = Self {
            answers: Some(Answers {
                since: now,
                last: now,
            }),
            ..Self::default()
        };
    }

    /// The connection ended.
    pub fn on_disconnected(&mut self, now: Time) {
        *self = Self {
            down_since: Some(now),
            failed_request: self.failed_request,
            ..Self::default()
        };
    }

    /// A request was answered on the connection. Frames that answer none show nothing of what becomes of requests.
    pub fn on_answer(&mut self, now: Time) {
        self.failed_request = None;
        if let Some(answers) = &mut self.answers {
            if now >= answers.last + GAP {
                answers.since = now;
            }
            answers.last = now;
        }
    }

    /// When a request was answered last on the present connection, or when it was made.
    pub fn last_answer(&self) -> Option<Time> {
        self.answers.map(|answers| answers.last)
    }

    /// Returns true if a request was answered since a time.
    pub fn has_answered_since(&self, time: Time) -> bool {
        self.answers.is_some_and(|answers| answers.last >= time)
    }

    /// An attempt to connect that was begun at a time has failed.
    pub fn on_attempt_failed(&mut self, begun: Time) {
        self.failed_attempt = Some(begun);
    }

    /// A request of a page at the server fails, since none of its servers has answered. One that was there after
    /// `since` is not silent.
    pub fn on_request_failed(&mut self, since: Time, now: Time) {
        let is_silent = match self.answers {
            Some(answers) => answers.last <= since,
            None => self.down_since.is_none_or(|down_since| down_since <= since),
        };
        if is_silent {
            self.failed_request = Some(now);
        }
    }

    /// Since when the server has answered, if it still does.
    fn answers_since(&self, now: Time) -> Option<Time> {
        let answers = self.answers.filter(|answers| now < answers.last + GAP);
        answers.map(|answers| answers.since)
    }

    /// Returns true if a witness that has answered since a time shows that the server is gone.
    fn is_gone_beside(&self, witness_since: Time, is_avoided: bool, now: Time) -> bool {
        let Some(down_since) = self.down_since else {
            return false;
        };
        let from = down_since.max(witness_since);
        let has_failed = self.failed_attempt.is_some_and(|begun| begun >= from);
        now >= from + GRACE && (has_failed || is_avoided)
    }
}

/// How long a read waits for its servers. A failure that is long past says nothing about their network of today.
pub fn patience(servers: impl Iterator<Item = Presence>, now: Time) -> Nanos {
    let has_failed = |presence: Presence| {
        let failed = presence.failed_request;
        failed.is_some_and(|failed| now < failed + PATIENCE)
    };
    let mut servers = servers.peekable();
    match servers.peek().is_some() && servers.all(has_failed) {
        true => STILL_SILENT,
        false => PATIENCE,
    }
}

/// The servers that answered throughout a server's silence, which began with an unanswered request.
pub fn witnesses_of_silence(
    servers: impl Iterator<Item = Presence>,
    silent: usize,
    since: Time,
    now: Time,
) -> ServerSet {
    let answered = |other: &Presence| other.answers_since(now).is_some_and(|from| from <= since);
    set(servers, silent, answered)
}

/// The servers that show that one without a connection is gone, not this host's network. It `is_avoided` where no
/// connection is asked for at present.
pub fn witnesses_of_absence(
    servers: impl Iterator<Item = Presence>,
    (absent, presence): (usize, Presence),
    is_avoided: bool,
    now: Time,
) -> ServerSet {
    let is_witness = |other: &Presence| {
        let since = other.answers_since(now);
        since.is_some_and(|since| presence.is_gone_beside(since, is_avoided, now))
    };
    set(servers, absent, is_witness)
}

fn set(
    servers: impl Iterator<Item = Presence>,
    but: usize,
    is_in: impl Fn(&Presence) -> bool,
) -> ServerSet {
    let servers = servers.enumerate();
    let chosen = servers.filter(|(at, presence)| *at != but && is_in(presence));
    chosen.fold(0, |set, (at, _)| set | bit(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time(0) + Nanos::millis(millis)
    }

    /// A server that is connected at 0 and answers each second until a time.
    fn answering_until(millis: u64) -> Presence {
        let mut presence = Presence::default();
        presence.on_connected(at(0));
        answer(&mut presence, 0, millis);
        presence
    }

    fn answer(presence: &mut Presence, from: u64, to: u64) {
        let times = (from..to).step_by(1000).chain([to]);
        times.for_each(|millis| presence.on_answer(at(millis)));
    }

    fn down_at(millis: u64) -> Presence {
        let mut presence = answering_until(millis);
        presence.on_disconnected(at(millis));
        presence
    }

    fn silence(servers: [Presence; 2], since: u64, now: u64) -> ServerSet {
        witnesses_of_silence(servers.into_iter(), 0, at(since), at(now))
    }

    fn absence(servers: [Presence; 2], now: u64) -> ServerSet {
        witnesses_of_absence(servers.into_iter(), (0, servers[0]), false, at(now))
    }

    #[test]
    fn a_server_that_is_silent_beside_one_that_answers_is_given_up() {
        let servers = [answering_until(5000), answering_until(7900)];
        assert_eq!(silence(servers, 5000, 8000), bit(1));
    }

    #[test]
    fn a_silence_of_both_servers_gives_up_neither_whichever_is_found_first() {
        // The requests that stay unanswered were sent up to a renewal before the outage, and after it began.
        for sent in [4100, 4500, 5000, 5900] {
            let servers = [answering_until(sent), answering_until(5000)];
            assert_eq!(silence(servers, sent, sent + 3000), 0, "sent at {sent}");
        }
    }

    #[test]
    fn a_server_that_answers_again_is_no_witness_of_the_outage_before() {
        let mut back = answering_until(5000);
        back.on_answer(at(7900));
        assert_eq!(silence([answering_until(5000), back], 5000, 8000), 0);
        // It is one of what follows.
        answer(&mut back, 8000, 11_000);
        assert_eq!(silence([answering_until(5000), back], 8000, 11_100), bit(1));
    }

    #[test]
    fn a_server_that_refuses_connections_is_given_up_after_the_grace() {
        let mut gone = down_at(5000);
        let other = answering_until(6100);
        assert_eq!(absence([gone, other], 6100), 0, "no attempt has failed");
        gone.on_attempt_failed(at(5000));
        assert_eq!(absence([gone, other], 5900), 0, "the grace is not over");
        assert_eq!(absence([gone, other], 6100), bit(1));
    }

    #[test]
    fn attempts_that_failed_in_an_outage_of_all_servers_give_up_none() {
        let mut late = down_at(5000);
        late.on_attempt_failed(at(9000));
        let mut first = down_at(5000);
        first.on_connected(at(10_000));
        answer(&mut first, 10_000, 14_000);
        // However late this host's threads are, until one that was begun with the network back fails.
        assert_eq!(absence([late, first], 14_000), 0);
        late.on_attempt_failed(at(10_500));
        assert_eq!(absence([late, first], 10_900), 0);
        assert_eq!(absence([late, first], 14_000), bit(1));
    }

    #[test]
    fn a_connection_that_outlives_an_outage_gives_up_no_other_server() {
        let mut late = down_at(5000);
        late.on_attempt_failed(at(5100));
        let mut other = answering_until(5000);
        assert_eq!(absence([late, other], 7100), 0, "both are silent");
        other.on_answer(at(8000));
        answer(&mut other, 8100, 9500);
        assert_eq!(absence([late, other], 9500), 0, "the attempt was before");
        late.on_attempt_failed(at(8200));
        assert_eq!(absence([late, other], 9500), bit(1));
    }

    #[test]
    fn a_server_that_is_not_asked_for_a_connection_is_given_up_after_the_grace() {
        let servers = [down_at(5000), answering_until(6000)];
        let at_time =
            |now| witnesses_of_absence(servers.into_iter(), (0, servers[0]), true, at(now));
        assert_eq!((at_time(5900), at_time(6100)), (0, bit(1)));
    }

    #[test]
    fn a_server_alone_is_never_given_up() {
        let mut gone = down_at(5000);
        gone.on_attempt_failed(at(6000));
        let servers = [gone, down_at(5000)];
        assert_eq!(absence(servers, 60_000), 0);
        assert_eq!(
            silence([answering_until(5000), down_at(5000)], 5000, 60_000),
            0
        );
    }

    #[test]
    fn reads_of_servers_that_have_left_a_request_unanswered_fail_soon_until_one_answers() {
        let patience_of = |servers: &[Presence], now| patience(servers.iter().copied(), at(now));
        let mut servers = [down_at(5000), answering_until(5000)];
        assert_eq!(patience_of(&servers, 36_000), PATIENCE);
        let fail = |server: &mut Presence, now| server.on_request_failed(at(9000), at(now));
        servers.iter_mut().for_each(|server| fail(server, 36_000));
        assert_eq!(patience_of(&servers, 37_000), STILL_SILENT);
        assert_eq!(patience_of(&servers, 66_000), PATIENCE, "it is long past");
        servers[1].on_disconnected(at(37_000));
        assert_eq!(patience_of(&servers, 38_000), STILL_SILENT);
        servers[1].on_connected(at(39_000));
        assert_eq!(patience_of(&servers, 39_000), PATIENCE);
        assert_eq!(patience_of(&servers[..1], 39_000), STILL_SILENT);
        servers[1].on_disconnected(at(40_000));
        servers.iter_mut().for_each(|server| fail(server, 45_000));
        assert_eq!(patience_of(&servers, 45_000), PATIENCE, "one was there");
    }
}
