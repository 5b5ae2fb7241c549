//! What passes between a manager and its keeper ([`crate::keeper`]): connections one way, descriptors to keep the other.
//!
//! A message is a letter, a client's slot and, for descriptors, what each is. A message that was sent is kept: it lies in
//! the keeper's socket, whatever becomes of the manager. Where systemd has the descriptors, too, the keeper confirms that
//! it has sent them there: both may be killed.

#[cfg(test)]
mod tests;

use host::seqpacket::{self, Received};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SendFlags, sockopt};
use std::fmt::Display;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// A client's number with the keeper.
pub type ClientSlot = u32;

/// What a descriptor of a client is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeptPart {
    /// Its userfaultfd.
    Userfault,
    /// Its record ([`crate::client_record`]).
    Record,
    /// The memfd behind its memory.
    Memory,
    /// Its process.
    Process,
    /// A part of its store, in the order of [`store::SharedStore::create`].
    Store,
    /// The userfaultfd of a child of its process: kept open, so that the child reads no zeros.
    Child,
}

/// A child's number among those of its client, which the manager gives it.
pub type ChildNumber = u16;

/// What a manager has its keeper do.
#[derive(Debug)]
pub(crate) enum KeeperRequest {
    /// Keep more of a client, and confirm it there.
    Keep(ClientSlot, Vec<(KeptPart, OwnedFd)>, Option<OwnedFd>),
    /// Close the children of a client that have ended, and keep these.
    KeepChildren(ClientSlot, Vec<ChildNumber>, Vec<(ChildNumber, OwnedFd)>),
    /// The same, of which the kernel has left descriptors out.
    Truncated(Option<OwnedFd>),
    /// Close all that there is of a client, then this descriptor.
    Release(ClientSlot, Option<OwnedFd>),
    /// Tell systemd that the service is ready.
    Ready,
}

/// Why descriptors are not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The keeper has ended, and systemd may not have them: the next keeper receives the hand-off again.
    #[error("the keeper has ended")]
    Ended,
    /// systemd does not take them.
    #[error("the keeper does not hold the client's descriptors: {0}")]
    Refused(String),
    /// The link.
    #[error("the keeper cannot hold the client's descriptors: {0}")]
    Link(#[from] Errno),
}

/// How long systemd may take for the removal of a client's descriptors.
const SYSTEMD_PATIENCE: Duration = Duration::from_secs(10);

const KEEP: u8 = b'k';
const CHILDREN: u8 = b'c';
const RELEASE: u8 = b'r';
const READY: u8 = b'y';
const ARRIVED: u8 = b'a';
/// In place of a part: what a confirmation is sent to. It comes first, so that it is the last that the kernel leaves out.
const CONFIRMATION: u8 = u8::MAX;
/// The confirmation. Any other is the reason why not.
const KEPT: &[u8] = b"kept";
/// The letter and the slot.
const HEAD: usize = 1 + size_of::<ClientSlot>();

/// Bytes of a child's number. The first number is that of those that have ended.
const NUMBER: usize = size_of::<ChildNumber>();

const PARTS: [KeptPart; 5] = [
    KeptPart::Userfault,
    KeptPart::Record,
    KeptPart::Memory,
    KeptPart::Process,
    KeptPart::Store,
];

fn head(letter: u8, slot: ClientSlot) -> [u8; HEAD] {
    let mut bytes = [letter; HEAD];
    bytes[1..].copy_from_slice(&slot.to_ne_bytes());
    bytes
}

fn split(message: &Received) -> Option<(u8, ClientSlot, &[u8])> {
    let (head, rest) = message.as_slice().split_first_chunk::<HEAD>()?;
    let slot = head[1..].try_into().ok()?;
    Some((head[0], ClientSlot::from_ne_bytes(slot), rest))
}

impl KeeperRequest {
    /// The request in a message of the manager's.
    pub fn decode(mut message: Received) -> Option<Self> {
        let (letter, slot, kinds) = split(&message)?;
        if letter == CHILDREN {
            let (numbers, _) = kinds.as_chunks::<NUMBER>();
            let numbers: Vec<_> =
                (numbers.iter().copied().map(ChildNumber::from_ne_bytes)).collect();
            let mut numbers = numbers.into_iter();
            let count = numbers.next()?.into();
            let ended = numbers.by_ref().take(count).collect();
            // Those that the kernel has left out are the last.
            let new = numbers.zip(message.fds.iter_mut().filter_map(Option::take));
            return Some(Self::KeepChildren(slot, ended, new.collect()));
        }
        let (is_confirmed, kinds) = match kinds {
            [CONFIRMATION, kinds @ ..] => (true, kinds.to_vec()),
            kinds => (false, kinds.to_vec()),
        };
        let mut fds = message.fds.iter_mut().filter_map(Option::take);
        match letter {
            RELEASE => Some(Self::Release(slot, fds.next())),
            READY => Some(Self::Ready),
            KEEP => {
                let to = is_confirmed.then(|| fds.next()).flatten();
                let fds: Vec<_> = fds.collect();
                if fds.len() < kinds.len() {
                    return Some(Self::Truncated(to));
                }
                let kinds = kinds
                    .iter()
                    .map(|kind| PARTS.get(usize::from(*kind)).copied());
                let parts = kinds.zip(fds);
                let parts = parts.filter_map(|(part, fd)| Some((part?, fd))).collect();
                Some(Self::Keep(slot, parts, to))
            }
            _ => None,
        }
    }
}

/// Confirms that descriptors are kept, or not.
pub(crate) fn confirm(to: impl AsFd, outcome: Result<(), impl Display>) {
    let text = outcome.err().map(|why| why.to_string());
    let text = text.as_ref().map_or(KEPT, |it| it.as_bytes());
    let text = &text[..text.len().min(seqpacket::MESSAGE)];
    let _ = seqpacket::send(to, text, &[], SendFlags::DONTWAIT);
}

/// Sends the manager a connection that arrived, if there is room.
pub(crate) fn send_arrival(
    to: impl AsFd,
    slot: ClientSlot,
    connection: BorrowedFd<'_>,
) -> io::Result<()> {
    seqpacket::send(to, &head(ARRIVED, slot), &[connection], SendFlags::DONTWAIT)
}

/// The manager's end. Its copies share it.
#[derive(Clone, Debug)]
pub struct KeeperLink {
    socket: Arc<OwnedFd>,
    is_stored: bool,
}

impl KeeperLink {
    /// The link over `socket`. `is_stored`: systemd has what the keeper has.
    pub fn new(socket: OwnedFd, is_stored: bool) -> Self {
        Self {
            socket: Arc::new(socket),
            is_stored,
        }
    }

    /// Returns true if clients outlive the keeper.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// Has the keeper tell systemd that the service is ready: it is the main process, whose word counts.
    pub(crate) fn report_ready(&self) {
        let _ = seqpacket::send(&self.socket, &head(READY, 0), &[], SendFlags::empty());
    }

    /// The next connection, which the kernel leaves out where this process has no descriptor for it; nothing where the
    /// keeper has ended.
    pub(crate) fn receive(&self) -> Option<(ClientSlot, Option<UnixStream>)> {
        let mut message = seqpacket::receive(&self.socket, RecvFlags::empty()).ok()?;
        let connection = message.fds[0].take();
        match split(&message) {
            Some((ARRIVED, slot, _)) => Some((slot, connection.map(UnixStream::from))),
            _ => None,
        }
    }

    /// Returns true if the keeper has ended.
    fn has_ended(&self) -> bool {
        let mut link = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut link, Some(&Timespec::default())).is_ok()
            && link[0].revents().contains(PollFlags::HUP)
    }

    /// The place of a client.
    pub(crate) fn slot(&self, slot: ClientSlot) -> KeptSlot {
        KeptSlot {
            link: self.clone(),
            slot,
        }
    }
}

impl AsFd for KeeperLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A client's place with the keeper.
#[derive(Clone, Debug)]
pub struct KeptSlot {
    link: KeeperLink,
    slot: ClientSlot,
}

impl KeptSlot {
    /// Has the keeper hold descriptors, all of them or none. A keeper that has ended holds nothing any more, which is
    /// no error, unless systemd was to have them: then this waits until the keeper has sent them there.
    pub fn keep(&self, parts: &[(KeptPart, BorrowedFd<'_>)]) -> Result<(), KeepError> {
        if !self.link.is_stored {
            return match self.send(parts, None) {
                Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
                other => Ok(other?),
            };
        }
        let (own, theirs) = seqpacket::pair()?;
        match self.send(parts, Some(theirs.as_fd())) {
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(KeepError::Ended),
            other => other?,
        }
        drop(theirs);
        let reply = seqpacket::receive(&own, RecvFlags::empty())?;
        match reply.as_slice() {
            KEPT => Ok(()),
            [] if self.link.has_ended() => Err(KeepError::Ended),
            [] => Err(KeepError::Link(Errno::MFILE)),
            why => Err(KeepError::Refused(String::from_utf8_lossy(why).into())),
        }
    }

    fn send(
        &self,
        parts: &[(KeptPart, BorrowedFd<'_>)],
        confirmation: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let mut bytes = head(KEEP, self.slot).to_vec();
        bytes.extend(confirmation.map(|_| CONFIRMATION));
        bytes.extend(parts.iter().map(|(part, _)| *part as u8));
        let fds = parts.iter().map(|(_, fd)| *fd);
        let fds: Vec<_> = confirmation.into_iter().chain(fds).collect();
        seqpacket::send(&self.link, &bytes, &fds, SendFlags::empty())
    }

    /// Has the keeper hold the userfaultfds of new children, and close those of others that have ended.
    pub fn keep_children(&self, ended: &[ChildNumber], new: &[(ChildNumber, BorrowedFd<'_>)]) {
        let count = [ended.len() as ChildNumber];
        let new_numbers = new.iter().map(|(number, _)| number);
        let numbers = count.iter().chain(ended).chain(new_numbers);
        let mut bytes = head(CHILDREN, self.slot).to_vec();
        bytes.extend(numbers.flat_map(|number| number.to_ne_bytes()));
        let fds: Vec<_> = new.iter().map(|(_, fd)| *fd).collect();
        let _ = seqpacket::send(&self.link, &bytes, &fds, SendFlags::empty());
    }

    /// The client has ended, or was refused. Returns when the keeper and systemd have closed their descriptors, unless none
    /// is left to wait with, or systemd takes too long. The manager has others until then: the last close may wait for the
    /// client, or for its memory to be freed.
    pub fn release(&self) {
        let (closed, held) = match seqpacket::pair() {
            Ok((closed, held)) => (Some(closed), Some(held)),
            Err(_) => (None, None),
        };
        self.send_release(held);
        if let Some(closed) = closed {
            let patience = self.link.is_stored.then_some(SYSTEMD_PATIENCE);
            let _ = sockopt::set_socket_timeout(&closed, sockopt::Timeout::Recv, patience);
            let _ = seqpacket::receive(&closed, RecvFlags::empty());
        }
    }

    /// The same, for a thread that waits for no one.
    pub fn release_unawaited(&self) {
        self.send_release(None);
    }

    fn send_release(&self, bell: Option<OwnedFd>) {
        let bell: Vec<_> = bell.iter().map(AsFd::as_fd).collect();
        let message = head(RELEASE, self.slot);
        let _ = seqpacket::send(&self.link, &message, &bell, SendFlags::empty());
    }
}
