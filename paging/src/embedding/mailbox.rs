//! Commands of the program's threads to the evictor's thread.

use crate::pager::Pager;
use crate::stretch::StretchState;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use wired::{Guard, Lock, futex};

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
    /// Register memory: address, length.
    Register(usize, usize),
    /// Move contents: from, length, to.
    Transfer(usize, usize, usize),
    /// Add a stretch to the index. Returns 1 where there is no room.
    Insert(&'static StretchState),
    /// Take the stretch at an address out of the index.
    Remove(usize),
    /// Charge the pages that are present already: address, length.
    Charge(usize, usize),
    /// Empty the standby list and make about this many frames unused.
    Drain(u32),
    /// Change pages: how, address, length. Returns 1 where a page could not be.
    Change(Change, usize, usize),
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

/// No command.
const EMPTY: u32 = 0;
/// A command is pending.
const PENDING: u32 = 1;
/// The command is complete.
const COMPLETED: u32 = 2;

/// One command at a time.
pub(super) struct Mailbox {
    sender: Lock<()>,
    /// Whose turn it is, the sender's or the evictor's: see [`EMPTY`] and so on.
    turn: AtomicU32,
    command: Lock<Option<PagerCommand>>,
    /// The result: an errno, or frames that became unused.
    result: AtomicU32,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        Self {
            sender: Lock::new(()),
            turn: AtomicU32::new(EMPTY),
            command: Lock::new(None),
            result: AtomicU32::new(0),
        }
    }

    /// Excludes other senders.
    pub(super) fn lock(&self) -> Guard<'_, ()> {
        self.sender.lock()
    }

    /// Has a command run by the evictor's thread, and waits for its result.
    pub(super) fn send(
        &self,
        _sender: &Guard<'_, ()>,
        command: PagerCommand,
        pager: &Pager,
    ) -> u32 {
        *self.command.lock() = Some(command);
        self.turn.store(PENDING, Ordering::Release);
        pager.frames.wake_evictor();
        while self.turn.load(Ordering::Acquire) == PENDING {
            futex::wait(&self.turn, PENDING, Some(IDLE));
        }
        self.turn.store(EMPTY, Ordering::Relaxed);
        self.result.load(Ordering::Acquire)
    }

    /// Runs the command that is pending, if any.
    pub(super) fn handle(&self, run: impl FnOnce(PagerCommand) -> u32) {
        if self.turn.load(Ordering::Acquire) != PENDING {
            return;
        }
        let command = self.command.lock().take();
        let result = command.map_or(0, run);
        self.result.store(result, Ordering::Release);
        self.turn.store(COMPLETED, Ordering::Release);
        futex::wake_all(&self.turn);
    }

    /// Empties it in the child of a fork.
    pub(super) fn clear(&self) {
        self.turn.store(EMPTY, Ordering::Release);
    }
}
