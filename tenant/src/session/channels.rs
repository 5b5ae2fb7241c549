//! The channels of a session, which outlive the daemon that made them.

use super::Session;
use crate::connection;
use host::seqpacket::Received;
use protocol::{ChannelNumber, TenantRequest};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;
use std::time::{Duration, Instant};

/// Pause between two attempts to hand over the channels that a daemon has no room for.
pub(super) const REATTACH_PAUSE: Duration = Duration::from_millis(100);

/// A channel's descriptors, kept for a daemon that is started again.
pub(super) struct KeptChannel {
    pub memory: OwnedFd,
    /// The daemon's end of what is rung for the client.
    pub server_bell: OwnedFd,
}

impl Session {
    /// Keeps a channel's memory and the daemon's end of its bell for the next daemon;
    /// returns the memory and the client's end.
    pub(super) fn keep_channel(
        &mut self,
        channel: ChannelNumber,
        message: &mut Received,
    ) -> Option<(OwnedFd, OwnedFd)> {
        let [memory, bell, server_bell, ..] = &mut message.fds;
        let (memory, bell, server_bell) = (memory.take()?, bell.take()?, server_bell.take()?);
        let copy = io::fcntl_dupfd_cloexec(&memory, 0).ok()?;
        let held = KeptChannel {
            memory: copy,
            server_bell,
        };
        self.channels.insert(channel, held);
        Some((memory, bell))
    }

    /// Forgets a channel of which nothing is under way.
    pub(super) fn drop_channel(&mut self, channel: ChannelNumber) {
        self.channels.remove(&channel);
        self.closing.retain(|closing| *closing != channel);
    }

    /// Hands over again the channels that the daemon had no room for, when it is time.
    pub(super) fn reattach(&mut self) {
        let (numbers, since) = &mut self.unattached;
        let Some(connection) = &self.connection else {
            return numbers.clear();
        };
        if since.elapsed() < REATTACH_PAUSE {
            return;
        }
        *since = Instant::now();
        numbers.retain(|number| {
            let Some(kept) = self.channels.get(number) else {
                return false;
            };
            let fds = [kept.memory.as_fd(), kept.server_bell.as_fd()];
            let request = TenantRequest::Channel(*number);
            connection::try_send(connection, &request, &fds).is_err()
        });
    }
}
