//! Scrubs the swap files of new tenants, without taking the disk from those who have contracts.
//!
//! A swap file may hold another tenant's data, so it is overwritten before it is given out. That
//! is disk time outside all contracts: it comes from what admission leaves over (see
//! `disk.capacity` in the configuration).
//!
//! Rule: one thread scrubs, a step of each file in turn. While others have the disk do
//! transactions, all scrubbing together takes one part in twenty of the time, however many files
//! wait for it and however slow the disk is. While the disk is otherwise idle, scrubbing takes all
//! of it.

use crate::jobs::{JobResult, JobSender};
use crate::urgent;
use disk::swapfs::{Device, Scrub, ScrubError};
use disk::trace::{Reader, TraceEvent};
use protocol::TenantNumber;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Pauses for each time as long as a step, beside others.
const PAUSES: u32 = 19;
/// How often it is looked whether others still use the disk.
const LOOK: Duration = Duration::from_millis(100);

/// A scrubbed file, or why it is not.
pub struct ScrubDone {
    /// The work, to be handed back to the filesystem.
    pub scrub: Scrub<Device>,
    /// What came of it.
    pub result: Result<(), ScrubError>,
}

type Job = (TenantNumber, Box<Scrub<Device>>);

/// The thread that scrubs. It ends when this is dropped, after the step in hand.
pub struct Scrubber(Sender<Job>);

impl Scrubber {
    /// A thread with nothing to do; `trace` shows whether others use the disk, and `notifier`
    /// receives each result.
    pub fn start(trace: Reader, notifier: JobSender) -> std::io::Result<Self> {
        let (sender, work) = channel();
        std::thread::Builder::new()
            .name("selfpage-scrub".into())
            .spawn(move || {
                urgent::leave();
                serve(&work, &trace, &notifier);
            })?;
        Ok(Self(sender))
    }

    /// Wipes a tenant's file: [`JobResult::Scrubbed`] follows.
    pub fn scrub(&self, tenant: TenantNumber, scrub: Scrub<Device>) {
        // The thread lasts as long as this.
        let _ = self.0.send((tenant, Box::new(scrub)));
    }
}

fn serve(work: &Receiver<Job>, trace: &Reader, notifier: &JobSender) {
    let mut files = VecDeque::new();
    let mut next = trace.since(u64::MAX).next;
    let mut is_used = || {
        let seen = trace.since(next);
        next = seen.next;
        let is_use = |event: &TraceEvent| matches!(event, TraceEvent::Transaction { .. });
        seen.lost > 0 || seen.events.iter().any(is_use)
    };
    loop {
        let more = match files.is_empty() {
            true => work.recv().map_err(|_| TryRecvError::Disconnected),
            false => work.try_recv(),
        };
        match more {
            Ok(one) => {
                files.push_back(one);
                continue;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        let Some((tenant, mut scrub)) = files.pop_front() else {
            continue;
        };
        let begin = Instant::now();
        let result = scrub.step().map(drop);
        if result.is_err() || scrub.is_done() {
            let scrub = *scrub;
            notifier.send(JobResult::Scrubbed(
                tenant,
                Box::new(ScrubDone { scrub, result }),
            ));
        } else {
            files.push_back((tenant, scrub));
        }
        pause(begin.elapsed() * PAUSES, &mut is_used, std::thread::sleep);
    }
}

/// Leaves the disk to others for so long, as long as they use it.
fn pause(time: Duration, mut is_used: impl FnMut() -> bool, mut sleep: impl FnMut(Duration)) {
    let mut left = time;
    while !left.is_zero() && is_used() {
        let part = left.min(LOOK);
        sleep(part);
        left -= part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_left_to_others_for_as_long_as_they_use_it_and_no_longer_than_is_due() {
        let slept = |time, uses: usize| {
            let (mut looks, mut sum) = (0, Duration::ZERO);
            let is_used = || {
                looks += 1;
                looks <= uses
            };
            pause(time, is_used, |part| sum += part);
            sum
        };
        let second = Duration::from_secs(1);
        assert_eq!(slept(second * PAUSES, usize::MAX), second * PAUSES);
        assert_eq!(slept(second * PAUSES, 3), LOOK * 3);
        assert_eq!(slept(second * PAUSES, 0), Duration::ZERO);
        assert_eq!(slept(LOOK / 4, usize::MAX), LOOK / 4);
    }
}
