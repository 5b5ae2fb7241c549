//! Requests on their way to the daemon. A request for which the connection has no room waits in a queue: a daemon may
//! be stopped or busy for any time, and the session must not block on it.

use crate::connection;
use protocol::TenantRequest;
use rate::Reservation;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;

/// Requests that wait for room, in the order of their sending.
#[derive(Default)]
pub(super) struct RequestQueue(VecDeque<TenantRequest>);

impl RequestQueue {
    /// Returns true if no request waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops the requests of a connection that has ended.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Sends a request once there is room for it. Without a connection it is dropped: the session repeats what is
    /// pending to the next daemon.
    pub fn send(&mut self, connection: Option<&OwnedFd>, request: TenantRequest) {
        if connection.is_some() {
            self.0.push_back(request);
            self.flush(connection);
        }
    }

    /// Sends the requests for which there is room now, in the connection and in the kernel's memory.
    pub fn flush(&mut self, connection: Option<&OwnedFd>) {
        while let (Some(connection), Some(request)) = (connection, self.0.front()) {
            let sent = connection::try_send(connection, request, &[]);
            if matches!(sent, Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)) {
                return;
            }
            self.0.pop_front();
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
