//! The pager's pause around a fork's clone. What is not there yet (a domain, frames, this library's heap, which another
//! thread has) is waited for without locks: other threads map and unmap meanwhile.

use super::locks::ForkLocks;
use crate::cancellation::CancellationDisabled;
use crate::diagnostics;
use crate::heap::{HEAPS, HeapGuard};
use crate::process_pager::{ForkGate, admit_child, dismiss_child, is_coming};
use frames::DomainId;
use selfpage::embedding::FORK_POLL_INTERVAL;
use std::time::Instant;

/// The pager and this library's heaps stand still.
pub struct PagerPause {
    gate: ForkGate,
    heap: HeapGuard,
}

impl PagerPause {
    /// In the parent: ends the pause. Returns the child where one was `made`.
    pub fn end(self, made: bool) -> Option<DomainId> {
        drop(self.heap);
        self.gate.open(made)
    }

    /// In the child, whose pager is to start.
    pub fn into_gate(self) -> ForkGate {
        self.gate
    }
}

/// Why the pager cannot stand still now.
enum Obstacle {
    /// Frames for this child are coming.
    Frames(DomainId),
    /// Another thread has the heap.
    Heap,
    /// The child is refused, and dismissed.
    Refused,
}

/// Pauses the pager for a fork, under locks. Without a pause the child is refused; the user has been told.
pub fn pause(
    admitted: Option<DomainId>,
    locks: impl Fn() -> ForkLocks,
) -> (Option<PagerPause>, ForkLocks) {
    let _uncancelled = CancellationDisabled::new();
    let begun = Instant::now();
    let mut admitted = admitted;
    loop {
        let child = admitted
            .take()
            .map_or_else(admit_child, |child| Ok(Some(child)));
        let mut locks = locks();
        let paused = match child {
            Err(why) => Err(refused(&why)),
            Ok(child) if locks.is_complete => try_to_pause(child, begun),
            Ok(child) => {
                child.into_iter().for_each(dismiss_child);
                Err(refused(
                    &"the pages that it touches while the pager stands still do not fit into the frames; give the \
                      program more frames",
                ))
            }
        };
        match paused {
            Ok(pause) => return (Some(pause), locks),
            Err(Obstacle::Refused) => return (None, locks),
            Err(Obstacle::Frames(child)) => {
                admitted = Some(child);
                locks.release(false);
                std::thread::sleep(FORK_POLL_INTERVAL);
            }
            Err(Obstacle::Heap) => {
                locks.release(false);
                HEAPS.wait();
            }
        }
    }
}

fn try_to_pause(child: Option<DomainId>, begun: Instant) -> Result<PagerPause, Obstacle> {
    let gate = ForkGate::close(child).map_err(|why| match child {
        Some(child) if is_coming(&why, begun) => Obstacle::Frames(child),
        _ => {
            child.into_iter().for_each(dismiss_child);
            refused(&why)
        }
    })?;
    match HEAPS.try_lock() {
        Some(heap) => Ok(PagerPause { gate, heap }),
        None => {
            // The child goes with the frames that it has: the next gate reserves as many anew.
            gate.open(false);
            Err(Obstacle::Heap)
        }
    }
}

fn refused(why: &dyn std::fmt::Display) -> Obstacle {
    diagnostics::log(format_args!("fork refused: {why}"));
    Obstacle::Refused
}
