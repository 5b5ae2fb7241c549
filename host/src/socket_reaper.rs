//! Closes sockets to which peers may have sent descriptors, beside a loop that must not block.
//!
//! With a socket the kernel closes the descriptors that were sent there and never received. The peer chooses them,
//! and close() may wait for them ([`crate::fd_reaper`]). A thread that exits does not: the kernel waits there for no
//! TCP peer (SO_LINGER), and a socket's queue flushes no file of a FUSE server.
//!
//! Rule: no socket waits for another's descriptors, so an open socket does not stay in the table of descriptors.

use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// The thread that closes sockets.
pub struct SocketReaper {
    sender: Sender<OwnedFd>,
    waiting: Arc<AtomicUsize>,
}

impl SocketReaper {
    /// Starts the thread, with the caller's weight. Each thread that exits with sockets first runs `on_exit`.
    pub fn start(on_exit: fn()) -> Result<Self, Errno> {
        let (sender, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = waiting.clone();
        std::thread::Builder::new()
            .name("selfpage-socket".into())
            .spawn(move || close_all(&receiver, &counted, on_exit))
            .map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::AGAIN))?;
        Ok(Self { sender, waiting })
    }

    /// Closes a socket that no other process can receive from.
    pub fn close(&self, socket: OwnedFd) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The thread receives for as long as the sender exists.
        let _ = self.sender.send(socket);
    }

    /// Sockets that are not closed yet.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

fn close_all(receiver: &Receiver<OwnedFd>, waiting: &AtomicUsize, on_exit: fn()) {
    while let Ok(first) = receiver.recv() {
        let sockets: Vec<_> = std::iter::once(first).chain(receiver.try_iter()).collect();
        let numbers: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        let (copied, copies) = channel();
        let (closed, closes) = channel::<()>();
        let _ = std::thread::Builder::new().spawn(move || {
            if has_only(&numbers) && copied.send(()).is_ok() {
                // Until the copies are the last.
                let _ = closes.recv();
            }
            on_exit();
        });
        // Where the kernel has no memory for a thread or a table, it is this thread that waits in close().
        let _ = copies.recv();
        let count = sockets.len();
        drop(sockets);
        drop(closed);
        waiting.fetch_sub(count, Ordering::Relaxed);
    }
}

/// Gives the calling thread a table of its own with copies of these descriptors, which the kernel closes as the thread exits, and of no
/// others: the close of another one may wait. False where the kernel refuses.
fn has_only(numbers: &[RawFd]) -> bool {
    // SAFETY: the thread has used no descriptor, and the table of the others stays as it is.
    let has_own = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            0,
            u32::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        ) == 0
    };
    let process = has_own.then(|| pidfd_open(getpid(), PidfdFlags::empty()));
    let Some(Ok(process)) = process else {
        return false;
    };
    let copy = |number: &RawFd| {
        let copied = pidfd_getfd(&process, *number, PidfdGetfdFlags::empty());
        copied.map(IntoRawFd::into_raw_fd).is_ok()
    };
    numbers.iter().all(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd_reaper::lingering_socket;
    use crate::seqpacket;
    use rustix::fd::AsFd;
    use rustix::net::SendFlags;
    use std::time::{Duration, Instant};

    #[test]
    fn a_socket_that_holds_a_descriptor_whose_close_blocks_delays_no_other() {
        let reaper = SocketReaper::start(|| {}).unwrap();
        let mut peers = Vec::new();
        for _ in 0..5 {
            let (slow, peer) = lingering_socket(Duration::from_secs(60)).unwrap();
            let (ours, theirs) = seqpacket::pair().unwrap();
            seqpacket::send(&ours, b"x", &[slow.as_fd()], SendFlags::DONTWAIT).unwrap();
            // The last descriptor of the slow socket is in the queue from now on.
            drop(slow);
            reaper.close(theirs);
            peers.push((ours, peer));
        }
        let begin = Instant::now();
        let is_closed = |ours: &OwnedFd| {
            seqpacket::send(ours, b"x", &[], SendFlags::DONTWAIT) == Err(Errno::PIPE)
        };
        while reaper.waiting() > 0 || !peers.iter().all(|(ours, _)| is_closed(ours)) {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
