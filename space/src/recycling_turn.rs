//! Turns of the threads that miss at the bound, and would recycle one another's new entries.
//!
//! An instruction may need several entries at once, and starts again until it finds them all. Threads that each
//! recycle what another has just entered for its own instruction could repeat that for ever. So young entries are
//! recycled by one thread at a time: the others leave the section, sleep for [`PAUSE`] and repeat their accesses.
//! A turn lasts until its thread has recycled nothing for that long: by then its instruction has its entries.

use rustix::thread::{Pid, gettid};
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use wired::{clock, futex};

/// How many entries ago one was entered that is not young any more. Ten threads at the bound enter as many before
/// each of them has the six that its instruction may need.
pub(crate) const YOUNG: usize = 64;

/// Entries that a turn is for while other threads wait: several instructions, since the pause after them is long.
const ENTRIES: u32 = 24;

/// Longer than it takes from a miss to the end of its access, or to the next miss of its instruction.
const PAUSE: Duration = Duration::from_micros(100);
const PAUSE_NANOS: u64 = PAUSE.as_nanos() as u64;

/// A thread that waits and does not ask again for this long is passed over: it may be stopped.
const PASSED_OVER: u64 = 5 * PAUSE_NANOS;

/// The turn of a VTLB's threads.
pub(crate) struct RecyclingTurn {
    holder: Option<Pid>,
    /// When the holder last had an entry, if it is not just entering one.
    last: Option<u64>,
    /// Entries left of it.
    left: u32,
    /// Another thread waits.
    is_wanted: bool,
}

impl Default for RecyclingTurn {
    fn default() -> Self {
        Self {
            holder: None,
            last: Some(0),
            left: 0,
            is_wanted: false,
        }
    }
}

impl RecyclingTurn {
    /// Returns true if the calling thread may recycle what was entered so many entries ago. Where it may not, its access
    /// is to be repeated after a [`pause`].
    pub(crate) fn may_recycle(&mut self, entries_ago: u64) -> bool {
        if entries_ago >= YOUNG as u64 {
            return true;
        }
        let thread = Some(gettid());
        let idle = self
            .last
            .map_or(0, |last| clock::now().saturating_sub(last));
        let is_free = match self.holder == thread {
            true => !self.is_wanted || idle >= PASSED_OVER,
            false => idle >= PAUSE_NANOS,
        };
        if is_free && (self.holder != thread || self.left == 0) {
            (self.holder, self.left, self.is_wanted) = (thread, ENTRIES, false);
        }
        let may = self.holder == thread && self.left > 0;
        if may {
            (self.left, self.last) = (self.left - 1, None);
        }
        self.is_wanted |= self.holder != thread;
        may
    }

    /// The holder has what it recycled for, if that is what was entered.
    pub(crate) fn entered(&mut self) {
        self.last.get_or_insert_with(clock::now);
    }
}

/// Sleeps until the turn of another thread may be over. Like every other wait of the fault path by `futex`.
pub(crate) fn pause() {
    futex::wait(&AtomicU32::new(0), 0, Some(PAUSE));
}
