//! Wipes a newcomer's swap file, without taking the disk from those who have contracts.
//!
//! A swap file was somebody else's before, so it is overwritten before it is given out. That
//! is disk time nobody was promised: it comes from what admission leaves over (see
//! `disk.capacity` in the configuration).
//!
//! Rule: while others have the disk do transactions, the wiping takes one part in twenty of
//! the time. While nobody does it takes all of it.

use disk::swapfs::{Device, Scrub, ScrubError};
use disk::trace::{Event, Reader};
use std::time::{Duration, Instant};

/// Pauses for each time as long as a step, beside others.
const PAUSES: u32 = 19;
/// Longest pause: a step may have been slow because of others.
const LONGEST: Duration = Duration::from_millis(100);

/// A wiped file, or why it is not.
pub struct Wiped {
    /// The work, to be handed back to the filesystem.
    pub scrub: Scrub<Device>,
    /// What came of it.
    pub result: Result<(), ScrubError>,
}

/// Wipes; `trace` shows whether others use the disk meanwhile.
pub fn wipe(mut scrub: Scrub<Device>, trace: &Reader) -> Wiped {
    let mut next = trace.since(u64::MAX).next;
    let result = loop {
        let begin = Instant::now();
        if let Err(why) = scrub.step() {
            break Err(why);
        }
        if scrub.is_done() {
            break Ok(());
        }
        let seen = trace.since(next);
        next = seen.next;
        let is_use = |event: &Event| matches!(event, Event::Transaction { .. });
        if seen.lost > 0 || seen.events.iter().any(is_use) {
            std::thread::sleep((begin.elapsed() * PAUSES).min(LONGEST));
        }
    };
    Wiped { scrub, result }
}
