//! Wipes a newcomer's swap file, without taking the disk from those who have contracts.
//!
//! A swap file was somebody else's before, so it is overwritten before it is given out. That
//! is disk time nobody was promised: it comes from what admission leaves over (see
//! `disk.capacity` in the configuration).
//!
//! Rule: while others have contracts the wiping takes one part in twenty of the time.

use disk::swapfs::{Device, Progress, Scrub, ScrubError};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// Wipes; `others` is how many have contracts, read again and again.
pub fn wipe(mut scrub: Scrub<Device>, others: &Arc<AtomicUsize>) -> Wiped {
    let result = loop {
        let begin = Instant::now();
        match scrub.step() {
            Ok(Progress { .. }) if scrub.is_done() => break Ok(()),
            Ok(_) => {}
            Err(why) => break Err(why),
        }
        if others.load(Ordering::Relaxed) > 0 {
            std::thread::sleep((begin.elapsed() * PAUSES).min(LONGEST));
        }
    };
    Wiped { scrub, result }
}
