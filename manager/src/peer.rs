//! The peer of a hand-off: its message and descriptors, received and judged.
//!
//! The message may come in pieces and the descriptors with any of them, or later. Rule: a peer has a
//! deadline and a limit for everything it sends, and each is received on a thread of its own, so one
//! that sends half a message, lies or vanishes costs only itself.
//!
//! The message is read with MSG_PEEK, and stays in the connection until the client is kept ([`PeerConnection::take_message`]): a
//! manager that follows a killed one receives it again.

use crate::handoff::{Handoff, HandoffError, MAX_MESSAGE};
use host::fd_reaper::{PeerFd, peer_uid};
use rustix::cmsg_space;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{fcntl_get_seals, fstat};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use translation::{ForeignUserfault, NotUserfault};
use wired::Bytes;

/// Descriptors of one message at most, by the kernel's limit (SCM_MAX_FD): the kernel would close
/// others before the call returns, and such a close may block.
const MAX_FDS: usize = 253;

/// A complete hand-off.
pub struct Peer {
    /// The memory.
    pub handoff: Handoff,
    /// Its faults.
    pub uffd: ForeignUserfault,
    /// The file behind the memory, where the peer sent one.
    pub memfd: Option<OwnedFd>,
    /// The process that connected; 0 where it is in no namespace of ours.
    pub pid: i32,
    /// A descriptor of it.
    pub process: Option<OwnedFd>,
}

/// A connection that is closed without a word, whatever was not read of it. It is kept open as long as the client is
/// served: its close tells the peer that it is not served any more.
pub struct PeerConnection {
    stream: Arc<UnixStream>,
    /// The peer's user.
    uid: u32,
}

/// Why a peer is not served.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The message.
    #[error(transparent)]
    Handoff(#[from] HandoffError),
    /// The connection.
    #[error("the connection failed: {0}")]
    Connection(Errno),
    /// The limit on descriptors.
    #[error("this process has no descriptors left for it (`ulimit -n`)")]
    NoDescriptor,
    /// The peer closed the connection too early.
    #[error("the peer closed its connection after {0} bytes of its hand-off")]
    Vanished(usize),
    /// The deadline passed.
    #[error("no complete hand-off with a descriptor arrived in {0:?} ({1} bytes did)")]
    Late(Duration, usize),
    /// More descriptors than a hand-off has.
    #[error("the peer sent {0} descriptors; a userfaultfd and at most a memfd are expected")]
    Descriptors(usize),
    /// None of the descriptors is a userfaultfd.
    #[error(transparent)]
    NotUserfault(#[from] NotUserfault),
    /// The second descriptor is not memory.
    #[error("the second descriptor is no file in memory (memfd, tmpfs or hugetlbfs)")]
    NotMemory,
    /// The memfd is smaller than the mappings.
    #[error("the memfd has {}, but the mappings end at {}", Bytes(*has), Bytes(*needed))]
    SmallMemory {
        /// Bytes of the file.
        has: u64,
        /// The last mapping's end.
        needed: u64,
    },
}

impl Peer {
    /// Receives a hand-off. `covered` is the number of bytes that offsets may cover.
    pub fn receive(
        connection: &PeerConnection,
        covered: u64,
        patience: Duration,
    ) -> Result<Self, PeerError> {
        let stream = &*connection.stream;
        peek_from_start(stream).map_err(PeerError::Connection)?;
        let deadline = Instant::now() + patience;
        let mut bytes = Vec::new();
        let mut fds = Vec::new();
        let handoff = loop {
            let parsed = Handoff::parse(&bytes, covered)?;
            if let (Some(handoff), false) = (parsed, fds.is_empty()) {
                break handoff;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(PeerError::Late(patience, bytes.len()));
            }
            let timeout = stream.set_read_timeout(Some(left));
            timeout.map_err(|_| PeerError::Connection(Errno::INVAL))?;
            match receive_part(connection, &mut bytes, &mut fds) {
                Ok(0) => return Err(PeerError::Vanished(bytes.len())),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(PeerError::Late(patience, bytes.len())),
                Err(Errno::MFILE) => return Err(PeerError::NoDescriptor),
                Err(errno) => return Err(PeerError::Connection(errno)),
            }
            if fds.len() > 2 {
                return Err(PeerError::Descriptors(fds.len()));
            }
        };
        let mut fds = fds.into_iter();
        let first = fds.next().ok_or(PeerError::Descriptors(0))?;
        ForeignUserfault::check(&first)?;
        let uffd = ForeignUserfault::adopt(first.into_owned())?;
        let memfd = fds.next().map(|memfd| check_memory(memfd, &handoff));
        let memfd = memfd.transpose()?;
        let credentials = rustix::net::sockopt::socket_peercred(stream).ok();
        let pid = credentials.map_or(0, |it| it.pid.as_raw_nonzero().get());
        let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Self {
            handoff,
            uffd,
            memfd,
            pid,
            process,
        })
    }
}

impl PeerConnection {
    /// The user that connected.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Ends the connection: nothing arrives there any more, and what did is closed.
    pub fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        self.take_message();
    }

    /// Takes the message, which holds its descriptors until then. Nothing else is expected there. The close of what came
    /// with it may wait for the peer, and so is not this thread's.
    pub fn take_message(&self) {
        let (mut part, mut fds) = ([0; 4096], Vec::new());
        loop {
            match receive(&*self.stream, &mut part, &mut fds, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) if bytes > 0 => {}
                Err(Errno::INTR) => {}
                _ => return,
            }
            fds.drain(..).for_each(|fd| drop(PeerFd::new(fd, self.uid)));
        }
    }
}

impl From<Arc<UnixStream>> for PeerConnection {
    fn from(stream: Arc<UnixStream>) -> Self {
        let uid = peer_uid(&stream);
        Self { stream, uid }
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        // The peer would see a reset in place of the end.
        self.take_message();
    }
}

/// Has peeks at a connection begin with its first byte, and go on where the last one ended.
fn peek_from_start(connection: &UnixStream) -> Result<(), Errno> {
    let start: libc::c_int = 0;
    // SAFETY: reads an int.
    let outcome = unsafe {
        libc::setsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const start).cast(),
            size_of_val(&start) as u32,
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(host::last_errno()),
    }
}

/// Receives what has arrived; 0 at the end of the stream.
fn receive_part(
    from: &PeerConnection,
    bytes: &mut Vec<u8>,
    fds: &mut Vec<PeerFd>,
) -> Result<usize, Errno> {
    // All of what one call sent: its descriptors come with each peek at a part of it.
    let mut part = vec![0; MAX_MESSAGE + 1 - bytes.len()];
    let mut new = Vec::new();
    let (received, is_cut) = receive(&*from.stream, &mut part, &mut new, RecvFlags::PEEK)?;
    // The close of any of them may wait for the peer.
    fds.extend(new.into_iter().map(|fd| PeerFd::new(fd, from.uid)));
    // The kernel drops descriptors for which there is no number left.
    if is_cut && fds.len() < MAX_FDS {
        return Err(Errno::MFILE);
    }
    bytes.extend_from_slice(&part[..received]);
    Ok(received)
}

/// One call. Returns how many bytes it received, and whether the kernel dropped descriptors.
fn receive(
    from: impl AsFd,
    into: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    flags: RecvFlags,
) -> Result<(usize, bool), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(into)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(from, &mut into, &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    Ok((received.bytes, received.flags.contains(ReturnFlags::CTRUNC)))
}

/// Judges the file behind the memory. Nothing is asked of its file system before it is known to be in memory: another one may not
/// answer.
fn check_memory(memfd: PeerFd, handoff: &Handoff) -> Result<OwnedFd, PeerError> {
    // The kernel has seals for files of tmpfs and hugetlbfs alone.
    fcntl_get_seals(&memfd).map_err(|_| PeerError::NotMemory)?;
    let memfd = memfd.into_owned();
    let stat = fstat(&memfd).map_err(PeerError::Connection)?;
    let ends = handoff.mappings.iter().map(|it| it.offset + it.len as u64);
    let (has, needed) = (stat.st_size as u64, ends.max().unwrap_or(0));
    if has < needed {
        return Err(PeerError::SmallMemory { has, needed });
    }
    Ok(memfd)
}
