//! A file of the caller's, read in disk time that a contract reserves.
//!
//! The file-system client of *Self-Paging in the Nemesis Operating System*, section 7.3: it
//! has a share of the disk beside clients that page, and keeps many requests in flight.

use crate::{TenantError, connect, exchange};
pub use iochannel::MAX_RUN;
use iochannel::{ChannelClient, ChannelError, IoVec};
use protocol::contract_spec::DiskSpec;
use protocol::{NAME, TenantRequest, cut};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use wired::{PAGE, WiredMemory};

/// Why a file cannot be used under a contract.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The daemon, or the request for the contract.
    #[error(transparent)]
    Session(#[from] TenantError),
    /// The IO channel cannot be attached.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The disk, memory, or descriptors.
    #[error("{what}: {errno}")]
    Io {
        /// What failed.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

/// A file under a contract of its own. The contract ends when this is dropped, or when the daemon
/// ends.
pub struct ReservedFile {
    channel: ChannelClient,
    memory: WiredMemory,
    pieces: Vec<Vec<IoVec>>,
    size: u64,
    _connection: OwnedFd,
}

/// A completed request.
pub struct IoCompletion<'a> {
    /// The request's slot, as [`ReservedFile::read`] was given it.
    pub slot: usize,
    /// The bytes; fewer than requested at the end of the file.
    pub data: &'a [u8],
}

impl ReservedFile {
    /// Requests disk time for `file` from the daemon at `socket`, with `depth` requests at a time
    /// of up to `pages` pages each ([`MAX_RUN`] at most).
    pub fn open(
        socket: &Path,
        name: &str,
        file: &File,
        disk: DiskSpec,
        depth: usize,
        pages: usize,
    ) -> Result<Self, FileError> {
        let io = |what| move |errno| FileError::Io { what, errno };
        let connection = connect(socket)?;
        let (depth, pages) = (depth.max(1), pages.clamp(1, MAX_RUN));
        let file_request = TenantRequest::File {
            name: cut(name, NAME),
            disk,
        };
        let (_, [doorbell, ..]) = exchange(&connection, &file_request, &[file.as_fd()])?;
        let open = TenantRequest::Open {
            depth: depth.min(u16::MAX.into()) as u16,
            cookie: 0,
        };
        let (_, [memory, bell, _]) = exchange(&connection, &open, &[])?;
        let no_descriptor =
            || io("no descriptor is free to receive a channel: raise `ulimit -n`")(Errno::MFILE);
        let [memory, doorbell, bell] =
            [memory, doorbell, bell].map(|fd| fd.ok_or_else(no_descriptor));
        let mut channel = ChannelClient::attach(memory?, doorbell?, bell?)?;
        // The next daemon does not take the contract over.
        channel.fail_without(Arc::default());
        let depth = depth.min(channel.slots());
        let memory =
            WiredMemory::private(depth * pages * PAGE).map_err(io("no memory for pages"))?;
        let piece = |slot: usize, at: usize| {
            IoVec::page(memory.as_ptr().wrapping_add((slot * pages + at) * PAGE))
        };
        let size = file.metadata().map_or(0, |meta| meta.len());
        Ok(Self {
            pieces: (0..depth)
                .map(|slot| (0..pages).map(|at| piece(slot, at)).collect())
                .collect(),
            channel,
            memory,
            size,
            _connection: connection,
        })
    }

    /// Requests at a time.
    pub fn depth(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Starts a read of request `slot`, which is not in flight, from `offset`, a multiple of
    /// the page size.
    pub fn read(&mut self, slot: usize, offset: u64) {
        let pieces = &self.pieces[slot];
        // SAFETY: the pieces lie in memory that this file owns, and stay until the request is complete.
        unsafe { self.channel.begin(slot, false, pieces, offset) };
        self.channel.flush();
    }

    /// Waits for a request to complete. Returns `None` when no request is in flight.
    pub fn wait(&mut self) -> Option<Result<IoCompletion<'_>, FileError>> {
        let (slot, result) = self.channel.reap(true)?;
        if result < 0 {
            let errno = Errno::from_raw_os_error(-result);
            let what = match errno {
                Errno::PIPE => "the daemon has ended, and this contract with it",
                _ => "the disk failed to read the file",
            };
            return Some(Err(FileError::Io { what, errno }));
        }
        let capacity = self.pieces[slot].len() * PAGE;
        let start = slot * capacity;
        // SAFETY: the request is complete, so the disk's thread writes there only after it is started
        // again, which takes this file mutably.
        let data = unsafe {
            let at = self.memory.as_ptr().add(start);
            std::slice::from_raw_parts(at, (result as usize).min(capacity))
        };
        Some(Ok(IoCompletion { slot, data }))
    }
}
