//! Quiesces the pager around a fork's clone. What is not there yet (a domain, frames, this library's heap, which another
//! thread has) is waited for without locks: other threads map and unmap meanwhile.

use super::locks::ForkLocks;
use crate::heap::{HEAPS, HeapGuard};
use crate::process_pager::{ForkGate, admit_child, dismiss_child, is_retryable};
use crate::{diagnostics, shared_memory};
use frames::DomainId;
use selfpage::embedding::FORK_POLL_INTERVAL;
use std::time::Instant;

/// The pager and this library's heaps stand still.
pub struct QuiescedPager {
    gate: ForkGate,
    heap: HeapGuard,
}

impl QuiescedPager {
    /// In the parent: the pager goes on. Returns the child where the kernel made one.
    pub fn end(self, is_cloned: bool) -> Option<DomainId> {
        drop(self.heap);
        self.gate.open(is_cloned)
    }

    /// In the child, whose pager is to start.
    pub fn into_gate(self) -> ForkGate {
        self.gate
    }
}

/// Why the pager cannot stand still now.
enum QuiesceError {
    /// Frames for this child are coming.
    Frames(DomainId),
    /// Another thread has the heap.
    Heap,
    /// The child is refused, and dismissed.
    Refused,
}

/// Quiesces the pager for a fork, under locks. Where that fails the child is refused; the user has been told.
pub fn quiesce(
    admitted: Option<DomainId>,
    locks: impl Fn() -> ForkLocks,
) -> (Option<QuiescedPager>, ForkLocks) {
    let begun = Instant::now();
    let mut admitted = admitted;
    loop {
        let child = admitted
            .take()
            .map_or_else(admit_child, |child| Ok(Some(child)));
        let mut locks = locks();
        let quiesced = match child {
            Err(why) => Err(refused(&why)),
            Ok(Some(child)) if locks.is_complete && !shared_memory::keep_for_child(child) => {
                dismiss_child(child);
                Err(QuiesceError::Refused)
            }
            Ok(child) if locks.is_complete => try_to_quiesce(child, begun),
            Ok(child) => {
                child.into_iter().for_each(dismiss_child);
                Err(refused(
                    &"the pages that it touches while the pager stands still do not fit into the frames; give the \
                      program more frames",
                ))
            }
        };
        match quiesced {
            Ok(pager) => return (Some(pager), locks),
            Err(QuiesceError::Refused) => return (None, locks),
            Err(QuiesceError::Frames(child)) => {
                admitted = Some(child);
                locks.release(false);
                std::thread::sleep(FORK_POLL_INTERVAL);
            }
            Err(QuiesceError::Heap) => {
                locks.release(false);
                HEAPS.wait();
            }
        }
    }
}

fn try_to_quiesce(child: Option<DomainId>, begun: Instant) -> Result<QuiescedPager, QuiesceError> {
    let gate = ForkGate::close(child).map_err(|why| match child {
        Some(child) if is_retryable(&why, begun) => QuiesceError::Frames(child),
        _ => {
            child.into_iter().for_each(dismiss_child);
            refused(&why)
        }
    })?;
    match HEAPS.try_lock() {
        Some(heap) => Ok(QuiescedPager { gate, heap }),
        None => {
            // The child goes with the frames that it has: the next gate reserves as many anew.
            gate.open(false);
            Err(QuiesceError::Heap)
        }
    }
}

fn refused(why: &dyn std::fmt::Display) -> QuiesceError {
    diagnostics::log(format_args!("fork refused: {why}"));
    QuiesceError::Refused
}
