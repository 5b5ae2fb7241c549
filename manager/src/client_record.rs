//! What must outlive the manager of one client: its record, in memory that the keeper holds, too.
//!
//! A manager may be killed at any instruction, and another one goes on from the record and from the descriptors that the
//! keeper has ([`crate::keeper`]). The kernel keeps the client's memory, its write protection and the faults that wait.
//!
//! | part | is written |
//! |---|---|
//! | the hand-off, the kind of memory | before the keeper has the client |
//! | a word for each page ([`crate::page_table`]) | before and after each step that moves its contents |
//! | messages of the userfaultfd | by the kernel, and emptied when they have taken effect |
//! | the counters | as they are counted |
//! | the name of an unfinished save | before its file is made, and when it is gone |
//! | the thread that serves the client | before the thread's first step: a killed one may wait in a call for the client still |
//!
//! Not here, since each is made again: faults (the successor wakes all threads that wait, and they fault again), the order
//! of replacement, standby slots (each of their pages is in the store, too, or equal to its origin), recordings, replays
//! and saves in progress.

use crate::counters::Counters;
use crate::handoff::{Handoff, MAX_MAPPINGS, Mapping};
use crate::page_table::UNIT;
use host::process_tree::{Process, is_alive, process};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::thread::gettid;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use translation::MessageSlot;
use wired::{PAGE, WiredMemory};

/// Messages that are read in one call.
const MESSAGES: usize = 64;

/// The first page's words, then three for each mapping.
const MAGIC_AT: usize = 0;
const NUMBER: usize = 1;
const PID: usize = 2;
const KIND: usize = 3;
const PAGE_SIZE: usize = 4;
const MAPPINGS: usize = 5;
const SERVER: usize = 6;
const SERVER_START: usize = 7;
const FIRST_MAPPING: usize = 8;
const HEADER_WORDS: usize = FIRST_MAPPING + 3 * MAX_MAPPINGS;
const MAGIC: u64 = u64::from_le_bytes(*b"slfpgvm1");

/// The second page: messages, then counters.
const MESSAGES_AT: usize = PAGE;
const COUNTERS_AT: usize = MESSAGES_AT + MESSAGES * size_of::<MessageSlot>();
/// Two pages: the length of a path, and the path.
const UNFINISHED_AT: usize = 2 * PAGE;
const PATH_AT: usize = UNFINISHED_AT + size_of::<u64>();
const LONGEST_PATH: usize = PAGES_AT - PATH_AT;
const PAGES_AT: usize = 4 * PAGE;

const _: () = assert!(HEADER_WORDS * size_of::<u64>() <= PAGE);
const _: () = assert!(COUNTERS_AT + size_of::<Counters>() <= UNFINISHED_AT);

/// How a client's pages are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// Private memory.
    Private,
    /// A memfd of the client's own.
    Memfd,
    /// A private mapping of the shared cache.
    Cache,
}

/// The record of one client.
pub struct ClientRecord {
    memory: WiredMemory,
    pages: usize,
}

impl ClientRecord {
    /// The record of a client that no page was brought in for, and the descriptor of its memory.
    pub fn create(
        number: u64,
        pid: i32,
        handoff: &Handoff,
        kind: MemoryKind,
    ) -> io::Result<(Arc<Self>, OwnedFd)> {
        let pages = pages_of(handoff);
        let (memory, fd) =
            WiredMemory::shared(PAGES_AT + pages * size_of::<u32>(), "selfpage-client")?;
        let record = Self { memory, pages };
        let header = record.header();
        let set = |at: usize, value: u64| header[at].store(value, Ordering::Relaxed);
        set(NUMBER, number);
        set(PID, pid as u64);
        set(KIND, kind as u64);
        set(PAGE_SIZE, handoff.page_size as u64);
        set(MAPPINGS, handoff.mappings.len() as u64);
        for (mapping, words) in handoff.mappings.iter().zip((FIRST_MAPPING..).step_by(3)) {
            set(words, mapping.addr as u64);
            set(words + 1, mapping.len as u64);
            set(words + 2, mapping.offset);
        }
        header[MAGIC_AT].store(MAGIC, Ordering::Release);
        record.keep_in_ram();
        Ok((Arc::new(record), fd))
    }

    /// The record that a manager left.
    pub fn attach(fd: impl AsFd) -> io::Result<Arc<Self>> {
        let len = rustix::fs::fstat(&fd)?.st_size as usize;
        if len < PAGES_AT {
            return Err(Errno::INVAL);
        }
        let mut record = Self {
            memory: WiredMemory::attach(fd, len)?,
            pages: 0,
        };
        if record.header()[MAGIC_AT].load(Ordering::Acquire) != MAGIC {
            return Err(Errno::INVAL);
        }
        record.pages = pages_of(&record.handoff());
        if PAGES_AT + record.pages * size_of::<u32>() > len {
            return Err(Errno::INVAL);
        }
        record.keep_in_ram();
        Ok(Arc::new(record))
    }

    /// The kernel is to find the messages' page in place: a reader that is being killed waits for no page.
    fn keep_in_ram(&self) {
        let at = self.memory.as_ptr().wrapping_add(MESSAGES_AT);
        // SAFETY: a page of the mapping, whose contents stay.
        let _ = unsafe { rustix::mm::mlock(at.cast(), PAGE) };
    }

    fn header(&self) -> &[AtomicU64] {
        self.memory.slice(0, HEADER_WORDS)
    }

    fn word(&self, at: usize) -> u64 {
        self.header()[at].load(Ordering::Relaxed)
    }

    /// The client's number.
    pub fn number(&self) -> u64 {
        self.word(NUMBER)
    }

    /// The process that connected.
    pub fn pid(&self) -> i32 {
        self.word(PID) as i32
    }

    /// The kind of its memory.
    pub fn kind(&self) -> MemoryKind {
        match self.word(KIND) {
            kind if kind == MemoryKind::Memfd as u64 => MemoryKind::Memfd,
            kind if kind == MemoryKind::Cache as u64 => MemoryKind::Cache,
            _ => MemoryKind::Private,
        }
    }

    /// This thread serves the client from now on.
    pub fn set_server(&self) {
        let own = process(gettid());
        self.header()[SERVER_START].store(own.start, Ordering::Relaxed);
        self.header()[SERVER].store(own.pid.into(), Ordering::Release);
    }

    /// Returns true if the thread that has served the client, or serves it, has not ended.
    pub fn has_server(&self) -> bool {
        let pid = self.header()[SERVER].load(Ordering::Acquire) as u32;
        let start = self.word(SERVER_START);
        is_alive(Process { pid, start })
    }

    /// Its memory.
    pub fn handoff(&self) -> Handoff {
        let count = (self.word(MAPPINGS) as usize).min(MAX_MAPPINGS);
        let mappings = (FIRST_MAPPING..).step_by(3).take(count);
        let mapping = |at: usize| Mapping {
            addr: self.word(at) as usize,
            len: self.word(at + 1) as usize,
            offset: self.word(at + 2),
        };
        Handoff {
            mappings: mappings.map(mapping).collect(),
            page_size: self.word(PAGE_SIZE) as usize,
        }
    }

    /// A word for each page.
    pub fn pages(&self) -> &[AtomicU32] {
        self.memory.slice(PAGES_AT, self.pages)
    }

    /// Where messages of the userfaultfd are read to.
    pub fn messages(&self) -> &[MessageSlot] {
        self.memory.slice(MESSAGES_AT, MESSAGES)
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.memory.slice(COUNTERS_AT, 1)[0]
    }

    fn unfinished_len(&self) -> &AtomicU64 {
        &self.memory.slice(UNFINISHED_AT, 1)[0]
    }

    /// Notes the file of a save before it is made.
    pub fn begin_file(&self, path: &Path) -> io::Result<()> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() > LONGEST_PATH {
            return Err(Errno::NAMETOOLONG);
        }
        let room = self.memory.slice::<AtomicU8>(PATH_AT, bytes.len());
        for (to, byte) in room.iter().zip(bytes) {
            to.store(*byte, Ordering::Relaxed);
        }
        self.unfinished_len()
            .store(bytes.len() as u64, Ordering::Release);
        Ok(())
    }

    /// The file has its final name, or is gone.
    pub fn end_file(&self) {
        self.unfinished_len().store(0, Ordering::Release);
    }

    /// The file of a save that was not finished.
    pub fn unfinished_file(&self) -> Option<PathBuf> {
        let len = self.unfinished_len().load(Ordering::Acquire) as usize;
        let room = self
            .memory
            .slice::<AtomicU8>(PATH_AT, len.min(LONGEST_PATH));
        let bytes: Vec<u8> = (room.iter().map(|byte| byte.load(Ordering::Relaxed))).collect();
        (len > 0).then(|| PathBuf::from(OsStr::from_bytes(&bytes)))
    }
}

/// Words of a table for all mappings, each of which begins a unit.
fn pages_of(handoff: &Handoff) -> usize {
    let pages = |it: &Mapping| (it.len / handoff.page_size.max(1)).next_multiple_of(UNIT);
    handoff.mappings.iter().map(pages).sum()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_successor_finds_what_was_recorded() {
        let mapping = |addr, offset| Mapping {
            addr,
            len: 100 * PAGE,
            offset,
        };
        let handoff = Handoff {
            mappings: vec![mapping(1 << 20, 409_600), mapping(4 << 20, 0)],
            page_size: PAGE,
        };
        let (record, fd) = ClientRecord::create(7, 4711, &handoff, MemoryKind::Memfd).unwrap();
        record.pages()[130].store(9, Ordering::Relaxed);
        record.counters().faults.add(3);
        assert!(!record.has_server());
        std::thread::scope(|scope| scope.spawn(|| record.set_server()).join().unwrap());
        // A thread that was joined is in /proc for a moment still.
        let deadline = Instant::now() + Duration::from_secs(10);
        while record.has_server() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(!record.has_server(), "its thread has ended");
        record.set_server();
        record.begin_file(Path::new("/tmp/a.part.1")).unwrap();
        drop(record);
        let found = ClientRecord::attach(&fd).unwrap();
        assert_eq!((found.number(), found.pid()), (7, 4711));
        assert_eq!(found.kind(), MemoryKind::Memfd);
        assert_eq!(found.handoff(), handoff);
        assert!(found.has_server());
        assert_eq!(found.pages().len(), 256);
        assert_eq!(found.pages()[130].load(Ordering::Relaxed), 9);
        assert_eq!(found.counters().faults.get(), 3);
        assert_eq!(found.unfinished_file(), Some("/tmp/a.part.1".into()));
        found.end_file();
        assert_eq!(found.unfinished_file(), None);
        let long = "x".repeat(2 * PAGE);
        assert!(found.begin_file(Path::new(&long)).is_err());
    }

    #[test]
    fn other_memory_is_no_record() {
        let (_memory, fd) = WiredMemory::shared(8 * PAGE, "other").unwrap();
        assert!(ClientRecord::attach(&fd).is_err());
        let (_memory, fd) = WiredMemory::shared(PAGE, "short").unwrap();
        assert!(ClientRecord::attach(&fd).is_err());
    }
}
