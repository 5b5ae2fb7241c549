//! Commands of the program's threads to the evictor's thread.

use crate::stretch::StretchState;
use std::time::Duration;

/// How often the evictor polls for work that no doorbell announces.
pub(super) const IDLE: Duration = Duration::from_millis(50);
/// How often the evictor tries a discard again that a fork's closed gate keeps out.
pub(super) const DISCARD_RETRY: Duration = Duration::from_millis(1);
/// Longest pause of the evictor's thread where nothing has a deadline: the pauses double up to
/// here while the thread is not rung for. What its channels hold is given back on the way there.
pub(super) const QUIET: Duration = Duration::from_millis(1600);

/// A request of a program's thread to the evictor's thread: any operation that needs a
/// descriptor (the userfaultfd, the store's ring), which the program's threads do not have, or
/// that pager threads wait for: a fault on the caller's stack would wait for them.
#[derive(Clone, Copy)]
pub(super) enum PagerCommand {
    /// Register memory: address, length. Returns an errno.
    Register(usize, usize),
    /// Leave memory to the kernel again, which its stretches have surrendered: address, length.
    Unregister(usize, usize),
    /// Move contents: from, length, to.
    Transfer(usize, usize, usize),
    /// Add a stretch to the index. Returns 1 where there is no room.
    Insert(&'static StretchState),
    /// Take the stretch at an address out of the index.
    Remove(usize),
    /// Charge the pages that are present already: address, length. Returns an errno.
    Charge(usize, usize),
    /// Empty the standby list and make about this many frames unused.
    Drain(u32),
    /// Change pages: how, address, length. Returns 1 where a page could not be.
    Change(Change, usize, usize),
    /// Work of the embedding's own that needs the pager's descriptors or rights.
    Run(fn() -> u32),
}

/// An operation on pages with their unit's gate closed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Discard,
    Surrender,
    Reclaim,
    Nail,
    Unnail,
}
