//! Which chunk of an object is fetched next, and for whom. Pure: no I/O, no clock.
//!
//! Each client has a queue of its own, and the clients take turns: one that faults all over a snapshot
//! delays another by one fetch at most. What a fault waits for goes before what is read ahead.

use std::collections::{BTreeMap, VecDeque};

/// A chunk's number.
pub type Chunk = u32;

/// Chunks that a client's faults wait for at once: what is beyond them is asked for again when one of them is there.
const DEMANDS: usize = 256;

/// What became of a chunk that a client demanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// It is on its way.
    Pending,
    /// It cannot be had. A demand after [`FetchQueue::forget_failures`] has it tried again.
    Failed,
}

/// A client's chunks.
#[derive(Debug, Default)]
struct ClientQueue {
    /// What its faults wait for, in order, with those under way.
    demands: VecDeque<Chunk>,
    /// Of those, what could not be had.
    failed: Vec<Chunk>,
    /// What is to be read ahead.
    ahead: VecDeque<Chunk>,
}

/// The queues of all clients, by their numbers.
#[derive(Debug, Default)]
pub struct FetchQueue {
    clients: BTreeMap<u64, ClientQueue>,
    /// The client that was served last.
    last: u64,
    under_way: Vec<Chunk>,
}

impl FetchQueue {
    /// Adds a client; allocates all that its faults need.
    pub fn add(&mut self, client: u64) {
        let queue = ClientQueue {
            demands: VecDeque::with_capacity(DEMANDS),
            failed: Vec::with_capacity(DEMANDS),
            ahead: VecDeque::new(),
        };
        self.clients.insert(client, queue);
    }

    /// Removes a client and what it waits for; what is under way goes on.
    pub fn remove(&mut self, client: u64) {
        self.clients.remove(&client);
    }

    /// A fault of the client waits for a chunk.
    pub fn demand(&mut self, client: u64, chunk: Chunk) -> Demand {
        let Some(queue) = self.clients.get_mut(&client) else {
            return Demand::Failed;
        };
        if queue.failed.contains(&chunk) {
            return Demand::Failed;
        }
        if queue.demands.len() < DEMANDS && !queue.demands.contains(&chunk) {
            queue.demands.push_back(chunk);
        }
        Demand::Pending
    }

    /// The client has looked at all that it waits for: what could not be had is tried again for later faults.
    pub fn forget_failures(&mut self, client: u64) {
        if let Some(queue) = self.clients.get_mut(&client) {
            queue.failed.clear();
        }
    }

    /// Chunks that the client will fault on, in this order.
    pub fn read_ahead(&mut self, client: u64, chunks: impl IntoIterator<Item = Chunk>) {
        if let Some(queue) = self.clients.get_mut(&client) {
            queue.ahead.extend(chunks);
        }
    }

    /// Takes the next chunk, to be fetched: one that a fault waits for, else, where `takes_ahead`, one that
    /// is to be read ahead. Those that are there are dropped.
    pub fn take(&mut self, takes_ahead: bool, is_there: impl Fn(Chunk) -> bool) -> Option<Chunk> {
        let under_way = &self.under_way;
        let is_wanted = |chunk: &Chunk| !is_there(*chunk) && !under_way.contains(chunk);
        let found = in_turn(&mut self.clients, self.last, |queue| {
            queue.demands.iter().copied().find(is_wanted)
        });
        let found = found.or_else(|| {
            let next = |queue: &mut ClientQueue| loop {
                let chunk = queue.ahead.pop_front()?;
                if is_wanted(&chunk) {
                    return Some(chunk);
                }
            };
            let ahead = takes_ahead.then(|| in_turn(&mut self.clients, self.last, next));
            ahead.flatten()
        });
        let (client, chunk) = found?;
        self.last = client;
        self.under_way.push(chunk);
        Some(chunk)
    }

    /// A fetch has ended; `wake` is called with each client whose faults wait for the chunk. Nothing is read ahead of a
    /// store that fails.
    pub fn end(&mut self, chunk: Chunk, is_there: bool, mut wake: impl FnMut(u64)) {
        self.under_way.retain(|it| *it != chunk);
        for (client, queue) in &mut self.clients {
            if !is_there {
                queue.ahead.clear();
            }
            let Some(at) = queue.demands.iter().position(|it| *it == chunk) else {
                continue;
            };
            queue.demands.remove(at);
            if !is_there && queue.failed.len() < DEMANDS {
                queue.failed.push(chunk);
            }
            wake(*client);
        }
    }
}

/// What the first client after `last`, in a circle, has.
fn in_turn<T>(
    clients: &mut BTreeMap<u64, ClientQueue>,
    last: u64,
    mut next: impl FnMut(&mut ClientQueue) -> Option<T>,
) -> Option<(u64, T)> {
    let mut find = |(client, queue): (&u64, &mut ClientQueue)| Some((*client, next(queue)?));
    let after = clients
        .range_mut(last.saturating_add(1)..)
        .find_map(&mut find);
    after.or_else(|| clients.range_mut(..=last).find_map(find))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queue(clients: u64) -> FetchQueue {
        let mut queue = FetchQueue::default();
        (1..=clients).for_each(|client| queue.add(client));
        queue
    }

    #[test]
    fn clients_take_turns() {
        let mut queue = queue(2);
        for chunk in 0..8 {
            queue.demand(1, chunk);
        }
        queue.demand(2, 100);
        let order: Vec<_> = (0..3).filter_map(|_| queue.take(true, |_| false)).collect();
        assert_eq!(order, [0, 100, 1]);
    }

    #[test]
    fn a_fault_goes_before_what_is_read_ahead() {
        let mut queue = queue(2);
        queue.read_ahead(1, 0..8);
        assert_eq!(queue.take(false, |_| false), None);
        assert_eq!(queue.take(true, |_| false), Some(0));
        queue.demand(2, 5);
        assert_eq!(queue.take(true, |_| false), Some(5));
        let rest: Vec<_> = std::iter::from_fn(|| queue.take(true, |chunk| chunk == 2)).collect();
        assert_eq!(rest, [1, 3, 4, 6, 7], "each once");
    }

    #[test]
    fn a_failure_reaches_each_that_waits() {
        let mut queue = queue(3);
        assert_eq!(queue.demand(1, 7), Demand::Pending);
        assert_eq!(queue.demand(2, 7), Demand::Pending);
        assert_eq!(queue.take(true, |_| false), Some(7));
        let mut woken = Vec::new();
        queue.end(7, false, |client| woken.push(client));
        assert_eq!(woken, [1, 2]);
        assert_eq!(queue.demand(1, 7), Demand::Failed);
        assert_eq!(queue.demand(1, 7), Demand::Failed, "for another fault");
        assert_eq!(queue.demand(3, 7), Demand::Pending, "it did not wait");
        queue.forget_failures(1);
        assert_eq!(queue.demand(1, 7), Demand::Pending, "tried again");
        assert_eq!(queue.take(true, |_| false), Some(7));
        assert_eq!(queue.demand(2, 7), Demand::Failed);
    }

    proptest! {
        /// Whatever is demanded is fetched, each chunk by one fetch at a time, and no client waits for more than a
        /// fetch of each other client before one of its own begins.
        #[test]
        fn each_demand_is_met_in_turn(
            demands in proptest::collection::vec((1..5u64, 0..40u32), 1..200),
        ) {
            let mut queue = queue(4);
            let mut waiting: BTreeMap<u64, Vec<Chunk>> = BTreeMap::new();
            for (client, chunk) in demands {
                queue.demand(client, chunk);
                let of = waiting.entry(client).or_default();
                if !of.contains(&chunk) {
                    of.push(chunk);
                }
            }
            let mut there: Vec<Chunk> = Vec::new();
            let mut passed: BTreeMap<u64, usize> = BTreeMap::new();
            while let Some(chunk) = queue.take(true, |chunk| there.contains(&chunk)) {
                prop_assert!(!there.contains(&chunk));
                for (client, of) in &waiting {
                    if of.is_empty() {
                        continue;
                    }
                    let passed = passed.entry(*client).or_default();
                    *passed = match of.contains(&chunk) {
                        true => 0,
                        false => *passed + 1,
                    };
                    prop_assert!(*passed < 4, "client {client} is passed over");
                }
                there.push(chunk);
                queue.end(chunk, true, |client| {
                    waiting.get_mut(&client).unwrap().retain(|it| *it != chunk);
                });
            }
            prop_assert!(waiting.values().all(Vec::is_empty));
        }
    }
}
