//! The children of a client's process, which are not served.
//!
//! A child has a copy of the memory, which lacks the pages that were not in place at the fork: it reads zeros there once its
//! userfaultfd is closed. So that is kept open as long as the child lives, and its faults wait for ever. A client may have
//! [`MOST_CHILDREN`] such; of the next, accesses to what it lacks fail (SIGBUS), as to a page that is lost (since Linux 6.6; before, it
//! reads zeros).

use crate::keeper_link::{ChildNumber, KeptSlot};
use rustix::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use translation::{ForeignUserfault, MapError};

/// Children at once: as many descriptors as a message to the keeper has.
const MOST_CHILDREN: usize = host::seqpacket::DESCRIPTORS;

/// The keeper learns of new children so often: it has systemd store each, and a client may fork without a pause.
const KEPT_EVERY: Duration = Duration::from_secs(1);
/// Attempts to have the accesses of a child fail that changes its memory meanwhile.
const ATTEMPTS: usize = 1000;

/// The userfaultfds of children that live.
pub(super) struct Children {
    list: Vec<LiveChild>,
    /// Numbers of those that the keeper has, and that have ended.
    ended: Vec<ChildNumber>,
    /// When the keeper learned of some last.
    kept: Option<Instant>,
}

/// A child, by its number with the keeper.
struct LiveChild {
    number: ChildNumber,
    fd: ForeignUserfault,
    is_kept: bool,
}

impl Children {
    /// Those that the keeper has.
    pub fn new(kept: impl IntoIterator<Item = (ChildNumber, OwnedFd)>) -> Self {
        let child = |(number, fd)| {
            Some(LiveChild {
                number,
                fd: ForeignUserfault::adopt(fd).ok()?,
                is_kept: true,
            })
        };
        let mut list = Vec::with_capacity(MOST_CHILDREN);
        list.extend(kept.into_iter().filter_map(child));
        Self {
            list,
            ended: Vec::new(),
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
        if self.list.len() >= MOST_CHILDREN {
            self.remove_ended();
        }
        if self.list.len() >= MOST_CHILDREN {
            return ranges.for_each(|(addr, len)| poison(&child, addr, len, page_size));
        }
        let is_free = |number: &ChildNumber| {
            let mut others = self.list.iter().map(|it| it.number);
            !others.any(|other| other == *number) && !self.ended.contains(number)
        };
        // They are fewer than numbers.
        let number = (0..=ChildNumber::MAX).find(is_free).unwrap_or_default();
        self.list.push(LiveChild {
            number,
            fd: child,
            is_kept: false,
        });
    }

    fn remove_ended(&mut self) {
        let has_ended = |it: &mut LiveChild| !it.fd.is_owner_alive();
        let removed = self.list.extract_if(.., has_ended);
        let kept = removed.filter(|it| it.is_kept).map(|it| it.number);
        self.ended.extend(kept);
    }

    /// Has the keeper hold what it lacks, and close what has ended.
    pub fn keep(&mut self, slot: Option<&KeptSlot>) {
        let is_recent = self.kept.is_some_and(|at| at.elapsed() < KEPT_EVERY);
        let new = || self.list.iter().filter(|it| !it.is_kept);
        let has_news = !self.ended.is_empty() || new().next().is_some();
        if let (Some(slot), true, false) = (slot, has_news, is_recent) {
            let new: Vec<_> = new().map(|it| (it.number, it.fd.as_fd())).collect();
            slot.keep_children(&self.ended, &new);
            self.ended.clear();
            self.list.iter_mut().for_each(|it| it.is_kept = true);
            self.kept = Some(Instant::now());
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
