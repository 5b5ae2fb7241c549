//! The children of a client's process, which are not served.
//!
//! A child has a copy of the memory, which lacks the pages that were not in place at the fork: it reads zeros there once its
//! userfaultfd is closed. So that is kept open as long as the child lives, and its faults wait for ever. A client may have
//! [`MOST_CHILDREN`] such; of the next, accesses to what it lacks fail (SIGBUS), as to a page that is lost (since Linux 6.6; before, it
//! reads zeros).

use crate::keeper_link::KeptSlot;
use rustix::fd::{AsFd, OwnedFd};
use translation::{ForeignUserfault, MapError};

/// Children at once: as many descriptors as a message to the keeper has.
const MOST_CHILDREN: usize = host::seqpacket::DESCRIPTORS;

/// The userfaultfds of children that live.
pub(super) struct Children(Vec<ForeignUserfault>);

impl Children {
    /// Those that the keeper has.
    pub fn new(fds: Vec<OwnedFd>) -> Self {
        let mut children = Vec::with_capacity(MOST_CHILDREN.max(fds.len()));
        children.extend(
            fds.into_iter()
                .filter_map(|fd| ForeignUserfault::adopt(fd).ok()),
        );
        Self(children)
    }

    /// Adds a child, whose memory is at `ranges`.
    pub fn add(
        &mut self,
        child: OwnedFd,
        kept: Option<&KeptSlot>,
        ranges: impl Iterator<Item = (usize, usize)>,
        page_size: usize,
    ) {
        let Ok(child) = ForeignUserfault::adopt(child) else {
            return;
        };
        if self.0.len() >= MOST_CHILDREN {
            self.0.retain(ForeignUserfault::is_owner_alive);
        }
        if self.0.len() >= MOST_CHILDREN {
            return ranges.for_each(|(addr, len)| poison(&child, addr, len, page_size));
        }
        self.0.push(child);
        let all: Vec<_> = self.0.iter().map(AsFd::as_fd).collect();
        kept.inspect(|kept| kept.keep_children(&all));
    }
}

/// Makes accesses to what the child lacks fail.
fn poison(child: &ForeignUserfault, addr: usize, len: usize, page_size: usize) {
    let mut at = 0;
    while at < len {
        at += match child.poison(addr + at, len - at) {
            Ok(()) => return,
            Err(MapError::Exists { done }) => done + page_size,
            // It forks or unmaps; its events are read by no one, so what they wait for is its own.
            Err(_) => return,
        };
    }
}
