//! Which key a name of a host or a client belongs to: the one that used it first.
//!
//! Rule: no member acts in the name of another: a broker's server would end the permits of a client whose
//! later life another host pretends to be. A name is forgotten when it was not used for longer than a lease
//! lasts, since its permits have ended then.

use remote_keys::Fingerprint;
use remote_policy::identity::HostId;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a name is kept after its last use: twice a lease of a paging server.
const KEPT: Duration = Duration::from_secs(120);
/// Most names: the permits of a full server, and its hosts.
const MAX_NAMES: usize = 8192;

/// The names and their keys.
#[derive(Default)]
pub struct NameTable(Mutex<BTreeMap<HostId, (Fingerprint, Instant)>>);

impl NameTable {
    /// A peer uses a name. Returns true if it is the peer's: in the clear any is.
    pub fn is_own(&self, name: HostId, key: Option<Fingerprint>) -> bool {
        let Some(key) = key else {
            return true;
        };
        // Nothing panics while it is held.
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if names.len() >= MAX_NAMES {
            names.retain(|_, (_, used)| now.duration_since(*used) < KEPT);
        }
        let is_free = names.len() < MAX_NAMES;
        match names.get_mut(&name) {
            Some((known, used)) if *known == key => {
                *used = now;
                true
            }
            Some((_, used)) if now.duration_since(*used) < KEPT => false,
            None if !is_free => false,
            _ => {
                names.insert(name, (key, now));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_the_key_that_used_it_first() {
        let key = |seed: u8| Some(Fingerprint::of(&[seed; 44]));
        let names = NameTable::default();
        assert!(names.is_own(HostId(1), key(1)));
        assert!(names.is_own(HostId(2), key(2)));
        assert!(names.is_own(HostId(1), key(1)));
        assert!(!names.is_own(HostId(1), key(2)));
        assert!(names.is_own(HostId(1), None));
    }
}
