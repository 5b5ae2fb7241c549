//! The schedule of the clients' transactions with the disk that their stores are on.
//!
//! Atropos (*Self-Paging in the Nemesis Operating System*, section 6.7) decides; each client's handler thread
//! waits here for its own turn and then makes the transaction itself. So a client that pages hard
//! uses its own share, and no queue orders the faults of all clients by their arrival.
//!
//! Rule: no allocation once a client is admitted, and the lock is held for a decision, never for a
//! transaction.

use disk::atropos::{
    AdmissionError, Atropos, ClientId, Decision, DiskContract, InFlightId, TransactionDesc,
    Utilization,
};
use disk::cost_model::{Op, OpCost};
use disk::time::{Nanos, Time};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The model's costs before correction by what is observed: those of a slow solid-state disk.
const COST: OpCost = OpCost {
    base: Nanos::micros(50),
    per_kib: Nanos::micros(1),
};
/// Modelled cost in flight: some 16 single pages.
const BOUND: Nanos = Nanos::millis(1);
/// The share of the disk's time that contracts may have together, in percent.
const CAPACITY: u64 = 95;

/// The disk's schedule, shared by all clients.
#[derive(Clone)]
pub struct DiskTurns {
    shared: Arc<Schedule>,
}

struct Schedule {
    state: Mutex<TurnState>,
    granted: Condvar,
    begin: Instant,
}

struct TurnState {
    atropos: Atropos<()>,
    /// By the client's tag: the turn that it was granted and has not taken.
    grants: Vec<Option<InFlightId>>,
    free: Vec<usize>,
}

/// One client's place in the schedule.
pub struct DiskClient {
    turns: DiskTurns,
    id: ClientId,
    tag: usize,
}

impl Default for DiskTurns {
    fn default() -> Self {
        let state = TurnState {
            atropos: Atropos::new(Utilization::percent(CAPACITY), BOUND, ()),
            grants: Vec::new(),
            free: Vec::new(),
        };
        Self {
            shared: Arc::new(Schedule {
                state: Mutex::new(state),
                granted: Condvar::new(),
                begin: Instant::now(),
            }),
        }
    }
}

impl DiskTurns {
    /// Admits a client under a contract, or refuses it because the disk's time is promised.
    pub fn admit(&self, contract: DiskContract) -> Result<DiskClient, AdmissionError> {
        let mut state = self.lock();
        let id = state.atropos.admit(self.now(), contract)?;
        let tag = state.free.pop().unwrap_or(state.grants.len());
        if tag == state.grants.len() {
            state.grants.push(None);
        }
        Ok(DiskClient {
            turns: self.clone(),
            id,
            tag,
        })
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time(self.shared.begin.elapsed().as_nanos() as u64)
    }

    /// Grants the turns that are due. Returns when the schedule is to be asked again.
    fn dispatch(&self, state: &mut TurnState) -> Option<Time> {
        loop {
            match state.atropos.next(self.now()) {
                Decision::Dispatch(start) => {
                    state.grants[start.job.tag as usize] = Some(start.ticket);
                    self.shared.granted.notify_all();
                }
                Decision::WaitUntil(at) | Decision::Full(at) => return Some(at),
                Decision::Idle => return None,
            }
        }
    }
}

impl DiskClient {
    /// Waits for the client's turn, makes the transaction, and charges the client for it.
    pub fn transact<T>(&self, op: Op, bytes: u32, transaction: impl FnOnce() -> T) -> T {
        let ticket = self.wait(op, bytes);
        let start = Instant::now();
        let outcome = transaction();
        let elapsed = Nanos::from(start.elapsed());
        let mut state = self.turns.lock();
        state.atropos.complete(self.turns.now(), ticket, elapsed);
        self.turns.dispatch(&mut state);
        outcome
    }

    fn wait(&self, op: Op, bytes: u32) -> InFlightId {
        let job = TransactionDesc {
            op,
            bytes,
            cost: COST.cost(bytes),
            tag: self.tag as u64,
        };
        let mut state = self.turns.lock();
        let now = self.turns.now();
        state.atropos.submit(now, self.id, job);
        loop {
            let due = self.turns.dispatch(&mut state);
            if let Some(ticket) = state.grants[self.tag].take() {
                return ticket;
            }
            let wait = due.map_or(Duration::from_millis(100), |due| {
                Duration::from_nanos(due.0.saturating_sub(self.turns.now().0).max(1))
            });
            let granted = &self.turns.shared.granted;
            state = match granted.wait_timeout(state, wait) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Drop for DiskClient {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        let now = self.turns.now();
        state.atropos.remove(now, self.id);
        state.grants[self.tag] = None;
        let tag = self.tag;
        state.free.push(tag);
        self.turns.dispatch(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    fn contract(slice: u64, extra: bool) -> DiskContract {
        DiskContract {
            period: Nanos::millis(100),
            slice: Nanos::millis(slice),
            extra,
            laxity: Nanos::ZERO,
        }
    }

    #[test]
    fn more_than_the_disk_does_is_refused() {
        let turns = DiskTurns::default();
        let first = turns.admit(contract(90, false)).unwrap();
        assert!(turns.admit(contract(10, false)).is_err());
        drop(first);
        assert!(turns.admit(contract(10, false)).is_ok());
    }

    #[test]
    fn a_client_on_slack_alone_is_served() {
        let client = DiskTurns::default().admit(contract(0, true)).unwrap();
        let served = (0..100)
            .map(|n| client.transact(Op::Read, 4096, || n))
            .sum::<u32>();
        assert_eq!(served, 4950);
    }

    #[test]
    fn clients_are_served_in_proportion_to_their_contracts() {
        let turns = DiskTurns::default();
        let stop = Arc::new(AtomicBool::new(false));
        let counts: Vec<Arc<AtomicU64>> = (0..2).map(|_| Arc::default()).collect();
        let threads: Vec<_> = [60, 20]
            .into_iter()
            .zip(&counts)
            .map(|(slice, count)| {
                let client = turns.admit(contract(slice, false)).unwrap();
                let (stop, count) = (stop.clone(), count.clone());
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        client.transact(Op::Write, 1 << 20, || {
                            std::thread::sleep(Duration::from_millis(1));
                        });
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(3));
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|it| it.join().unwrap());
        let [many, few] = [0, 1].map(|n| counts[n].load(Ordering::Relaxed));
        // A guard against first come, first served (1 to 1), not a measurement.
        assert!(many as f64 > 1.5 * few as f64, "{many} and {few}");
        assert!(few > 0);
    }
}
