//! What one user may take of the daemon itself, whatever contracts he has.
//!
//! Contracts bound frames and disk time. Beside those every connection, contract and channel
//! takes descriptors and mappings of the daemon's, and every change of a contract a write of
//! the swap filesystem's tables, which nobody is charged for.
//!
//! Rule: no user but those who could end the daemon anyway, root and its own, takes more than
//! a quarter of its descriptors, or changes contracts faster than [`RATE`].

use super::Daemon;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::time::Instant;

/// Most descriptors of one user's, whatever the daemon may have: each of the channels' takes a
/// mapping too, of which a process has 65,530 (vm.max_map_count).
const MOST: usize = 16_384;

/// Changes a second that a user may make for long.
const RATE: f64 = 20.0;
/// Changes he may make at once.
const BURST: f64 = 64.0;

/// Descriptors of a connection: itself, and its process.
const CONNECTION: usize = 2;
/// Descriptors of a tenant, beside its channels': bells, a file.
const TENANT: usize = 4;

/// What users took lately.
pub struct Guests {
    descriptors: usize,
    paces: BTreeMap<u32, Pace>,
}

/// How many changes a user may still make.
struct Pace {
    left: f64,
    at: Instant,
}

impl Guests {
    /// Nobody took anything. The daemon may have as many descriptors as the kernel lets it.
    pub fn new() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        // With fewer it does with fewer.
        let _ = setrlimit(Resource::Nofile, raised);
        let most = getrlimit(Resource::Nofile).current;
        Self {
            descriptors: most.map_or(usize::MAX, |most| most as usize),
            paces: BTreeMap::new(),
        }
    }

    /// Most descriptors of one user's.
    pub fn most(&self) -> usize {
        (self.descriptors / 4).min(MOST)
    }

    /// Whether a user may make one more change now; if so it is counted.
    pub fn may_change(&mut self, uid: u32) -> bool {
        let now = Instant::now();
        let earned = |pace: &Pace| pace.left + RATE * (now - pace.at).as_secs_f64();
        self.paces.retain(|_, pace| earned(pace) < BURST);
        let left = self.paces.get(&uid).map_or(BURST, earned);
        if left < 1.0 {
            return false;
        }
        let left = left - 1.0;
        self.paces.insert(uid, Pace { left, at: now });
        true
    }
}

impl Daemon {
    /// Why a user may have no more connections, contracts or channels, if so.
    pub(super) fn crowded(&self, uid: u32) -> Option<String> {
        let connections = self.connections.values().filter(|c| c.asker.uid == uid);
        let tenants = self.tenants.values().filter(|t| t.record.uid == uid);
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

    /// Why a user may not change anything now, if so.
    pub(super) fn hasty(&mut self, uid: u32) -> Option<String> {
        let may = self.is_trusted(uid) || self.guests.may_change(uid);
        (!may).then(|| {
            format!("user {uid} asks for more than {RATE} changes a second: wait a little")
        })
    }

    /// Whether a user could end the daemon anyway.
    fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::getuid().as_raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_changes_too_fast_is_held_up_and_nobody_else() {
        let mut guests = Guests::new();
        let done = (0..1000).filter(|_| guests.may_change(7)).count();
        assert!((64..1000).contains(&done), "{done}");
        assert!(guests.may_change(8));
        assert!(guests.most() <= MOST);
    }
}
