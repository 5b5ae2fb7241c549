//! Closes descriptors that peers made, beside a loop that must not block.
//!
//! Closing may wait: for the server of a FUSE file system, for a TCP peer that acknowledges
//! nothing (SO_LINGER), for the space of a large file to be freed; and with a socket the
//! kernel closes the descriptors that were sent there and never received. The peer chooses the
//! descriptor, and can make its close() block for ever.
//!
//! Rule: one closing thread per user, while there is something to close. So a slow close()
//! delays only the user that sent the descriptor.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::fcntl_get_seals;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::mem::ManuallyDrop;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most descriptors of one user that wait to be closed. Beyond them no message of that user is received.
const MAX_WAITING: usize = 512;

/// How long a thread with an empty queue lives on.
const IDLE: Duration = Duration::from_secs(2);

/// The descriptors that are being closed, by user.
pub struct FdReaper {
    users: BTreeMap<u32, ReaperThread>,
    /// Descriptors, with their users, that wait because no thread could be started.
    waiting: VecDeque<(u32, OwnedFd)>,
    /// The process that started the threads.
    process: u32,
    on_start: fn(),
}

struct ReaperThread {
    sender: Sender<OwnedFd>,
    waiting: Arc<AtomicUsize>,
}

impl FdReaper {
    /// A reaper without threads. Each closing thread first runs `on_start`.
    pub const fn new(on_start: fn()) -> Self {
        Self {
            users: BTreeMap::new(),
            waiting: VecDeque::new(),
            process: 0,
            on_start,
        }
    }

    /// Closes a descriptor that this user sent, and the descriptors that wait for a thread.
    pub fn close(&mut self, uid: u32, fd: OwnedFd) {
        if is_quick(&fd) {
            return;
        }
        let process = std::process::id();
        if self.process != process {
            // The child of a fork has none of its parent's threads.
            std::mem::forget(std::mem::take(&mut self.users));
            self.process = process;
        }
        self.waiting.push_back((uid, fd));
        while let Some((uid, fd)) = self.waiting.pop_front() {
            if let Err(fd) = self.send(uid, fd) {
                // No thread can be started: nothing blocks, and the next call tries again.
                return self.waiting.push_front((uid, fd));
            }
        }
    }

    fn send(&mut self, uid: u32, fd: OwnedFd) -> Result<(), OwnedFd> {
        let fd = match self.users.get(&uid) {
            Some(thread) => match thread.send(fd) {
                Ok(()) => return Ok(()),
                Err(fd) => fd,
            },
            None => fd,
        };
        let thread = ReaperThread::start(self.on_start);
        thread.send(fd)?;
        self.users.insert(uid, thread);
        Ok(())
    }

    /// Returns true if this user's queue is full: the caller receives no further message of the user.
    pub fn is_behind(&self, uid: u32) -> bool {
        self.waiting(uid) >= MAX_WAITING
    }

    /// Descriptors of this user that are not closed yet.
    pub fn waiting(&self, uid: u32) -> usize {
        let sent = self.users.get(&uid).map_or(0, ReaperThread::waiting);
        sent + self.waiting.iter().filter(|(of, _)| *of == uid).count()
    }
}

/// The reaper that closes every [`PeerFd`] of this process.
static REAPER: Mutex<FdReaper> = Mutex::new(FdReaper::new(|| {}));

fn reaper() -> MutexGuard<'static, FdReaper> {
    REAPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The user at the other end of a Unix socket; the highest number where the kernel does not report it.
pub fn peer_uid(socket: impl AsFd) -> u32 {
    rustix::net::sockopt::socket_peercred(socket).map_or(u32::MAX, |peer| peer.uid.as_raw())
}

/// A descriptor that a peer made, or can send others to: when it is dropped, the closing thread of
/// the peer's user closes it.
#[derive(Debug)]
pub struct PeerFd {
    fd: ManuallyDrop<OwnedFd>,
    uid: u32,
}

impl PeerFd {
    /// A descriptor that this user sent.
    pub fn new(fd: OwnedFd, uid: u32) -> Self {
        let fd = ManuallyDrop::new(fd);
        Self { fd, uid }
    }

    /// The user that sent it.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Another descriptor of the same file.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self::new(self.fd.try_clone()?, self.uid))
    }

    /// The descriptor, for an owner that may wait when it closes it.
    pub fn into_owned(self) -> OwnedFd {
        let mut it = ManuallyDrop::new(self);
        // SAFETY: it is not used, nor dropped, afterwards.
        unsafe { ManuallyDrop::take(&mut it.fd) }
    }

    /// The descriptor, if it is memory or a bell, whose close() never blocks.
    pub fn into_quick(self) -> Option<OwnedFd> {
        is_quick(&self.fd).then(|| self.into_owned())
    }

    /// Returns true if this user's queue is full: the caller receives no further message of the user.
    pub fn is_behind(uid: u32) -> bool {
        reaper().is_behind(uid)
    }

    /// Returns true if as many descriptors of all users together wait to be closed as one user's queue holds:
    /// one person may have many users.
    pub fn is_reaper_full() -> bool {
        let reaper = reaper();
        let sent = reaper.users.values().map(ReaperThread::waiting);
        sent.sum::<usize>() + reaper.waiting.len() >= MAX_WAITING
    }
}

impl AsFd for PeerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for PeerFd {
    fn drop(&mut self) {
        // SAFETY: it is not used afterwards.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        reaper().close(self.uid, fd);
    }
}

impl ReaperThread {
    fn start(on_start: fn()) -> Self {
        let (sender, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = waiting.clone();
        // Where no thread can be started, the channel has no receiver, and `send` fails.
        let _ = std::thread::Builder::new()
            .name("selfpage-closer".into())
            .spawn(move || {
                on_start();
                close_all(&receiver, &counted);
            });
        Self { sender, waiting }
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn send(&self, fd: OwnedFd) -> Result<(), OwnedFd> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.sender.send(fd).map_err(|back| back.0)
    }
}

fn close_all(receiver: &Receiver<OwnedFd>, waiting: &AtomicUsize) {
    loop {
        match receiver.recv_timeout(IDLE) {
            Ok(fd) => drop(fd),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
        waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns true if the descriptor's close() never blocks: eventfds and memfds, which honest clients
/// send. The check calls no file system, since that may not reply.
fn is_quick(fd: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let Ok(link) = link else {
        return false;
    };
    let name = link.as_os_str().as_encoded_bytes();
    name == b"anon_inode:[eventfd]" || (name.starts_with(b"/memfd:") && fcntl_get_seals(fd).is_ok())
}

/// A socket whose close() waits for `linger`, or until the returned peer is dropped: for tests.
#[doc(hidden)]
pub fn lingering_socket(linger: Duration) -> std::io::Result<(OwnedFd, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    rustix::net::sockopt::set_socket_linger(&socket, Some(linger))?;
    socket.set_nonblocking(true)?;
    while socket.write(&[0; 1 << 16]).is_ok() {}
    Ok((socket.into(), other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqpacket;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::Errno;
    use rustix::net::{RecvFlags, SendFlags};
    use std::time::Instant;

    #[test]
    fn only_bells_and_memory_are_closed_at_once() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        assert!(is_quick(&memfd_create("x", flags).unwrap()));
        assert!(is_quick(&eventfd(0, EventfdFlags::CLOEXEC).unwrap()));
        let (ours, theirs) = seqpacket::pair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("x")).unwrap();
        for slow in [ours, theirs, file.into()] {
            assert!(!is_quick(&slow));
        }
    }

    /// Waits until the other end of a connection is closed.
    fn await_close(ours: &OwnedFd) {
        let begin = Instant::now();
        while seqpacket::send(ours, b"x", &[], SendFlags::DONTWAIT) != Err(Errno::PIPE) {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_descriptor_is_closed_though_the_users_thread_had_ended() {
        let mut closer = FdReaper::new(|| {});
        for _ in 0..2 {
            let (ours, theirs) = seqpacket::pair().unwrap();
            closer.close(7, theirs);
            await_close(&ours);
            assert!(!closer.is_behind(7));
            let _ = seqpacket::receive(&ours, RecvFlags::DONTWAIT);
            // As if the thread had ended after IDLE.
            closer.users.get_mut(&7).unwrap().sender = channel().0;
        }
    }

    #[test]
    fn a_slow_close_delays_its_user_alone() {
        // A child that another test starts has a copy until it executes its program: then the close is
        // not the last, and not slow.
        let delayed = (0..5).any(|attempt| is_delayed_behind_a_slow_close(7 + 2 * attempt));
        assert!(delayed);
    }

    fn is_delayed_behind_a_slow_close(user: u32) -> bool {
        let (slow, other) = lingering_socket(Duration::from_secs(40)).unwrap();
        let (ours, behind) = seqpacket::pair().unwrap();
        let (of_another, quick) = seqpacket::pair().unwrap();
        drop(PeerFd::new(slow, user));
        drop(PeerFd::new(behind, user));
        drop(PeerFd::new(quick, user + 1));
        await_close(&of_another);
        let is_open = seqpacket::send(&ours, b"x", &[], SendFlags::DONTWAIT).is_ok();
        let delayed = is_open && reaper().users[&user].waiting() == 2;
        drop(other);
        await_close(&ours);
        delayed
    }
}
