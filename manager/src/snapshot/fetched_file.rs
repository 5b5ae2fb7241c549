//! An object as a local file: chunks of it are fetched when guests need them.
//!
//! The file has no name, and the room for the whole object from the start. The keeper opens it, so it and the record
//! of the chunks in it outlive a manager; the threads that fetch are each manager's own ([`FetchedFile::start`]).
//!
//! A thread that answers faults never waits here: it asks for a chunk, goes on with other faults, and is woken
//! when the chunk is there or cannot be had.

use super::fetch_queue::{Chunk, Demand, FetchQueue};
use crate::commands::Commands;
use objectstore::{ObjectPath, ObjectStore, ObjectVersion, OpenError, VersionError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use twox_hash::{XxHash3_64, XxHash3_128};
use wired::{Bytes, PAGE, WiredMemory};

/// Bytes of a fetch: a store takes some 20 ms to begin an answer, and 5 ms for these.
pub const CHUNK: u64 = 512 << 10;
/// Fetches at once, and of these how many only faults may have.
const FETCHES: usize = 16;
const FOR_FAULTS: usize = 4;
/// How long a chunk is tried for before the pages in it are lost to whom waits for them; and how long to find the object.
const PATIENCE: Duration = Duration::from_secs(30);
/// The stack of a thread that fetches.
const STACK: usize = 512 << 10;

/// Why an object is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum FetchedFileError {
    /// The store, or the object.
    #[error(transparent)]
    Object(#[from] VersionError),
    /// A snapshot has a page at least.
    #[error("it has no page")]
    Empty,
    /// The local file.
    #[error("no room of {} for it in {}: {error}; name another folder by --snapshot-folder", Bytes(*size), folder.display())]
    Local {
        /// The object's bytes.
        size: u64,
        /// Where the file was to be.
        folder: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// Whether contents can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// They are in the file.
    Ready,
    /// The client will be woken.
    Pending,
    /// They cannot be had.
    Failed,
}

/// An object's bytes in a local file, as far as they were fetched.
pub struct FetchedFile {
    object: ObjectPath,
    version: ObjectVersion,
    file: std::fs::File,
    /// A byte for each chunk, 1 if it is in the file. Shared by all managers of a keeper.
    there: WiredMemory,
    queue: Mutex<Waiting>,
    /// Rings when there is something to fetch.
    wanted: Condvar,
    /// The last fetch failed, which was logged.
    has_failed: AtomicBool,
}

/// What is asked for, and whom to wake.
#[derive(Debug, Default)]
struct Waiting {
    queue: FetchQueue,
    clients: BTreeMap<u64, Arc<Commands>>,
}

impl fmt::Debug for FetchedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FetchedFile({})", self.object)
    }
}

impl FetchedFile {
    /// Asks the store for the object's size, and makes the file in `folder`. No thread is left.
    ///
    /// # Errors
    /// [`FetchedFileError`].
    pub fn open(object: &ObjectPath, folder: &Path) -> Result<Self, FetchedFileError> {
        let version = ObjectVersion::ask(&object.url, &object.name, PATIENCE)?;
        let size = version.size;
        if size < PAGE as u64 {
            return Err(FetchedFileError::Empty);
        }
        let local = |error| FetchedFileError::local(size, folder, error);
        let file = tempfile::tempfile_in(folder).map_err(local)?;
        file.set_len(size).map_err(local)?;
        match fallocate(&file, FallocateFlags::empty(), 0, size) {
            // A file system without the call: a full one fails a fetch.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(local(errno.into())),
        }
        let chunks = size.div_ceil(CHUNK) as usize;
        let there = WiredMemory::shared(chunks, "selfpage-chunks");
        let (there, _) = there.map_err(|errno| local(errno.into()))?;
        Ok(Self {
            object: object.clone(),
            version,
            file,
            there,
            queue: Mutex::default(),
            wanted: Condvar::new(),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.version.size
    }

    /// A name for files that belong to the object, on this machine.
    pub fn local_name(&self) -> String {
        let url = XxHash3_64::oneshot(self.object.to_string().as_bytes());
        format!("{}.{url:016x}", self.object.name)
    }

    /// The file, for reading.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Tells this object from another of the same name.
    pub fn identity(&self) -> [u64; 4] {
        let tag = XxHash3_128::oneshot(self.version.tag.as_bytes());
        [(tag >> 64) as u64, tag as u64, self.version.size, 0]
    }

    /// Starts the threads that fetch, in the process that serves.
    ///
    /// # Errors
    /// The store cannot be opened, or the kernel has no threads.
    pub fn start(self: &Arc<Self>) -> Result<(), OpenError> {
        let store = ObjectStore::open(&self.object.url, PATIENCE)?;
        for number in 0..FETCHES {
            let (this, store) = (Arc::clone(self), store.clone());
            let takes_ahead = number >= FOR_FAULTS;
            std::thread::Builder::new()
                .name("selfpage-fetch".into())
                .stack_size(STACK)
                .spawn(move || this.fetch_all(&store, takes_ahead))
                .map_err(OpenError::Threads)?;
        }
        Ok(())
    }

    /// Adds a client, which is woken by a ring at its commands.
    pub fn add(&self, client: u64, bell: &Arc<Commands>) {
        let mut waiting = self.waiting();
        waiting.queue.add(client);
        waiting.clients.insert(client, Arc::clone(bell));
    }

    /// Removes a client.
    pub fn remove(&self, client: u64) {
        let mut waiting = self.waiting();
        waiting.queue.remove(client);
        waiting.clients.remove(&client);
    }

    /// Returns true if a range is in the file.
    pub fn has(&self, offset: u64, len: usize) -> bool {
        self.chunks(offset, len).all(|chunk| self.is_there(chunk))
    }

    /// Asks for a range on behalf of a client's fault.
    pub fn demand(&self, client: u64, offset: u64, len: usize) -> Readiness {
        if self.has(offset, len) {
            return Readiness::Ready;
        }
        let mut waiting = self.waiting();
        let mut readiness = Readiness::Ready;
        for chunk in self.chunks(offset, len).filter(|it| !self.is_there(*it)) {
            if waiting.queue.demand(client, chunk) == Demand::Failed {
                return Readiness::Failed;
            }
            readiness = Readiness::Pending;
            self.wanted.notify_one();
        }
        readiness
    }

    /// A client has looked at all that it waits for.
    pub fn forget_failures(&self, client: u64) {
        self.waiting().queue.forget_failures(client);
    }

    /// Asks for ranges that a client will fault on.
    pub fn read_ahead(&self, client: u64, ranges: impl Iterator<Item = Range<u64>>) {
        let chunks = ranges.flat_map(|range| {
            let len = range.end.saturating_sub(range.start) as usize;
            self.chunks(range.start, len)
        });
        let mut last = None;
        let chunks = chunks.filter(|chunk| last.replace(*chunk) != Some(*chunk));
        self.waiting().queue.read_ahead(client, chunks);
        self.wanted.notify_all();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunks of a range, as far as the object has them.
    fn chunks(&self, offset: u64, len: usize) -> Range<Chunk> {
        let end = (offset + len as u64).min(self.version.size);
        (offset / CHUNK) as Chunk..end.div_ceil(CHUNK) as Chunk
    }

    fn flag(&self, chunk: Chunk) -> &AtomicU8 {
        // SAFETY: a byte of the memory, which lives as long as this and is accessed by atomics alone.
        unsafe { AtomicU8::from_ptr(self.there.as_ptr().add(chunk as usize)) }
    }

    fn is_there(&self, chunk: Chunk) -> bool {
        self.flag(chunk).load(Ordering::Acquire) != 0
    }

    /// Fetches what is asked for, for as long as the process lives.
    fn fetch_all(&self, store: &ObjectStore, takes_ahead: bool) {
        let mut waiting = self.waiting();
        loop {
            let chunk = waiting.queue.take(takes_ahead, |it| self.is_there(it));
            let Some(chunk) = chunk else {
                let woken = self.wanted.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(waiting);
            let fetched = self.fetch(store, chunk);
            let had_failed = self.has_failed.swap(fetched.is_err(), Ordering::Relaxed);
            if let (Err(why), false) = (&fetched, had_failed) {
                tracing::error!("parts of the snapshot cannot be had: {why}");
            }
            waiting = self.waiting();
            let Waiting { queue, clients } = &mut *waiting;
            queue.end(chunk, fetched.is_ok(), |client| {
                clients.get(&client).inspect(|bell| bell.ring());
            });
        }
    }

    fn fetch(&self, store: &ObjectStore, chunk: Chunk) -> Result<(), String> {
        let start = u64::from(chunk) * CHUNK;
        let range = start..(start + CHUNK).min(self.version.size);
        let read = store.read_version(&self.object.name, range, &self.version);
        let bytes = store.wait(read).map_err(|why| why.to_string())?;
        let written = self.file.write_all_at(&bytes.to_vec(), start);
        written.map_err(|why| format!("it cannot be written to its local file: {why}"))?;
        self.flag(chunk).store(1, Ordering::Release);
        Ok(())
    }
}

impl FetchedFileError {
    /// The local file of an object, of that size, is of no use.
    pub fn local(size: u64, folder: &Path, error: io::Error) -> Self {
        Self::Local {
            size,
            folder: folder.to_owned(),
            error,
        }
    }
}
