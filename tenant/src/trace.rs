//! The disk scheduler's trace, handed over as memory: what figures 7 to 9 of the paper plot.

use crate::TenantError;
use crate::connection::{converse, reach};
use disk::trace::TraceBatch;
use protocol::{DaemonEvent, TenantRequest, disk_trace};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
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
        let (DaemonEvent::Trace, [memory, ..]) = converse(&self.connection, &ask, &[])? else {
            return Err(TenantError::OtherBuild);
        };
        let memory = memory.ok_or(TenantError::NoDescriptor)?;
        let seen = disk_trace::read(memory).map_err(|_| TenantError::Silent(Errno::IO))?;
        self.next = seen.next;
        Ok(seen)
    }
}
