//! Requests that wait for the disk.

use crate::connection::ConnectionId;
use disk::atropos::InFlightId;
use disk::time::Time;
use remote_policy::identity::Incarnation;
use remote_wire::Header;

/// Most requests that wait: more wait in their connections.
const PENDING: usize = 256;

/// The number of operations that no request waits for.
pub(crate) const UNASKED: u32 = (1 << 31) - 1;

/// A request whose pages are on their way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRequest {
    pub connection: ConnectionId,
    pub client: Incarnation,
    pub header: Header,
    /// Its place in the schedule, and when it began there.
    pub ticket: InFlightId,
    pub started: Time,
    /// When it arrived, in nanoseconds of the server's clock.
    pub arrived: u64,
    /// Operations of its own in flight.
    pub outstanding: u32,
    /// One of them failed.
    pub has_failed: bool,
}

/// All requests that wait, each with a number.
pub(crate) struct PendingTable {
    slots: Vec<Option<PendingRequest>>,
    free: Vec<u32>,
}

impl PendingTable {
    pub fn new() -> Self {
        Self {
            slots: vec![None; PENDING],
            free: (0..PENDING as u32).rev().collect(),
        }
    }

    /// Returns true if another request can wait.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// The number that the next request gets, if there is room.
    pub fn next_number(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Adds a request under [`PendingTable::next_number`].
    pub fn insert(&mut self, request: PendingRequest) {
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = Some(request);
        }
    }

    /// The request of that number.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut PendingRequest> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    /// Removes a request.
    pub fn remove(&mut self, number: u32) -> Option<PendingRequest> {
        let request = self.slots.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(request)
    }

    /// Numbers that requests may have.
    pub fn numbers(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }
}
