//! Clients in order of deadline.
//!
//! A sorted vector: with the tens of clients that are active on a disk at once nothing is quicker;
//! idle clients are in no queue.

use crate::time::Time;

/// Earliest deadline first; among equal deadlines the first inserted, so that one client's
/// transactions follow each other.
#[derive(Debug, Default)]
pub(super) struct Queue(Vec<(Time, u32)>);

impl Queue {
    pub(super) fn insert(&mut self, deadline: Time, client: u32) {
        let at = self.0.partition_point(|&(other, _)| other <= deadline);
        self.0.insert(at, (deadline, client));
    }

    pub(super) fn remove(&mut self, deadline: Time, client: u32) {
        let from = self.0.partition_point(|&(other, _)| other < deadline);
        let found = self.0[from..]
            .iter()
            .position(|&(_, other)| other == client);
        debug_assert!(found.is_some(), "client {client} is not in the queue");
        if let Some(at) = found {
            self.0.remove(from + at);
        }
    }

    /// All clients, in order.
    pub(super) fn clients(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|&(_, client)| client)
    }

    pub(super) fn get(&self, at: usize) -> Option<(Time, u32)> {
        self.0.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_deadline_is_first_and_equal_deadlines_keep_arrival_order() {
        let mut queue = Queue::default();
        for (deadline, client) in [(5, 0), (3, 1), (5, 2), (3, 3), (9, 4)] {
            queue.insert(Time(deadline), client);
        }
        queue.remove(Time(5), 0);
        let order: Vec<_> = (0..)
            .map_while(|at| queue.get(at))
            .map(|(_, c)| c)
            .collect();
        assert_eq!(order, [1, 3, 2, 4]);
    }
}
