//! How many connections users may have.

use super::{Connection, Connections, FDS};
use crate::peer::Peer;
use crate::refusal::Refusal;
use crate::user_limits::is_trusted;

impl Connections {
    /// Returns true if a process has a connection already that is served with tenants and has no contract yet.
    pub(super) fn has_awaited(&self, peer: &Peer) -> bool {
        let waits = |one: &Connection| one.with_tenants && one.tenant.is_none();
        let mut all = self.by_token.values();
        all.any(|one| one.peer.pid == peer.pid && waits(one))
    }

    /// Returns true if no further message of a person is received, until what it sent is closed.
    pub(super) fn is_behind(&self, person: u32) -> bool {
        self.reaper.is_behind(person) || self.reaper.waiting(person) >= self.user_limits.max_fds()
    }

    /// The reason if a user may have no more connections, contracts or channels. `held` descriptors
    /// are those of the contracts of the user's person. What waits to be closed counts, too.
    pub fn over_fd_quota(&self, uid: u32, held: usize) -> Option<Refusal> {
        let person = self.user_limits.person(uid);
        let own = self.by_token.values().filter(|c| c.person == person);
        let taken = FDS * own.count() + held + self.reaper.waiting(person);
        let most = self.user_limits.max_fds();
        let over = taken >= most && !is_trusted(uid);
        over.then_some(Refusal::FdQuota { uid, taken, most })
    }

    /// The reason if a user may not connect: too many connections have no contract.
    pub(super) fn over_unidentified_quota(&self, uid: u32) -> Option<Refusal> {
        let counts = |c: &&Connection| !c.with_tenants && !is_trusted(c.identity.uid);
        let there = self.by_token.values().filter(counts).count();
        let most = self.user_limits.max_unidentified_fds() / FDS;
        let over = there >= most && !is_trusted(uid);
        over.then_some(Refusal::UnidentifiedQuota(there))
    }
}
