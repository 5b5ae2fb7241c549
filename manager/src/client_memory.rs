//! How a client's pages can be reached from outside.

use crate::memory_object::DataReply;
use crate::snapshot::Snapshot;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat, fallocate, flock};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use translation::{ForeignUserfault, MapError, Pagemap, Wake};
use wired::{PAGE, WiredMemory};

/// f_type of tmpfs, from magic.h.
const TMPFS: u64 = 0x0102_1994;
/// What tells a cache from other files: a regular file without permission to write that has this bit, which means nothing
/// there, is no user's.
const MARK: Mode = Mode::SVTX;

/// The kinds of memory.
pub enum ClientMemory {
    /// Private memory of the process with this id: pages are copied in and cannot be taken out.
    Private(i32),
    /// A memfd of the client's own, mapped shared and handed over, laid out as the snapshot is: a hole
    /// punched into it takes pages out.
    Memfd(OwnedFd),
    /// A private mapping of the cache that all clones of the snapshot map: clean pages are mapped
    /// from it, and a store gives the client a copy of its own.
    Cache(Arc<SharedCache>, i32),
}

/// The pages of a snapshot that any clone has used, as a file in memory. A manager that follows a killed one fills each
/// page again before it maps it: the file may have a part of one.
#[derive(Debug)]
pub struct SharedCache {
    file: OwnedFd,
    /// A bit for each page that is in the file.
    filled: Vec<AtomicU64>,
    /// A page that found no room was reported.
    has_warned: AtomicBool,
}

impl SharedCache {
    /// Makes the cache at `path`, in tmpfs, with holes for what no clone has used. Clones open it for
    /// reading, as far as they may read the snapshot. One that a manager has left is replaced.
    ///
    /// # Errors
    /// `EXIST` where another file is there, `OPNOTSUPP` outside of tmpfs, and what the kernel has.
    pub fn create(path: &Path, snapshot: &Snapshot) -> Result<Self, Errno> {
        remove_left(path)?;
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, how, Mode::RUSR | MARK)?;
        if rustix::fs::fstatfs(&file)?.f_type as u64 != TMPFS {
            let _ = rustix::fs::unlink(path);
            return Err(Errno::OPNOTSUPP);
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        rustix::fs::ftruncate(&file, snapshot.len())?;
        rustix::fs::fchmod(&file, snapshot.readers()? | MARK)?;
        Ok(Self::over(file, snapshot))
    }

    /// Goes on with the file of a service before, which clones map: its lock is the file's.
    ///
    /// # Errors
    /// `INVAL` where it is another file.
    pub fn resume(file: OwnedFd, snapshot: &Snapshot) -> Result<Self, Errno> {
        let (stat, system) = (rustix::fs::fstat(&file)?, rustix::fs::fstatfs(&file)?);
        let is_cache = is_cache(&stat) && system.f_type as u64 == TMPFS;
        match is_cache && stat.st_size as u64 == snapshot.len() {
            true => Ok(Self::over(file, snapshot)),
            false => Err(Errno::INVAL),
        }
    }

    fn over(file: OwnedFd, snapshot: &Snapshot) -> Self {
        let words = (snapshot.len() as usize).div_ceil(64 * PAGE);
        Self {
            file,
            filled: (0..words).map(|_| AtomicU64::new(0)).collect(),
            has_warned: AtomicBool::new(false),
        }
    }

    /// Removes its name. Another file that has the name now stays.
    pub fn remove(&self, path: &Path) {
        let (named, own) = (rustix::fs::lstat(path), rustix::fs::fstat(&self.file));
        if let (Ok(named), Ok(own)) = (named, own)
            && (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)
        {
            // The next manager replaces it.
            let _ = rustix::fs::unlink(path);
        }
    }

    /// Its file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Puts a page into the cache, unless it is there. Two clones that do so at once write the same
    /// bytes.
    fn fill(&self, offset: u64, contents: *const u8) -> Result<(), Errno> {
        let page = offset as usize / PAGE;
        let (word, bit) = (&self.filled[page / 64], 1 << (page % 64));
        if word.load(Ordering::Acquire) & bit != 0 {
            return Ok(());
        }
        // SAFETY: the snapshot's mapping, which lives as long as the client; only the kernel reads it.
        let contents = unsafe { std::slice::from_raw_parts(contents, PAGE) };
        if rustix::io::pwrite(&self.file, contents, offset)? != PAGE {
            return Err(Errno::IO);
        }
        word.fetch_or(bit, Ordering::Release);
        Ok(())
    }

    /// Maps `len` bytes of the snapshot at `addr` of a clone. Where they find no room in the cache the clone gets a copy of
    /// its own: others may fill the tmpfs, and the snapshot has the page.
    fn map(
        &self,
        uffd: &ForeignUserfault,
        addr: usize,
        contents: *const u8,
        offset: u64,
        len: usize,
    ) -> Result<(), MapError> {
        for at in (0..len).step_by(PAGE) {
            // SAFETY: within the `len` bytes of contents.
            let page = unsafe { contents.add(at) };
            if let Err(why) = self.fill(offset + at as u64, page) {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "the shared cache takes no more pages ({why}): clones get copies of their own"
                    );
                }
                return uffd.copy(addr, contents, len, Wake::Yes);
            }
        }
        uffd.map_cached(addr, len)
    }
}

/// Removes a cache at `path` that no manager has open any more. Any other file stays, and is `EXIST`.
fn remove_left(path: &Path) -> Result<(), Errno> {
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, how, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(()),
        Err(_) => return Err(Errno::EXIST),
    };
    let stat = rustix::fs::fstat(&file)?;
    if !is_cache(&stat) || flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Errno::EXIST);
    }
    rustix::fs::unlink(path)
}

/// Returns true if a file has what tells a cache of this user's from other files.
fn is_cache(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && mode.contains(MARK)
        && !mode.intersects(Mode::WUSR | Mode::WGRP | Mode::WOTH)
}

impl ClientMemory {
    /// Returns true if pages can be taken out.
    pub fn can_evict(&self) -> bool {
        matches!(self, Self::Memfd(_))
    }

    /// The memfd, where the memory is one.
    pub fn memfd(&self) -> Option<&OwnedFd> {
        match self {
            Self::Memfd(memfd) => Some(memfd),
            Self::Private(_) | Self::Cache(..) => None,
        }
    }

    /// Gives neighbouring missing pages the snapshot's contents, `len` bytes from `offset` on, and wakes
    /// the threads that wait for them.
    pub fn place_run(
        &self,
        uffd: &ForeignUserfault,
        addr: usize,
        contents: *const u8,
        offset: u64,
        len: usize,
    ) -> Result<(), MapError> {
        match self {
            Self::Cache(cache, _) => cache.map(uffd, addr, contents, offset, len),
            _ => uffd.copy(addr, contents, len, Wake::Yes),
        }
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
        match (self, contents, origin_offset) {
            (_, DataReply::Provided(from), Some(offset)) => {
                self.place_run(uffd, addr, from, offset, len)
            }
            (_, DataReply::Provided(from), _) => uffd.copy(addr, from, len, Wake::Yes),
            // Huge pages have no page of zeros to share.
            _ if len > PAGE => uffd.copy(addr, zeros.as_ptr(), len, Wake::Yes),
            _ => uffd.zero(addr, len, Wake::Yes),
        }
    }

    /// Returns true if the kernel reports pages that are in the cache and not mapped.
    pub fn uses_minor_faults(&self) -> bool {
        matches!(self, Self::Cache(..))
    }

    /// The page table of the process whose memory is read as a process's; `None` of a memfd.
    pub fn pagemap(&self) -> Result<Option<Pagemap>, Errno> {
        match self {
            Self::Memfd(_) => Ok(None),
            Self::Private(pid) | Self::Cache(_, pid) => Pagemap::of_process(*pid).map(Some),
        }
    }

    /// Reads resident pages at `addr`, or at `offset` of the memfd. What a client truncated or unmapped
    /// is an error, not a signal. A page of a process that is not in its page table faults, for the thread that answers
    /// faults to wait for itself ([`crate::client`], `saving`).
    pub fn read(&self, addr: usize, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let file = match self {
            Self::Memfd(file) => file,
            Self::Private(pid) | Self::Cache(_, pid) => return read_process(*pid, addr, into),
        };
        match rustix::io::pread(file, &mut *into, offset)? {
            read if read == into.len() => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    /// Returns true if a memfd has pages in a range. False where the kernel does not tell (before Linux 6.5).
    pub fn has_pages(&self, offset: u64, len: usize) -> bool {
        let Self::Memfd(file) = self else {
            return false;
        };
        let len = len as u64;
        let range = CachestatRange { offset, len };
        let mut found = Cachestat::default();
        // SAFETY: reads the range and writes the result.
        let outcome = unsafe {
            let (range, found) = (&raw const range, &raw mut found);
            libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range, found, 0)
        };
        outcome == 0 && found.cached > 0
    }

    /// Writes a page of a memfd.
    pub fn write(&self, offset: u64, page: &[u8]) -> Result<(), Errno> {
        let Self::Memfd(file) = self else {
            return Err(Errno::OPNOTSUPP);
        };
        match rustix::io::pwrite(file, page, offset)? {
            written if written == page.len() => Ok(()),
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

/// struct cachestat_range and struct cachestat.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// cachestat(2), since Linux 6.5: the same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

fn read_process(pid: i32, addr: usize, into: &mut [u8]) -> Result<(), Errno> {
    let len = into.len();
    let part = |at: *mut u8| libc::iovec {
        iov_base: at.cast(),
        iov_len: len,
    };
    let to = part(into.as_mut_ptr());
    let from = part(std::ptr::with_exposed_provenance_mut(addr));
    // SAFETY: writes the bytes of `into`.
    let read = unsafe { libc::process_vm_readv(pid, &raw const to, 1, &raw const from, 1, 0) };
    match read {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        read if read as usize == len => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_cache_that_was_left_is_replaced_and_another_file_stays() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let [guest, path, notes] = ["guest.mem", "cache", "notes"].map(|it| folder.path().join(it));
        fs::write(&guest, [1; PAGE]).unwrap();
        let snapshot = Snapshot::open(&guest, &[]).unwrap();
        let cache = SharedCache::create(&path, &snapshot).unwrap();
        let refused = SharedCache::create(&path, &snapshot);
        assert_eq!(refused.err(), Some(Errno::EXIST), "it is in use");
        drop(cache);
        let cache = SharedCache::create(&path, &snapshot).unwrap();
        fs::write(&notes, "notes").unwrap();
        fs::set_permissions(&notes, PermissionsExt::from_mode(0o400)).unwrap();
        for other in [&notes, &guest] {
            let refused = SharedCache::create(other, &snapshot);
            assert_eq!(refused.err(), Some(Errno::EXIST));
            cache.remove(other);
            assert!(other.exists());
        }
        cache.remove(&path);
        assert!(!path.exists());
    }
}
