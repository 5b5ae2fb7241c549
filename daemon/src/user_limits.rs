//! Per-user limits on the daemon's own resources (descriptors, request rate).
//!
//! Contracts bound frames and disk time. Beside those every connection, contract and channel
//! takes descriptors and mappings of the daemon's, and every change of a contract a write of
//! the swap filesystem's tables, which no contract is charged for.
//!
//! One person may have many uids: those that /etc/subuid assigns to a user for containers.
//! They count as one.
//!
//! Rule: no user but root and the daemon's own, which could end the daemon anyway, takes more
//! than a quarter of its descriptors, changes contracts faster than [`CHANGE_RATE`], or sends queries
//! faster than [`QUERY_RATE`]. All connections without a contract have half of the descriptors.

use crate::refusal::Refusal;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::collections::BTreeMap;
use std::time::Instant;

/// Most descriptors that one user may take, however many the daemon may have: each descriptor of a channel takes a
/// mapping too, of which a process has 65,530 (vm.max_map_count).
const MAX_FDS: usize = 16_384;

/// Changes a second that a user may make in the long run.
const CHANGE_RATE: f64 = 20.0;
/// Queries a second that a user may send in the long run: each is a walk through all contracts.
const QUERY_RATE: f64 = 100.0;
/// Seconds whose changes or queries may come at once.
const BURST: f64 = 3.2;

/// Subordinate uids of each user.
const SUBORDINATE: &str = "/etc/subuid";
/// The uid of each name.
const NAMES: &str = "/etc/passwd";

/// The recent use of each user.
pub struct UserLimits {
    descriptors: usize,
    changes: TokenBuckets,
    queries: TokenBuckets,
    persons: Vec<Subordinate>,
}

/// A range of uids that belong to a person beside the person's own.
struct Subordinate {
    start: u32,
    count: u32,
    person: u32,
}

/// The token bucket of each person.
struct TokenBuckets {
    rate: f64,
    left: BTreeMap<u32, TokenBucket>,
}

struct TokenBucket {
    left: f64,
    at: Instant,
}

/// A limit on descriptors below which the daemon warns.
const FEW_DESCRIPTORS: u64 = 8192;
/// Bounds of the reserve: descriptors that neither connections nor tenants take, an eighth of all.
const MIN_RESERVE: usize = 12;
const MAX_RESERVE: usize = 256;
/// Descriptors that a process of a tenant takes.
const FDS_OF_PROCESS: u64 = 10;

impl UserLimits {
    /// Limits that no user has used yet. Raises the daemon's descriptor limit to the hard limit.
    pub fn new() -> Self {
        let most = host::descriptor_limit::raise();
        if let Some(most) = most.filter(|most| *most < FEW_DESCRIPTORS) {
            tracing::warn!(
                "the limit on open files (`ulimit -n`) is {most}: some {} processes of tenants find room",
                most / FDS_OF_PROCESS
            );
        }
        let mut it = Self {
            descriptors: most.map_or(usize::MAX, |most| most as usize),
            changes: TokenBuckets::new(CHANGE_RATE),
            queries: TokenBuckets::new(QUERY_RATE),
            persons: Vec::new(),
        };
        it.read_persons();
        it
    }

    /// Reads the subordinate uids of each user.
    pub fn read_persons(&mut self) {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        self.persons = subordinates(&text(SUBORDINATE), &text(NAMES));
    }

    /// The person that a uid belongs to, as a number unique to that person.
    pub fn person(&self, uid: u32) -> u32 {
        let holds = |range: &&Subordinate| uid.wrapping_sub(range.start) < range.count;
        self.persons
            .iter()
            .find(holds)
            .map_or(uid, |range| range.person)
    }

    /// Returns true if a new descriptor is in the reserve, which the daemon needs to read /proc and control groups: a
    /// new descriptor has the lowest free number, so its number shows how many are taken.
    pub fn is_in_reserve(&self, fd: BorrowedFd<'_>) -> bool {
        let reserve = (self.descriptors / 8).clamp(MIN_RESERVE, MAX_RESERVE);
        fd.as_raw_fd() as usize >= self.descriptors.saturating_sub(reserve)
    }

    /// Most descriptors that one person may take.
    pub fn max_fds(&self) -> usize {
        (self.descriptors / 4).min(MAX_FDS)
    }

    /// Most descriptors of all connections without a contract.
    pub fn max_unidentified_fds(&self) -> usize {
        self.descriptors / 2
    }

    /// Counts a change of a contract, or returns the reason if the user may make none now.
    pub fn over_change_rate(&mut self, uid: u32) -> Option<Refusal> {
        let may = is_trusted(uid) || {
            let person = self.person(uid);
            self.changes.take(person)
        };
        let rate = CHANGE_RATE;
        (!may).then_some(Refusal::ChangeRate { uid, rate })
    }

    /// Counts a query, or returns the reason if the user may send none now.
    pub fn over_query_rate(&mut self, uid: u32) -> Option<Refusal> {
        let may = is_trusted(uid) || {
            let person = self.person(uid);
            self.queries.take(person)
        };
        let rate = QUERY_RATE;
        (!may).then_some(Refusal::QueryRate { uid, rate })
    }
}

impl TokenBuckets {
    fn new(rate: f64) -> Self {
        let left = BTreeMap::new();
        Self { rate, left }
    }

    fn take(&mut self, person: u32) -> bool {
        let (now, rate) = (Instant::now(), self.rate);
        let most = rate * BURST;
        let earned = |bucket: &TokenBucket| bucket.left + rate * (now - bucket.at).as_secs_f64();
        self.left.retain(|_, bucket| earned(bucket) < most);
        let left = self.left.get(&person).map_or(most, earned);
        if left < 1.0 {
            return false;
        }
        let left = left - 1.0;
        self.left.insert(person, TokenBucket { left, at: now });
        true
    }
}

/// Parses lines `NAME:START:COUNT`, and looks the uid of each name up in `names`. A person whose name is not
/// known is identified by the first uid of the range.
fn subordinates(text: &str, names: &str) -> Vec<Subordinate> {
    let number = |name: &str| {
        let known = |line: &&str| line.split(':').next() == Some(name);
        let line = names.lines().find(known)?;
        line.split(':').nth(2)?.parse().ok()
    };
    let range = |line: &str| {
        let mut words = line.trim().split(':');
        let (name, start, count) = (words.next()?, words.next()?, words.next()?);
        let (start, count) = (start.parse().ok()?, count.parse().ok()?);
        let person = name.parse().ok().or_else(|| number(name));
        Some(Subordinate {
            start,
            count,
            person: person.unwrap_or(start),
        })
    };
    text.lines().filter_map(range).collect()
}

/// Returns true if a user could end the daemon anyway.
pub fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::getuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_over_its_change_rate_delays_no_other_user() {
        let mut limits = UserLimits::new();
        let done = (0..1000)
            .filter(|_| limits.over_change_rate(7).is_none())
            .count();
        assert!((64..1000).contains(&done), "{done}");
        assert!(
            limits.over_query_rate(7).is_none(),
            "queries are counted separately"
        );
        assert!(limits.over_change_rate(8).is_none());
        assert!(limits.max_fds() <= MAX_FDS);
    }

    #[test]
    fn the_uids_of_one_person_count_as_one() {
        let names = "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:/bin/sh\n";
        let text = "ann:100000:65536\n1001:165536:10\n# none\ngone:300000:5\nbad:1\n";
        let mut limits = UserLimits::new();
        limits.persons = subordinates(text, names);
        let persons = [
            1000, 99_999, 100_000, 165_535, 165_536, 165_545, 165_546, 300_004,
        ];
        let found = persons.map(|uid| limits.person(uid));
        assert_eq!(
            found,
            [1000, 99_999, 1000, 1000, 1001, 1001, 165_546, 300_000]
        );
        while limits.over_query_rate(100_007).is_none() {}
        assert!(limits.over_query_rate(1000).is_some() && limits.over_query_rate(1001).is_none());
    }
}
