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
//! than a quarter of its descriptors, changes contracts faster than [`RATE`], or sends queries
//! faster than [`ASKING`]. All connections without a contract have half of the descriptors.

use crate::Daemon;
use crate::listener::Connection;
use crate::policy::ContractTotals;
use crate::tenant::Tenant;
use protocol::TenantNumber;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::time::Instant;

/// Most descriptors of one user's, whatever the daemon may have: each of the channels' takes a
/// mapping too, of which a process has 65,530 (vm.max_map_count).
const MOST: usize = 16_384;

/// Changes a second that a user may make for long.
const RATE: f64 = 20.0;
/// Queries a second that a user may send for long: each is a walk through all contracts.
const ASKING: f64 = 100.0;
/// How many seconds' worth of either may come at once.
const BURST: f64 = 3.2;

/// Subordinate uids of each user.
const SUBORDINATE: &str = "/etc/subuid";
/// The uid of each name.
const NAMES: &str = "/etc/passwd";

/// Descriptors of a connection: itself, and its process.
const CONNECTION: usize = 2;
/// Descriptors of a tenant, beside its channels': bells, a file.
const TENANT: usize = 4;

/// The recent use of each user.
pub struct UserLimits {
    descriptors: usize,
    changes: TokenBuckets,
    questions: TokenBuckets,
    persons: Vec<Subordinate>,
}

/// A range of uids that belong to a person beside the person's own.
struct Subordinate {
    start: u32,
    count: u32,
    person: u32,
}

/// How often persons may still do something.
struct TokenBuckets {
    rate: f64,
    left: BTreeMap<u32, TokenBucket>,
}

struct TokenBucket {
    left: f64,
    at: Instant,
}

impl UserLimits {
    /// No use yet. Raises the daemon's descriptor limit to the hard limit.
    pub fn new() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        // On failure the soft limit holds.
        let _ = setrlimit(Resource::Nofile, raised);
        let most = getrlimit(Resource::Nofile).current;
        let mut it = Self {
            descriptors: most.map_or(usize::MAX, |most| most as usize),
            changes: TokenBuckets::new(RATE),
            questions: TokenBuckets::new(ASKING),
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

    /// Most descriptors of one person's.
    pub fn most(&self) -> usize {
        (self.descriptors / 4).min(MOST)
    }

    /// Returns true if a user may make one more change now; if so it is counted.
    pub fn may_change(&mut self, uid: u32) -> bool {
        let person = self.person(uid);
        self.changes.take(person)
    }

    /// Returns true if a user may send one more query; if so it is counted.
    pub fn may_ask(&mut self, uid: u32) -> bool {
        let person = self.person(uid);
        self.questions.take(person)
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
        let earned = |pace: &TokenBucket| pace.left + rate * (now - pace.at).as_secs_f64();
        self.left.retain(|_, pace| earned(pace) < most);
        let left = self.left.get(&person).map_or(most, earned);
        if left < 1.0 {
            return false;
        }
        let left = left - 1.0;
        self.left.insert(person, TokenBucket { left, at: now });
        true
    }
}

/// Reads lines `NAME:START:COUNT`, and the uid of each name. A person whose name is not
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

impl Daemon {
    /// Why a user may have no more connections, contracts or channels, if so.
    pub(super) fn crowded(&self, uid: u32) -> Option<String> {
        let person = self.guests.person(uid);
        let connections = self.connections.values().filter(|c| c.person == person);
        let is_own = |t: &&Tenant| self.guests.person(t.record.uid) == person;
        let tenants = self.tenants.values().filter(is_own);
        let channels: usize = tenants.map(|t| TENANT + t.channels.len()).sum();
        let (taken, most) = (
            CONNECTION * connections.count() + channels,
            self.guests.most(),
        );
        (taken >= most && !self.is_trusted(uid)).then(|| {
            format!(
                "user {uid} has {taken} of the {most} descriptors that one user's connections, contracts and \
                 channels may take: end some first"
            )
        })
    }

    /// What the contracts of a person have together, but for this one.
    pub(super) fn held(&self, uid: u32, but: Option<TenantNumber>) -> ContractTotals {
        let person = self.guests.person(uid);
        let all = self
            .tenants
            .iter()
            .filter(|(number, _)| Some(**number) != but);
        let own = all.filter(|(_, t)| self.guests.person(t.record.uid) == person);
        own.fold(ContractTotals::default(), |held, (_, tenancy)| {
            held.with(&tenancy.record.terms)
        })
    }

    /// Why a user is not let in, if so: too many are in that have no contract.
    pub(super) fn besieged(&self, uid: u32) -> Option<String> {
        let is_stranger = |c: &&Connection| c.tenant.is_none() && !self.is_trusted(c.asker.uid);
        let there = self.connections.values().filter(is_stranger).count();
        let most = self.guests.descriptors / 2 / CONNECTION;
        (there >= most && !self.is_trusted(uid)).then(|| {
            format!(
                "{there} connections without a contract are open, and no more may be: try again"
            )
        })
    }

    /// Why a user may not ask what there is now, if so.
    pub(super) fn curious(&mut self, uid: u32) -> Option<String> {
        let may = self.is_trusted(uid) || self.guests.may_ask(uid);
        (!may).then(|| {
            format!("user {uid} asks for more than {ASKING} lists a second: wait a little")
        })
    }

    /// Why a user may not change anything now, if so.
    pub(super) fn hasty(&mut self, uid: u32) -> Option<String> {
        let may = self.is_trusted(uid) || self.guests.may_change(uid);
        (!may).then(|| {
            format!("user {uid} asks for more than {RATE} changes a second: wait a little")
        })
    }

    /// Returns true if a user could end the daemon anyway.
    fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::getuid().as_raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_changes_too_fast_is_held_up_and_nobody_else() {
        let mut guests = UserLimits::new();
        let done = (0..1000).filter(|_| guests.may_change(7)).count();
        assert!((64..1000).contains(&done), "{done}");
        assert!(guests.may_ask(7), "that is counted apart");
        assert!(guests.may_change(8));
        assert!(guests.most() <= MOST);
    }

    #[test]
    fn users_that_are_one_persons_count_as_one() {
        let names = "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:/bin/sh\n";
        let text = "ann:100000:65536\n1001:165536:10\n# none\ngone:300000:5\nbad:1\n";
        let mut guests = UserLimits::new();
        guests.persons = subordinates(text, names);
        let persons = [
            1000, 99_999, 100_000, 165_535, 165_536, 165_545, 165_546, 300_004,
        ];
        let found = persons.map(|uid| guests.person(uid));
        assert_eq!(
            found,
            [1000, 99_999, 1000, 1000, 1001, 1001, 165_546, 300_000]
        );
        while guests.may_ask(100_007) {}
        assert!(!guests.may_ask(1000) && guests.may_ask(1001));
    }
}
