//! Requests on their way to the daemon: one for which the connection has no room waits, since the daemon may be
//! stopped, or busy, for any time.

use super::Session;
use crate::connection;
use protocol::TenantRequest;
use rate::Reservation;
use rustix::io::Errno;

impl Session {
    /// Reports the measured cost of a fault, in nanoseconds of processor time.
    pub fn fault_unit(&mut self, unit: u64) {
        // Dropped while requests wait: the cost is measured, and sent, again.
        if self.faults.is_some() && self.unsent.is_empty() {
            self.send(TenantRequest::FaultUnit(unit));
        }
    }

    /// Sends a request, once there is room for it. One that a daemon which has just ended does not receive
    /// is sent to its successor.
    pub(super) fn send(&mut self, request: TenantRequest) {
        if self.connection.is_some() {
            self.unsent.push_back(request);
            self.send_waiting();
        }
    }

    pub(super) fn send_waiting(&mut self) {
        while let (Some(connection), Some(request)) = (&self.connection, self.unsent.front())
            && connection::try_send(connection, request) != Err(Errno::AGAIN)
        {
            self.unsent.pop_front();
        }
    }
}

/// A request for a share of the faults.
pub(super) fn faults(reservation: Option<Reservation>, known: bool) -> TenantRequest {
    TenantRequest::Faults {
        reservation: reservation.map(|r| (r.runtime(), r.period())),
        known,
    }
}
