//! What a handler thread waits on.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::time::Duration;

/// The events that a wait found.
#[derive(Default)]
pub(super) struct PollResult {
    /// A fault can be read.
    pub(super) faults: bool,
    /// A read has completed.
    pub(super) read: bool,
    /// The handler should doze.
    pub(super) rung: bool,
    /// The second descriptor is readable.
    pub(super) also: bool,
}

impl PollResult {
    /// Returns true if there was an event.
    pub(super) fn any(&self) -> bool {
        self.faults || self.read || self.rung || self.also
    }

    /// Waits for any of these descriptors, up to `limit`; for the userfaultfd, the first, if
    /// `faults`. Those that are not waited for are left out: each adds to a fault's cost.
    pub(super) fn wait(
        userfault: BorrowedFd<'_>,
        faults: bool,
        ring: Option<BorrowedFd<'_>>,
        bell: Option<BorrowedFd<'_>>,
        also: Option<BorrowedFd<'_>>,
        limit: Option<Duration>,
    ) -> Self {
        let unused = PollFd::from_borrowed_fd(userfault, PollFlags::empty());
        let mut fds = [unused.clone(), unused.clone(), unused.clone(), unused];
        let mut count = 0;
        let wanted = [faults.then_some(userfault), ring, bell, also];
        for fd in wanted.into_iter().flatten() {
            fds[count] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            count += 1;
        }
        let limit = limit.map(|limit| Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        if poll(&mut fds[..count], limit.as_ref()).is_err() {
            return Self::default();
        }
        Self {
            faults: faults && fds[0].revents().contains(PollFlags::IN),
            read: ring.is_some() && !fds[usize::from(faults)].revents().is_empty(),
            rung: bell.is_some()
                && !fds[count - 1 - usize::from(also.is_some())]
                    .revents()
                    .is_empty(),
            also: also.is_some() && !fds[count - 1].revents().is_empty(),
        }
    }
}
