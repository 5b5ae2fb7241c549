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
use std::sync::atomic::{AtomicU64, Ordering};
use wired::futex;

/// Bits of a process number.
const PID: u32 = 32;

/// The table, as the supervisor's threads share it.
pub(crate) struct ProgramEnds {
    stats_page: StatsPage,
    /// The program that is being read, and above it the slot, plus 1, of which it has ended meanwhile.
    reading: AtomicU64,
}

impl ProgramEnds {
    /// The table on the stats page of a descriptor.
    pub fn attach(stats_fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self {
            stats_page: StatsPage::attach(stats_fd, MAX_PROCESSES)?,
            reading: AtomicU64::new(0),
        })
    }

    /// A program has a pager.
    pub fn on_joined(&self, slot: SlotIndex, program: Pid) {
        let words = self.stats_page.programs();
        words[usize::from(slot)].store(number(program), Ordering::Release);
    }

    /// The pager process has ended, and with it the program's memory, but for a reader's.
    pub fn on_ended(&self, slot: SlotIndex, program: Pid) {
        let program = u64::from(number(program));
        let ended = program | (u64::from(slot) + 1) << PID;
        let exchanged =
            self.reading
                .compare_exchange(program, ended, Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_err() {
            self.publish(slot);
        }
    }

    /// Reads what /proc has of a program. For one thread.
    pub fn read<T>(&self, program: Pid, read: impl FnOnce() -> T) -> T {
        self.reading
            .store(number(program).into(), Ordering::Release);
        let figures = read();
        let ended = self.reading.swap(0, Ordering::AcqRel) >> PID;
        if let Some(slot) = ended.checked_sub(1) {
            self.publish(slot as SlotIndex);
        }
        figures
    }

    fn publish(&self, slot: SlotIndex) {
        let word = &self.stats_page.programs()[usize::from(slot)];
        word.store(0, Ordering::Release);
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
            ends.on_ended(3, pid(50));
            assert_eq!(there(3), 0, "of another program");
            ends.on_ended(1, pid(40));
            assert_eq!(there(1), 40, "its memory is being read");
        });
        assert_eq!((there(1), there(2)), (0, 40));
        ends.on_ended(2, pid(40));
        assert_eq!(there(2), 0);
    }
}
