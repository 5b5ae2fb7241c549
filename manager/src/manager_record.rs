//! What all managers of one keeper share, in memory of the keeper's; and those of the keepers after it, where systemd has
//! the memory.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wired::{PAGE, WiredMemory};

const MAGIC_AT: usize = 0;
const SERVED: usize = 1;
const NUMBERS: usize = 2;
const LENGTH: usize = 3;
const WORDS: usize = 4;
/// Then, how guests are served.
const TEXT_AT: usize = WORDS * size_of::<AtomicU64>();
const MAGIC: u64 = u64::from_le_bytes(*b"slfpgmg1");

/// How often a manager looks for the end of another one.
const TURN: Duration = Duration::from_millis(20);

/// The memory.
pub struct ManagerRecord {
    memory: WiredMemory,
    fd: OwnedFd,
}

impl ManagerRecord {
    /// Of no manager yet. `text` is how guests are served ([`crate::kept_service::describe`]).
    pub fn new(text: &str) -> rustix::io::Result<Self> {
        let (memory, fd) = WiredMemory::shared(TEXT_AT + text.len(), "selfpage-manager")?;
        let record = Self { memory, fd };
        let room = record.memory.slice::<AtomicU8>(TEXT_AT, text.len());
        for (to, byte) in room.iter().zip(text.bytes()) {
            to.store(byte, Ordering::Relaxed);
        }
        record.words()[LENGTH].store(text.len() as u64, Ordering::Relaxed);
        record.words()[MAGIC_AT].store(MAGIC, Ordering::Release);
        Ok(record)
    }

    /// Of the managers before; `INVAL` where another file, or another version's record, is passed.
    pub fn attach(fd: OwnedFd) -> rustix::io::Result<Self> {
        let len = fstat(&fd)?.st_size as usize;
        if len < PAGE {
            return Err(Errno::INVAL);
        }
        let memory = WiredMemory::attach(&fd, len)?;
        let record = Self { memory, fd };
        let length = record.words()[LENGTH].load(Ordering::Relaxed) as usize;
        if record.words()[MAGIC_AT].load(Ordering::Acquire) != MAGIC || length > len - TEXT_AT {
            return Err(Errno::INVAL);
        }
        Ok(record)
    }

    /// How guests are served.
    pub fn text(&self) -> String {
        let length = self.words()[LENGTH].load(Ordering::Relaxed) as usize;
        let text = self.memory.slice::<AtomicU8>(TEXT_AT, length).iter();
        let text: Vec<u8> = text.map(|byte| byte.load(Ordering::Relaxed)).collect();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.slice(0, WORDS)
    }

    /// Managers that have served.
    pub fn served(&self) -> u64 {
        self.words()[SERVED].load(Ordering::Acquire)
    }

    /// A manager serves.
    pub fn count_served(&self) {
        self.words()[SERVED].fetch_add(1, Ordering::AcqRel);
    }

    /// A number for a client, from 1 on.
    pub fn next_number(&self) -> u64 {
        self.words()[NUMBERS].fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Opens the lock on the clients. It is an open file's, so all processes that inherit it have the lock together: a keeper and
    /// its managers.
    pub fn open_lock(&self) -> rustix::io::Result<OwnedFd> {
        // Those of the record's own descriptor are systemd's, too.
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }
}

/// Locks the clients, until all copies of `lock` are closed: a manager whose keeper was killed may still serve them, and two would
/// move the same pages. `WOULDBLOCK` where it has not ended in time.
pub fn lock_clients(lock: &OwnedFd, patience: Duration) -> rustix::io::Result<()> {
    let end = Instant::now() + patience;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(TURN),
            outcome => return outcome,
        }
    }
}

impl AsFd for ManagerRecord {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_of_another_keeper_goes_on_with_the_record() {
        let record = ManagerRecord::new(&"x".repeat(2 * PAGE)).unwrap();
        assert_eq!(record.next_number(), 1);
        record.count_served();
        let found = ManagerRecord::attach(record.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((found.next_number(), found.served()), (2, 1));
        assert_eq!(found.text(), "x".repeat(2 * PAGE));
        let (lock, other) = (record.open_lock().unwrap(), found.open_lock().unwrap());
        lock_clients(&lock, Duration::ZERO).unwrap();
        let inherited = lock.try_clone().unwrap();
        drop(lock);
        let refused = lock_clients(&other, Duration::from_millis(50)).unwrap_err();
        assert_eq!(refused, Errno::WOULDBLOCK);
        lock_clients(&inherited, Duration::ZERO).unwrap();
        drop(inherited);
        lock_clients(&other, Duration::ZERO).unwrap();
    }

    #[test]
    fn another_file_is_no_record() {
        let other = WiredMemory::shared(PAGE, "other").unwrap().1;
        let (socket, _) = host::seqpacket::pair().unwrap();
        for fd in [other, socket] {
            assert!(ManagerRecord::attach(fd).is_err());
        }
    }
}
