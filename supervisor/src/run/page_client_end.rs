//! The end of a run with a page client, which deletes the tree's pages.

use super::ipc::{Message, SignalInfo};
use super::supervise::{END_SIGNALS, NOTICE_DELAY};
use crate::Supervisor;
use host::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How long `run` waits for the end of a page client: a store has 30 s for a write in flight, and as long for
/// the deletion of the pages.
const PAGE_CLIENT_END: Duration = Duration::from_secs(60);

/// Waits until the page client has ended, or a signal requests the end of `run`. If a container or a service ends with
/// `run`, the client is killed at that moment, and pages that it has not deleted yet would stay.
pub(super) fn wait(supervisor: &Supervisor, front: &OwnedFd) {
    let Some(client) = supervisor.end_page_client() else {
        return;
    };
    let begin = Instant::now();
    let mut is_noticed = false;
    while begin.elapsed() < PAGE_CLIENT_END {
        let mut fds = [
            PollFd::from_borrowed_fd(client, PollFlags::IN),
            PollFd::new(front, PollFlags::IN),
        ];
        let _ = poll(&mut fds, Timespec::try_from(NOTICE_DELAY).ok().as_ref());
        if has_ended(client) {
            return;
        }
        let is_request = |signal: SignalInfo| {
            Signal::from_named_raw(signal.signal).is_some_and(|it| END_SIGNALS.contains(&it))
        };
        match Message::receive(front) {
            // The signal that ended the program may arrive after its end: only one after the notice counts.
            Ok(Some(Message::Signal(signal))) if is_noticed && is_request(signal) => return,
            Ok(_) => {}
            Err(_) => return,
        }
        if begin.elapsed() > NOTICE_DELAY && !std::mem::replace(&mut is_noticed, true) {
            tracing::warn!(
                "the program has ended, and its pages are being deleted; a signal to this process stops that, and \
                 leaves in an object store the pages that are not deleted yet"
            );
        }
    }
}

/// Receives the client's messages, so that its socket never fills. Returns true if the client has ended.
fn has_ended(client: BorrowedFd<'_>) -> bool {
    loop {
        match seqpacket::receive(client, RecvFlags::DONTWAIT) {
            Ok(message) if message.len > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => return false,
            _ => return true,
        }
    }
}
