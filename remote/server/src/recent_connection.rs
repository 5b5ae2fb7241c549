//! The connection that was served last, whose next request is the likeliest to come.
//!
//! Rule: every few probes the other connections have their turn.

use crate::connection::{Connection, ConnectionId};
use crate::connection_table::ConnectionTable;
use disk::time::Time;

/// Of so many probes all but one are of this connection.
const PROBES: u32 = 4;

/// Which it is, and how often it was probed alone.
#[derive(Default)]
pub(crate) struct RecentConnection {
    id: Option<ConnectionId>,
    probes: u32,
}

impl RecentConnection {
    /// A connection was served.
    pub fn set(&mut self, id: ConnectionId) {
        self.id = Some(id);
    }

    /// Reads from the connection. Returns true if a request has come, whose turn it then is.
    pub fn probe(&mut self, connections: &mut ConnectionTable, now: Time) -> bool {
        self.probes = (self.probes + 1) % PROBES;
        if self.probes == 0 {
            return false;
        }
        let Some(id) = self.id else {
            return false;
        };
        let Some(connection) = connections.find(id) else {
            return false;
        };
        let is_there = |connection: &mut Connection| {
            // What is no frame is looked at like one, and closes the connection.
            !matches!(connection.reader.peek_frame(), Ok(None))
        };
        // A request that is there waits for its turn, for room or for the disk: not for a probe.
        if is_there(connection) {
            return false;
        }
        // The next wait for events finds an end or a failure, too.
        let _ = connection.fill();
        let has_come = is_there(connection);
        if has_come {
            connection.arrived = now.0;
            connections.activate(id.slot);
        }
        has_come
    }
}
