//! The mapped stretch driver: a file's bytes, read when touched, written back when taken
//! or flushed.
//!
//! # Coherence with other users of the file
//! A page shows the file as it was when the page came in. What the program writes reaches the
//! file when the page is evicted, when [`crate::Stretch::flush`] is called and when the
//! stretch is freed; from then on every reader of the file sees it. A change by another
//! user of the file to a resident page is not seen until the page was evicted and comes back;
//! if the program wrote the page meanwhile, its whole page replaces that change. Two stretches
//! that map the same file are coherent only in this way. The file's length does not change:
//! bytes past its end read as zero and are not written.
//!
//! Whether a page was written is found by its checksum, as for stored pages.

use super::{CleanOutcome, MappedError, StretchDriver};
use crate::fault_outcome::{FaultError, FillOutcome};
use crate::page::State;
use crate::page_in::Activation;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use store::{Checksum, StoreError};
use wired::{PAGE, WiredMemory};

/// Backs a stretch with a file.
pub struct Mapped {
    file: OwnedFd,
    /// Where in the file the stretch begins, in bytes.
    offset: u64,
    /// The file's length when it was mapped, in bytes.
    length: u64,
    writeable: bool,
    /// Two words a page: the checksum of its bytes in the file when it came in.
    sums: WiredMemory,
    pages: usize,
}

impl Mapped {
    /// Maps `pages` pages of a regular file from byte `offset` on. The descriptor is duplicated. A
    /// stretch that is bound to a driver that is not `writeable` loses its write right.
    ///
    /// # Errors
    /// [`MappedError`] names what the file or its descriptor lacks.
    pub fn new(
        file: impl AsFd,
        offset: u64,
        pages: usize,
        writeable: bool,
    ) -> Result<Self, MappedError> {
        if !offset.is_multiple_of(PAGE as u64) {
            return Err(MappedError::Offset(offset));
        }
        if pages == 0 {
            return Err(MappedError::NoPages);
        }
        let file = rustix::io::fcntl_dupfd_cloexec(file, 3)?;
        check_access(rustix::fs::fcntl_getfl(&file)?, writeable)?;
        let found = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(MappedError::NotRegular);
        }
        let length = u64::try_from(found.st_size).map_err(|_| Errno::INVAL)?;
        Ok(Self {
            file,
            offset,
            length,
            writeable,
            sums: WiredMemory::private(pages * 16)?,
            pages,
        })
    }

    fn sum(&self, page: usize) -> &[AtomicU64] {
        self.sums.slice(page * 16, 2)
    }

    fn set_sum(&self, page: usize, contents: &[u8; PAGE]) {
        let sum = Checksum::of(contents).0;
        self.sum(page)[0].store(sum as u64, Ordering::Relaxed);
        self.sum(page)[1].store((sum >> 64) as u64, Ordering::Relaxed);
    }

    fn same(&self, page: usize, contents: &[u8; PAGE]) -> bool {
        let sum = Checksum::of(contents).0;
        self.sum(page)[0].load(Ordering::Relaxed) == sum as u64
            && self.sum(page)[1].load(Ordering::Relaxed) == (sum >> 64) as u64
    }

    /// Bytes of the page that the file has.
    fn bytes_of(&self, page: usize) -> usize {
        let start = self.offset + (page * PAGE) as u64;
        self.length.saturating_sub(start).min(PAGE as u64) as usize
    }

    fn read(&self, page: usize, into: &mut [u8; PAGE]) -> rustix::io::Result<()> {
        into.fill(0);
        let bytes = self.bytes_of(page);
        let mut done = 0;
        while done < bytes {
            let at = self.offset + (page * PAGE + done) as u64;
            match rustix::io::pread(&self.file, &mut into[done..bytes], at) {
                // The file was truncated meanwhile: zeros, as past the end.
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.set_sum(page, into);
        Ok(())
    }

    /// Writes a page's bytes to the file if they differ from what came in.
    pub(crate) fn write_back(&self, page: usize, contents: &[u8; PAGE]) -> rustix::io::Result<()> {
        if !self.writeable || self.same(page, contents) {
            return Ok(());
        }
        let bytes = self.bytes_of(page);
        let mut done = 0;
        while done < bytes {
            let at = self.offset + (page * PAGE + done) as u64;
            match rustix::io::pwrite(&self.file, &contents[done..bytes], at) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.set_sum(page, contents);
        Ok(())
    }
}

/// Checks that a descriptor with these flags can be read from, and written to in place.
fn check_access(flags: OFlags, writeable: bool) -> Result<(), MappedError> {
    match flags & OFlags::ACCMODE {
        OFlags::RDWR => {}
        OFlags::RDONLY if !writeable => {}
        OFlags::RDONLY => return Err(MappedError::NotOpenFor("writing")),
        _ => return Err(MappedError::NotOpenFor("reading")),
    }
    if flags.contains(OFlags::PATH) {
        return Err(MappedError::NotOpenFor("reading"));
    }
    match writeable && flags.contains(OFlags::APPEND) {
        true => Err(MappedError::Append),
        false => Ok(()),
    }
}

impl StretchDriver for Mapped {
    fn name(&self) -> &'static str {
        "mapped"
    }

    fn pages(&self) -> Option<usize> {
        Some(self.pages)
    }

    fn writeable(&self) -> bool {
        self.writeable
    }

    fn evictable(&self) -> bool {
        true
    }

    fn zero_is_empty(&self) -> bool {
        false
    }

    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        if fault.state().state() != State::Empty {
            return fault.fill();
        }
        fault.fill_with(|page, into| {
            self.read(page, into)
                .map_err(|error| FaultError::Unreadable(backing_error(error)))
        })
    }

    fn clean(&self, page: usize, contents: &[u8; PAGE]) -> CleanOutcome {
        match self.write_back(page, contents) {
            Ok(()) => CleanOutcome::Kept,
            Err(error) => CleanOutcome::Refused(backing_error(error)),
        }
    }
}

/// The file's error as a store error.
fn backing_error(errno: Errno) -> StoreError {
    StoreError::Channel {
        what: "the mapped file",
        errno: errno.raw_os_error(),
    }
}

#[cfg(test)]
mod tests;
