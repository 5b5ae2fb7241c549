//! Hand-offs that are being received, and the one that is ended where there are too many.
//!
//! Rule: connections that send nothing delay only their user, and of that user's processes the one that opens most. Where all places
//! are taken, the user with most of them loses one: the oldest of its process with most. Among equals the oldest goes: an honest
//! hand-off takes a millisecond.

use host::fd_reaper::peer_uid;
use std::collections::{HashMap, VecDeque};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Hand-offs that are received at once, on a thread each: fewer than the descriptors that a process may have by default.
pub(crate) const MAX_PENDING: usize = 256;

/// How often hand-offs that were ended are logged.
const LOG_PERIOD: Duration = Duration::from_secs(1);

/// The process that connected, and its user.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PeerProcess {
    uid: u32,
    pid: i32,
}

struct PendingHandoff {
    number: u64,
    peer: PeerProcess,
    connection: Weak<UnixStream>,
}

/// The hand-offs, oldest first.
#[derive(Default)]
pub(crate) struct PendingHandoffs {
    all: VecDeque<PendingHandoff>,
    next: u64,
    /// Ended since the last line of the log, and when that was.
    ended: usize,
    logged: Option<Instant>,
}

impl PendingHandoffs {
    /// Adds a connection, and returns its number for [`PendingHandoffs::remove`].
    pub fn add(&mut self, connection: &Arc<UnixStream>) -> u64 {
        let peer = PeerProcess::of(connection);
        if self.all.len() >= MAX_PENDING {
            self.end_one();
        }
        self.next += 1;
        self.all.push_back(PendingHandoff {
            number: self.next,
            peer,
            connection: Arc::downgrade(connection),
        });
        self.next
    }

    /// A hand-off is complete, or has failed. Returns false where it was ended before.
    pub fn remove(&mut self, number: u64) -> bool {
        let place = self.all.iter().position(|it| it.number == number);
        place.and_then(|at| self.all.remove(at)).is_some()
    }

    /// Ends all: the server stops, and a peer that is silent may not delay that.
    pub fn end_all(&self) {
        let connections = self.all.iter().filter_map(|it| it.connection.upgrade());
        connections.for_each(|it| drop(it.shutdown(Shutdown::Both)));
    }

    /// Ends the hand-off that gives way: its thread finds the connection closed.
    fn end_one(&mut self) {
        let Some(pending) = self.place_to_end().and_then(|at| self.all.remove(at)) else {
            return;
        };
        self.ended += 1;
        let is_due = self
            .logged
            .is_none_or(|logged| logged.elapsed() >= LOG_PERIOD);
        if is_due {
            self.logged = Some(Instant::now());
            tracing::warn!(
                "all {MAX_PENDING} places for hand-offs are taken: {} that were not complete were ended since the last such line, the last of \
                 process {} of user {}",
                std::mem::take(&mut self.ended),
                pending.peer.pid,
                pending.peer.uid
            );
        }
        if let Some(connection) = pending.connection.upgrade() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn place_to_end(&self) -> Option<usize> {
        let (mut of_user, mut of_process) = (HashMap::new(), HashMap::new());
        for PendingHandoff { peer, .. } in &self.all {
            *of_user.entry(peer.uid).or_insert(0) += 1;
            *of_process.entry(*peer).or_insert(0) += 1;
        }
        let claim = |it: &PendingHandoff| (of_user[&it.peer.uid], of_process[&it.peer]);
        let most: (usize, usize) = self.all.iter().map(claim).max()?;
        self.all.iter().position(|it| claim(it) == most)
    }
}

impl PeerProcess {
    fn of(connection: &UnixStream) -> Self {
        let peer = rustix::net::sockopt::socket_peercred(connection);
        Self {
            uid: peer_uid(connection),
            pid: peer.map_or(0, |peer| peer.pid.as_raw_nonzero().get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as there are places, of (user, process) each; and their other ends.
    fn full(
        peer: impl Fn(usize) -> (u32, i32),
    ) -> (PendingHandoffs, Vec<Arc<UnixStream>>, Vec<UnixStream>) {
        let mut pending = PendingHandoffs::default();
        let pairs = (0..MAX_PENDING).map(|_| UnixStream::pair().unwrap());
        let (ours, theirs): (Vec<_>, Vec<_>) =
            pairs.map(|(ours, theirs)| (Arc::new(ours), theirs)).unzip();
        for (at, connection) in ours.iter().enumerate() {
            pending.add(connection);
            let (uid, pid) = peer(at);
            pending.all[at].peer = PeerProcess { uid, pid };
        }
        (pending, ours, theirs)
    }

    /// Adds one more. Returns the place of the one that gives way.
    fn loser(pending: &mut PendingHandoffs) -> usize {
        let (new, _theirs) = UnixStream::pair().unwrap();
        let before: Vec<_> = pending.all.iter().map(|it| it.number).collect();
        let number = pending.add(&Arc::new(new));
        assert_eq!(pending.all.len(), MAX_PENDING);
        let is_there = |number| pending.all.iter().any(|it| it.number == number);
        assert!(is_there(number));
        before.iter().position(|number| !is_there(*number)).unwrap()
    }

    #[test]
    fn the_oldest_of_the_process_with_the_most_gives_way() {
        let (mut pending, _ours, theirs) = full(|at| (1, if at < 2 { 7 } else { 8 }));
        let number = pending.all[2].number;
        assert_eq!(loser(&mut pending), 2);
        let ended = std::io::Read::read(&mut &theirs[2], &mut [0]).unwrap();
        assert_eq!(ended, 0);
        assert!(!pending.remove(number));
        let number = pending.all[0].number;
        assert!(pending.remove(number) && !pending.remove(number));
        assert_eq!(pending.all.len(), MAX_PENDING - 1);
    }

    #[test]
    fn the_user_with_the_most_gives_way_before_a_process_of_another() {
        // A process of user 1 has ten; user 2 has the others, of a process each.
        let (mut pending, _ours, _theirs) =
            full(|at| if at < 10 { (1, 7) } else { (2, at as i32) });
        assert_eq!(loser(&mut pending), 10);
    }

    #[test]
    fn among_equals_the_oldest_gives_way_whatever_its_number() {
        let (mut pending, _ours, _theirs) = full(|at| (1, 9_000 - at as i32));
        assert_eq!(loser(&mut pending), 0);
        let (mut pending, _ours, _theirs) = full(|at| (1, 9_000 + at as i32));
        assert_eq!(loser(&mut pending), 0);
    }
}
