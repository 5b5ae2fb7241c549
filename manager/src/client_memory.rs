//! How a client's pages can be reached from outside.

use crate::memory_object::DataReply;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use translation::{ForeignUserfault, MapError, Wake};
use wired::{PAGE, WiredMemory};

/// f_type of tmpfs, from magic.h.
const TMPFS: u64 = 0x0102_1994;

/// The kinds of memory.
pub enum ClientMemory {
    /// Private anonymous memory: pages are copied in and cannot be taken out.
    Private,
    /// A memfd of the client's own, mapped shared and handed over, laid out as the snapshot is: a hole
    /// punched into it takes pages out.
    Memfd(OwnedFd),
    /// A private mapping of the cache that all clones of the snapshot map: clean pages are mapped
    /// from it, and a store gives the client a copy of its own.
    Cache(Arc<SharedCache>),
}

/// The pages of a snapshot that any clone has used, as a file in memory.
#[derive(Debug)]
pub struct SharedCache {
    file: OwnedFd,
}

impl SharedCache {
    /// Makes the cache at `path`, in tmpfs, of the snapshot's size: with holes for what no clone has
    /// used. Clones open it for reading; an older one is replaced.
    pub fn create(path: &Path, bytes: u64) -> Result<Self, Errno> {
        let _ = rustix::fs::unlink(path);
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, how, Mode::RUSR | Mode::RGRP)?;
        if rustix::fs::fstatfs(&file)?.f_type as u64 != TMPFS {
            let _ = rustix::fs::unlink(path);
            return Err(Errno::OPNOTSUPP);
        }
        rustix::fs::ftruncate(&file, bytes)?;
        Ok(Self { file })
    }

    /// Its file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Puts contents into the cache. Two clients that do so at once write the same bytes.
    fn fill(&self, offset: u64, contents: *const u8, len: usize) -> Result<(), Errno> {
        // SAFETY: the snapshot's mapping, which lives as long as the client; only the kernel reads it.
        let contents = unsafe { std::slice::from_raw_parts(contents, len) };
        match rustix::io::pwrite(&self.file, contents, offset)? {
            written if written == len => Ok(()),
            _ => Err(Errno::IO),
        }
    }
}

impl ClientMemory {
    /// Returns true if pages can be taken out.
    pub fn can_evict(&self) -> bool {
        matches!(self, Self::Memfd(_))
    }

    /// Returns true if neighbouring pages can be copied in by one call.
    pub fn copies_runs(&self) -> bool {
        !matches!(self, Self::Cache(_))
    }

    /// Gives the missing page at `addr` its contents, and wakes the threads that wait for it.
    /// `offset` is the page's in the snapshot if the contents are the snapshot's.
    pub fn place(
        &self,
        uffd: &ForeignUserfault,
        addr: usize,
        contents: DataReply,
        origin_offset: Option<u64>,
        zeros: &WiredMemory,
    ) -> Result<(), MapError> {
        let len = zeros.len();
        let userfault = uffd.userfault();
        match (self, contents, origin_offset) {
            (Self::Cache(cache), DataReply::Provided(from), Some(offset)) => {
                cache.fill(offset, from, len).map_err(MapError::Other)?;
                uffd.map_cached(addr, len)
            }
            (_, DataReply::Provided(from), _) => userfault.copy(addr, from, len, Wake::Yes),
            // Huge pages have no page of zeros to share.
            _ if len > PAGE => userfault.copy(addr, zeros.as_ptr(), len, Wake::Yes),
            _ => userfault.zero(addr, len, Wake::Yes),
        }
    }

    /// Reads pages of the client's memfd into `len` bytes at `into`. What a client truncated reads as an error, not a signal.
    pub fn read(&self, offset: u64, into: *mut u8, len: usize) -> Result<(), Errno> {
        let Self::Memfd(file) = self else {
            return Err(Errno::OPNOTSUPP);
        };
        // SAFETY: the caller's buffer of `len` bytes.
        let into = unsafe { std::slice::from_raw_parts_mut(into, len) };
        match rustix::io::pread(file, into, offset)? {
            read if read == len => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    /// Takes pages out of the client's memory; their contents are gone from it.
    pub fn punch(&self, offset: u64, len: usize) -> Result<(), Errno> {
        let Self::Memfd(file) = self else {
            return Err(Errno::OPNOTSUPP);
        };
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, how, offset, len as u64)
    }
}
