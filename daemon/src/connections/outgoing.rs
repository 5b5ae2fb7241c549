//! Events to peers, and the peers that do not read.
//!
//! A socket's queue has room for some hundreds of events. Rule: the daemon does not block on a peer
//! whose queue is full, and no event without which a tenant would wait for ever is lost: it is sent
//! when the tenant reads again. A tenant that leaves [`MAX_UNSENT`] events unread loses the rest.

use super::{Connection, Connections};
use crate::refusal::Refusal;
use host::seqpacket;
use protocol::{DaemonEvent, encode};
use rustix::event::epoll;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SendFlags;

/// Events that are kept for a tenant: as many as a tenant with all channels that it may have can
/// cause by closing them.
const MAX_UNSENT: usize = 4096;

impl Connections {
    /// Sends an event. Returns true if it was queued. The event is lost to a peer that does not read;
    /// once it has read, its connection is served, and [`Connections::take_writable`] returns true.
    pub fn send(&self, token: u64, event: &DaemonEvent, fds: &[BorrowedFd<'_>]) -> bool {
        self.send_now(token, event, fds).is_ok()
    }

    /// Sends an event.
    ///
    /// # Errors
    /// EAGAIN where the peer does not read, as for [`Connections::send`]; the kernel's error otherwise.
    pub fn send_now(
        &self,
        token: u64,
        event: &DaemonEvent,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let connection = self.get(token).ok_or(Errno::NOTCONN)?;
        let bytes = encode(event).map_err(|_| Errno::MSGSIZE)?;
        self.try_send(token, connection, &bytes, fds)
    }

    /// Sends an event, or keeps it until the tenant reads.
    pub fn post(&self, token: u64, event: &DaemonEvent) {
        let (Some(connection), Ok(bytes)) = (self.get(token), encode(event)) else {
            return;
        };
        let mut unsent = connection.unsent.borrow_mut();
        let is_full = !unsent.is_empty()
            || self.try_send(token, connection, &bytes, &[]) == Err(Errno::AGAIN);
        if is_full && connection.tenant.is_some() && unsent.len() < MAX_UNSENT {
            unsent.push_back(bytes);
        }
    }

    /// Returns true while an event that did not fit waits for the peer to read.
    pub fn is_full(&self, token: u64) -> bool {
        self.get(token).is_some_and(|c| c.is_full.get())
    }

    /// Sends the reason, and closes a connection that is not accepted.
    pub(super) fn reject(&self, fd: OwnedFd, why: &Refusal) {
        if let Ok(bytes) = encode(&DaemonEvent::Refused(why.to_string())) {
            let _ = seqpacket::send(&fd, &bytes, &[], SendFlags::DONTWAIT);
        }
        self.close_socket(fd);
    }

    /// Refuses a request.
    pub fn refuse(&self, token: u64, why: impl std::fmt::Display) {
        let why = protocol::cut(&why.to_string(), protocol::TEXT);
        self.post(token, &DaemonEvent::Refused(why));
    }

    /// Refuses a channel.
    pub fn refuse_channel(&self, token: u64, cookie: u64, why: &Refusal) {
        let why = protocol::cut(&why.to_string(), protocol::TEXT);
        self.post(token, &DaemonEvent::NotOpened { cookie, why });
    }

    /// Sends the events that were kept for a peer. Returns true if an event did not fit since the last call and no
    /// event is kept any more: the caller can send again what it did not keep here.
    pub fn take_writable(&self, token: u64) -> bool {
        let full = |connection: &&Connection| connection.is_full.replace(false);
        let Some(connection) = self.get(token).filter(full) else {
            return false;
        };
        self.poll_again(token, connection);
        let mut unsent = connection.unsent.borrow_mut();
        while let Some(bytes) = unsent.front() {
            if self.try_send(token, connection, bytes, &[]) == Err(Errno::AGAIN) {
                return false;
            }
            unsent.pop_front();
        }
        true
    }

    fn try_send(
        &self,
        token: u64,
        connection: &Connection,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let sent = seqpacket::try_send(&connection.fd, bytes, fds, SendFlags::DONTWAIT);
        if sent == Err(Errno::AGAIN) && !connection.is_full.replace(true) {
            self.poll_again(token, connection);
        }
        sent
    }

    pub(super) fn poll_again(&self, token: u64, connection: &Connection) {
        self.repoll(&connection.fd, token, connection.polled_events());
    }

    /// Polls a descriptor for other events.
    pub fn repoll(&self, fd: &OwnedFd, token: u64, flags: epoll::EventFlags) {
        for set in [&self.epoll, &self.unidentified] {
            // It is in one of the sets; the other call fails.
            let _ = epoll::modify(set, fd, epoll::EventData::new_u64(token), flags);
        }
    }
}
