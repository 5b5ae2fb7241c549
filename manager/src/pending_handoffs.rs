//! Hand-offs that are being received, and the one that is ended where there are too many.
//!
//! Rule: a process that opens connections and sends nothing delays only itself. Where all places
//! are taken, the process with the most of them loses its oldest; among equals, the one with the
//! highest number.

use std::collections::{HashMap, VecDeque};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

/// Hand-offs that are received at once, on a thread each: fewer than the descriptors that a process may have by default.
pub(crate) const MAX_PENDING: usize = 256;

struct PendingHandoff {
    number: u64,
    /// The process that connected.
    pid: i32,
    connection: Weak<UnixStream>,
}

/// The hand-offs, oldest first.
#[derive(Default)]
pub(crate) struct PendingHandoffs {
    all: VecDeque<PendingHandoff>,
    next: u64,
}

impl PendingHandoffs {
    /// Adds a connection, and returns its number for [`PendingHandoffs::remove`].
    pub fn add(&mut self, connection: &Arc<UnixStream>) -> u64 {
        let peer = rustix::net::sockopt::socket_peercred(connection);
        let pid = peer.map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        if self.all.len() >= MAX_PENDING {
            self.end_one();
        }
        self.next += 1;
        self.all.push_back(PendingHandoff {
            number: self.next,
            pid,
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

    /// Ends the oldest hand-off of the process that has the most: its thread finds the connection closed.
    fn end_one(&mut self) {
        let mut counts = HashMap::<i32, usize>::new();
        for pending in &self.all {
            *counts.entry(pending.pid).or_default() += 1;
        }
        let most = counts.iter().max_by_key(|(pid, count)| (**count, **pid));
        let Some((&pid, &count)) = most else {
            return;
        };
        let oldest = self.all.iter().position(|pending| pending.pid == pid);
        let Some(pending) = oldest.and_then(|at| self.all.remove(at)) else {
            return;
        };
        tracing::warn!(
            "process {pid} has {count} hand-offs under way, which are not complete: the oldest is ended, since all \
             {MAX_PENDING} places are taken"
        );
        if let Some(connection) = pending.connection.upgrade() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_process_with_the_most_gives_way() {
        let mut pending = PendingHandoffs::default();
        let pair = || UnixStream::pair().map(|(ours, theirs)| (Arc::new(ours), theirs));
        let pairs: Vec<_> = (0..MAX_PENDING).map(|_| pair().unwrap()).collect();
        let numbers: Vec<_> = pairs.iter().map(|(ours, _)| pending.add(ours)).collect();
        // The first two are another process's.
        for other in pending.all.iter_mut().take(2) {
            other.pid = -1;
        }
        let (new, _theirs) = pair().unwrap();
        let number = pending.add(&new);
        assert_eq!(pending.all.len(), MAX_PENDING);
        let is_there = |number| pending.all.iter().any(|it| it.number == number);
        assert!(is_there(number) && is_there(numbers[0]) && is_there(numbers[1]));
        assert!(!is_there(numbers[2]));
        let mut byte = [0];
        let ended = std::io::Read::read(&mut &pairs[2].1, &mut byte).unwrap();
        assert_eq!(ended, 0);
        assert!(pending.remove(number) && !pending.remove(number));
        assert_eq!(pending.all.len(), MAX_PENDING - 1);
    }
}
