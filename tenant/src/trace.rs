//! The disk scheduler's trace, handed over as memory: what figures 7 to 9 of the paper plot.

use crate::{TenantError, reach, send};
use disk::trace::TraceBatch;
use host::seqpacket;
use protocol::{DaemonEvent, TenantRequest, decode, disk_trace};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::path::Path;

/// A way to the trace of a daemon that runs.
pub struct Tracer {
    connection: OwnedFd,
    next: u64,
}

impl Tracer {
    /// Of the daemon at a socket. What it did before counts too, as far as it remembers, from
    /// event number `from`.
    pub fn open(path: &Path, from: u64) -> Result<Self, TenantError> {
        Ok(Self {
            connection: reach(path)?,
            next: from,
        })
    }

    /// What the scheduler did since this was last asked.
    pub fn read(&mut self) -> Result<TraceBatch, TenantError> {
        let ask = TenantRequest::Trace { from: self.next };
        send(&self.connection, &ask, &[]).map_err(TenantError::Silent)?;
        let mut message = seqpacket::receive(&self.connection, RecvFlags::empty())
            .map_err(TenantError::Silent)?;
        match decode::<DaemonEvent>(message.as_slice()) {
            Some(DaemonEvent::Trace) => {
                let memory = message.fds[0]
                    .take()
                    .ok_or(TenantError::Silent(Errno::MFILE))?;
                let seen = disk_trace::read(memory).map_err(|_| TenantError::Silent(Errno::IO))?;
                self.next = seen.next;
                Ok(seen)
            }
            Some(DaemonEvent::Refused(why)) => Err(TenantError::Refused(why)),
            _ if message.len == 0 => Err(TenantError::Silent(Errno::PIPE)),
            _ => Err(TenantError::OtherBuild),
        }
    }
}
