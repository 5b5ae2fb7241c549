//! The children of a client's process, which are not served.
//!
//! A child has a copy of the memory, which lacks the pages that were not in place at the fork: it reads zeros there once its
//! userfaultfd is closed. So that is kept open as long as the child lives, and its faults wait for ever. A client may have
//! [`MOST_CHILDREN`] such; of the next, accesses to what it lacks fail (SIGBUS), as to a page that is lost (since Linux 6.6; before, it
//! reads zeros).

use crate::keeper_link::KeptSlot;
use rustix::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use translation::{ForeignUserfault, MapError};

/// Children at once: as many descriptors as a message to the keeper has.
const MOST_CHILDREN: usize = host::seqpacket::DESCRIPTORS;

/// The keeper learns of new children so often: each time it has all of them stored again, and a client may fork without a pause.
const KEPT_EVERY: Duration = Duration::from_secs(1);
/// Attempts to have the accesses of a child fail that changes its memory meanwhile.
const ATTEMPTS: usize = 1000;

/// The userfaultfds of children that live.
pub(super) struct Children {
    fds: Vec<ForeignUserfault>,
    /// The keeper lacks some.
    is_unkept: bool,
    kept: Option<Instant>,
}

impl Children {
    /// Those that the keeper has.
    pub fn new(fds: Vec<OwnedFd>) -> Self {
        let mut children = Vec::with_capacity(MOST_CHILDREN.max(fds.len()));
        children.extend(
            fds.into_iter()
                .filter_map(|fd| ForeignUserfault::adopt(fd).ok()),
        );
        Self {
            fds: children,
            is_unkept: false,
            kept: None,
        }
    }

    /// Adds a child, whose memory is at `ranges`.
    pub fn add(
        &mut self,
        child: OwnedFd,
        ranges: impl Iterator<Item = (usize, usize)>,
        page_size: usize,
    ) {
        let Ok(child) = ForeignUserfault::adopt(child) else {
            return;
        };
        if self.fds.len() >= MOST_CHILDREN {
            self.fds.retain(ForeignUserfault::is_owner_alive);
        }
        if self.fds.len() >= MOST_CHILDREN {
            return ranges.for_each(|(addr, len)| poison(&child, addr, len, page_size));
        }
        self.fds.push(child);
        self.is_unkept = true;
    }

    /// Has the keeper hold what it lacks.
    pub fn keep(&mut self, slot: Option<&KeptSlot>) {
        let is_recent = self.kept.is_some_and(|at| at.elapsed() < KEPT_EVERY);
        if let (Some(slot), true, false) = (slot, self.is_unkept, is_recent) {
            let all: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
            slot.keep_children(&all);
            (self.is_unkept, self.kept) = (false, Some(Instant::now()));
        }
    }
}

/// Makes accesses to what the child lacks fail.
fn poison(child: &ForeignUserfault, addr: usize, len: usize, page_size: usize) {
    let (mut at, mut attempts) = (0, 0);
    while at < len {
        at += match child.poison(addr + at, len - at) {
            Ok(()) => return,
            Err(MapError::Exists { done }) => done + page_size,
            // It forks, moves or unmaps memory, and waits until its events are read.
            Err(MapError::Again { done }) if attempts < ATTEMPTS => {
                attempts += 1;
                let mut events = [const { None }; 16];
                let _ = child.read(&mut events);
                done
            }
            Err(_) => return,
        };
    }
}
