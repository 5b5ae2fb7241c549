//! Carries transactions to a place that is no descriptor: pages in other machines' memory.
//!
//! The user-safe disk of *Self-Paging in the Nemesis Operating System* (section 6.7) schedules a
//! device. What its thread schedules may as well be a link: clients, channels, contracts and the
//! bound on what is in flight stay the same. A [`Transport`] belongs to the disk's thread, which alone
//! calls it, between two turns of its loop.
//!
//! Rules:
//! - Nothing blocks, and nothing allocates per transaction.
//! - A part that was started completes once, whatever happens to the other end, or ends with the transport: nothing moves its
//!   memory after that.

use super::background::BackgroundWork;
use crate::time::Time;
use iochannel::{IoVec, Op};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// Names a part of a transaction that is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartId {
    pub(super) client: u32,
    pub(super) transaction: u32,
}

impl PartId {
    /// For what starts parts at a transport itself.
    pub fn new(client: u32, transaction: u32) -> Self {
        Self {
            client,
            transaction,
        }
    }
}

/// The error of a part, or what it moved, where some of its pages may have come (`has_some`). That no answer came
/// (`ETIMEDOUT`) is one of all its pages; where it is not, each of the others is to be asked for on its own.
pub fn result_of_part(result: i32, has_some: bool) -> i32 {
    match result == -Errno::TIMEDOUT.raw_os_error() && has_some {
        true => -Errno::IO.raw_os_error(),
        false => result,
    }
}

/// What reads and writes the pages of [`super::IoTarget::Space`].
pub trait Transport: Send {
    /// Starts a part: moves the pieces, whole pages, to or from byte `at` of `space`. It may be sent
    /// with the next [`Transport::flush`] only. Its result comes by [`Transport::reap`], later in any
    /// case.
    ///
    /// # Safety
    /// The pieces and their memory stay until the part was reaped. Another process may change the
    /// memory at any time.
    unsafe fn start(
        &mut self,
        now: Time,
        id: PartId,
        op: Op,
        space: u32,
        pieces: &[IoVec],
        at: u64,
    );

    /// Sends what was started.
    fn flush(&mut self, now: Time);

    /// The next part that completed: its bytes, or a negative error number. Receives what has
    /// arrived, too.
    fn reap(&mut self, now: Time) -> Option<(PartId, i32)>;

    /// Parts in flight.
    fn in_flight(&self) -> usize;

    /// Readable while there is something to receive, or room to send what waits for it.
    fn poll_fd(&self) -> BorrowedFd<'_>;

    /// When it is to be asked again though nothing is readable.
    fn next_due(&self) -> Option<Time>;

    /// Ends a write soon, with an error that [`Transport::reap`] returns, though the other end has not answered: its memory
    /// is not used after that. What the other end still does of it has no effect on later writes of the same place.
    /// A transport that cannot lets it go on.
    fn give_up(&mut self, _now: Time, _id: PartId) {}

    /// A page of a space has its contents elsewhere from now on: what is here is needed no more, and its room is free. No
    /// write of it is under way. Returns false where the page keeps its room, as at a transport that frees none.
    fn forget(&mut self, _space: u32, _page: u64) -> bool {
        false
    }

    /// The next part that waits for an other end which does not answer, while others of the transport could go on. The
    /// scheduler's bound is for what is done, so such a part counts as in flight no longer. It completes as all do.
    fn next_waiting(&mut self) -> Option<PartId> {
        None
    }

    /// The next piece of the transport's own work, if there is one and none is in flight.
    fn background(&mut self) -> Option<BackgroundWork> {
        None
    }

    /// Starts that piece, if it is still to be done. It may be sent with the next [`Transport::flush`] only.
    fn start_background(&mut self, _now: Time) {}

    /// Returns true until the piece has ended, failed or not.
    fn is_background_in_flight(&mut self) -> bool {
        false
    }
}
