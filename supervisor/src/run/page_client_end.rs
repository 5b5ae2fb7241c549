//! The end of a run whose pages are with a page client, which releases their room.

use super::ipc::{Message, SignalInfo};
use super::supervise::{REMARK, TO_END};
use crate::Supervisor;
use host::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How long `run` waits for the end of a page client: a store is given 30 s for a write that is under way, and as long for
/// the deletion of what it has.
const PAGE_CLIENT_END: Duration = Duration::from_secs(60);

/// Waits until the page client has ended, or `run` is asked to end. Where the end of `run` is that of a container or of a
/// service, the client is killed in that moment, and what it has not deleted yet would stay.
pub(super) fn wait(supervisor: &Supervisor, front: &OwnedFd) {
    let Some(client) = supervisor.end_page_client() else {
        return;
    };
    let begin = Instant::now();
    let mut remarked = false;
    while begin.elapsed() < PAGE_CLIENT_END {
        let mut fds = [
            PollFd::from_borrowed_fd(client, PollFlags::IN),
            PollFd::new(front, PollFlags::IN),
        ];
        let _ = poll(&mut fds, Timespec::try_from(REMARK).ok().as_ref());
        if has_ended(client) {
            return;
        }
        let is_request = |signal: SignalInfo| {
            Signal::from_named_raw(signal.signal).is_some_and(|it| TO_END.contains(&it))
        };
        match Message::receive(front) {
            // The signal that has ended the program may arrive after its end.
            Ok(Some(Message::Signal(signal))) if remarked && is_request(signal) => return,
            Ok(_) => {}
            Err(_) => return,
        }
        if begin.elapsed() > REMARK && !std::mem::replace(&mut remarked, true) {
            tracing::warn!(
                "the program has ended, and the room of its pages elsewhere is being released; a signal to this \
                 process ends that, and leaves in an object store what is not deleted"
            );
        }
    }
}

/// Takes what the client has sent, so that it waits for no room. Returns true if it has ended.
fn has_ended(client: BorrowedFd<'_>) -> bool {
    loop {
        match seqpacket::receive(client, RecvFlags::DONTWAIT) {
            Ok(message) if message.len > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => return false,
            _ => return true,
        }
    }
}
