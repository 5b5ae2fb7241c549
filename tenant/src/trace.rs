//! The disk scheduler's trace, handed over as memory: what figures 7 to 9 of the paper plot.

use crate::TenantError;
use crate::connection::{connect, exchange};
use disk::trace::TraceBatch;
use protocol::{DaemonEvent, TenantRequest, disk_trace};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::path::Path;

/// Reads the trace of a running daemon.
pub struct Tracer {
    connection: OwnedFd,
    next: u64,
}

impl Tracer {
    /// Opens the trace of the daemon at the socket `path`, as far back as its ring holds it, from
    /// event number `from`.
    pub fn open(path: &Path, from: u64) -> Result<Self, TenantError> {
        Ok(Self {
            connection: connect(path)?,
            next: from,
        })
    }

    /// Returns the events since the last call.
    pub fn read(&mut self) -> Result<TraceBatch, TenantError> {
        let request = TenantRequest::Trace { from: self.next };
        let (DaemonEvent::Trace, [memory, ..]) = exchange(&self.connection, &request, &[])? else {
            return Err(TenantError::OtherBuild);
        };
        let memory = memory.ok_or(TenantError::NoDescriptor)?;
        let batch = disk_trace::read(memory).map_err(|_| TenantError::Silent(Errno::IO))?;
        self.next = batch.next;
        Ok(batch)
    }
}
