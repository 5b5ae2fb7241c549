//! Which programs have memory: the table of the stats page by which parents wait for their children's ends.
//!
//! A program's memory is gone once its pager process is, unless the sampler reads its figures in /proc at that moment:
//! the kernel keeps the memory for a reader. Then the sampler's thread, which is about to let go, makes the end known.

use link::MAX_PROCESSES;
use link::handshake::SlotIndex;
use link::stats_page::StatsPage;
use rustix::fd::OwnedFd;
use rustix::io;
use rustix::process::Pid;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wired::futex;

/// The table, as the supervisor's threads share it.
pub(crate) struct ProgramEnds {
    stats_page: StatsPage,
    reading: Mutex<Reading>,
}

/// What the sampler reads, and what has ended meanwhile.
#[derive(Default)]
struct Reading {
    process: Option<Pid>,
    /// An exec or two may fall into one read, each with a pager's end.
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

    /// A program has a pager.
    pub fn on_joined(&self, slot: SlotIndex, program: Pid) {
        self.reading().ended.retain(|ended| *ended != slot);
        self.publish(slot, number(program));
    }

    /// The pager process has ended, and with it the program's memory, but for a reader's, who found it by either.
    pub fn on_ended(&self, slot: SlotIndex, program: Pid, pager: Pid) {
        let mut reading = self.reading();
        match reading.process {
            Some(process) if process == program || process == pager => reading.ended.push(slot),
            _ => self.publish(slot, 0),
        }
    }

    /// Reads what /proc has of a process. For one thread.
    pub fn read<T>(&self, process: Pid, read: impl FnOnce() -> T) -> T {
        self.reading().process = Some(process);
        let figures = read();
        let mut reading = self.reading();
        reading.process = None;
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
    fn an_end_is_known_at_once_or_after_the_read_under_way() {
        let (parent, fd) = StatsPage::create(MAX_PROCESSES).unwrap();
        let ends = ProgramEnds::attach(&fd).unwrap();
        let there = |slot: usize| parent.programs()[slot].load(Ordering::Acquire);
        let pid = |number| Pid::from_raw(number).unwrap();

        ends.on_joined(1, pid(40));
        ends.on_joined(2, pid(40));
        ends.on_joined(3, pid(50));
        assert_eq!((there(1), there(2), there(3)), (40, 40, 50));
        ends.read(pid(40), || {
            ends.on_ended(3, pid(50), pid(51));
            assert_eq!(there(3), 0, "of another program");
            ends.on_ended(1, pid(40), pid(41));
            ends.on_ended(2, pid(40), pid(42));
            assert_eq!((there(1), there(2)), (40, 40), "memory is being read");
        });
        assert_eq!((there(1), there(2)), (0, 0));

        ends.on_joined(1, pid(40));
        ends.read(pid(41), || {
            ends.on_ended(1, pid(40), pid(41));
            assert_eq!(there(1), 40, "read by its pager, which has no name yet");
            ends.on_joined(1, pid(60));
        });
        assert_eq!(there(1), 60, "of the program that has the slot by now");
        ends.on_ended(1, pid(60), pid(61));
        assert_eq!(there(1), 0);
    }
}
