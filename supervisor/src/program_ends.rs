//! The programs that have memory: the table on the stats page by which parents wait for the end of their children.
//!
//! A program's memory is freed when its pager process ends, unless the sampler reads its figures in /proc at that
//! moment: the kernel keeps the memory for a reader. Then the sampler's thread publishes the end after the read.

use link::MAX_PROCESSES;
use link::handshake::SlotIndex;
use link::stats_page::StatsPage;
use rustix::fd::OwnedFd;
use rustix::io;
use rustix::process::Pid;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wired::futex;

/// The table, which the supervisor's threads share.
pub(crate) struct ProgramEnds {
    stats_page: StatsPage,
    reading: Mutex<Reading>,
}

/// The processes whose /proc files are being read. The kernel keeps a process's memory even for a reader of `stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Readable {
    /// No process's.
    #[default]
    None,
    /// One process's.
    Process(Pid),
    /// Any process's.
    All,
}

/// The read in progress, and the slots whose pager has ended meanwhile.
#[derive(Default)]
struct Reading {
    of: Readable,
    /// Several, since a program may execute more than once during one read.
    ended: Vec<SlotIndex>,
}

impl ProgramEnds {
    /// The table on the stats page of a descriptor.
    pub fn attach(stats_fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self {
            stats_page: StatsPage::attach(stats_fd, MAX_PROCESSES)?,
            reading: Mutex::default(),
        })
    }

    /// A program's pager has joined.
    pub fn on_joined(&self, slot: SlotIndex, program: Pid) {
        self.reading().ended.retain(|ended| *ended != slot);
        self.publish(slot, number(program));
    }

    /// The pager process has ended, and with it the program's memory, unless it is being read.
    pub fn on_ended(&self, slot: SlotIndex, program: Pid) {
        let mut reading = self.reading();
        let is_read = match reading.of {
            Readable::None => false,
            Readable::Process(process) => process == program,
            Readable::All => true,
        };
        match is_read {
            true => reading.ended.push(slot),
            false => self.publish(slot, 0),
        }
    }

    /// Runs `read`, which reads /proc files of the processes `of`. For one thread.
    pub fn read<T>(&self, of: Readable, read: impl FnOnce() -> T) -> T {
        self.reading().of = of;
        let figures = read();
        let mut reading = self.reading();
        reading.of = Readable::None;
        for slot in reading.ended.drain(..) {
            self.publish(slot, 0);
        }
        figures
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, slot: SlotIndex, program: u32) {
        let word = &self.stats_page.programs()[usize::from(slot)];
        word.store(program, Ordering::Release);
        futex::wake_all(word);
    }
}

fn number(program: Pid) -> u32 {
    program.as_raw_nonzero().get() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_published_at_once_or_after_the_read_in_progress() {
        let (parent, fd) = StatsPage::create(MAX_PROCESSES).unwrap();
        let ends = ProgramEnds::attach(&fd).unwrap();
        let published = |slot: usize| parent.programs()[slot].load(Ordering::Acquire);
        let pid = |number| Pid::from_raw(number).unwrap();

        ends.on_joined(1, pid(40));
        ends.on_joined(2, pid(40));
        ends.on_joined(3, pid(50));
        assert_eq!((published(1), published(2), published(3)), (40, 40, 50));
        ends.read(Readable::Process(pid(40)), || {
            ends.on_ended(3, pid(50));
            assert_eq!(published(3), 0, "of another program");
            ends.on_ended(1, pid(40));
            ends.on_ended(2, pid(40));
            assert_eq!(
                (published(1), published(2)),
                (40, 40),
                "memory is being read"
            );
        });
        assert_eq!((published(1), published(2)), (0, 0));

        ends.on_joined(1, pid(40));
        ends.read(Readable::All, || {
            ends.on_ended(1, pid(40));
            assert_eq!(published(1), 40, "it may be read");
            ends.on_joined(1, pid(60));
        });
        assert_eq!(published(1), 60, "of the program that has the slot by now");
        ends.read(Readable::All, || {
            ends.on_ended(1, pid(60));
            assert_eq!(published(1), 60);
        });
        assert_eq!(published(1), 0);
    }
}
