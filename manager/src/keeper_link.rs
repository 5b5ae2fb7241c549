//! What passes between a manager and its keeper ([`crate::keeper`]): connections one way, descriptors to keep the other.
//!
//! A message is a letter, a client's slot and, for descriptors, what each is. A message that was sent is kept: it lies in
//! the keeper's socket, whatever becomes of the manager. Where systemd has the descriptors, too, the keeper confirms that
//! it has sent them there: both may be killed.

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

/// What a manager has its keeper do.
#[derive(Debug)]
pub(crate) enum KeeperRequest {
    /// Keep more of a client, or these children in place of those that it had, and confirm it there.
    Keep(ClientSlot, Vec<(KeptPart, OwnedFd)>, Option<OwnedFd>),
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
const RELEASE: u8 = b'r';
const READY: u8 = b'y';
const ARRIVED: u8 = b'a';
/// In place of a part: what a confirmation is sent to. It comes first, so that it is the last that the kernel leaves out.
const CONFIRMATION: u8 = u8::MAX;
/// The confirmation. Any other is the reason why not.
const KEPT: &[u8] = b"kept";
/// The letter and the slot.
const HEAD: usize = 1 + size_of::<ClientSlot>();

const PARTS: [KeptPart; 6] = [
    KeptPart::Userfault,
    KeptPart::Record,
    KeptPart::Memory,
    KeptPart::Process,
    KeptPart::Store,
    KeptPart::Child,
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

    /// Has the keeper hold the userfaultfds of the children, and no others that it has of such.
    pub fn keep_children(&self, children: &[BorrowedFd<'_>]) {
        let parts: Vec<_> = (children.iter().map(|fd| (KeptPart::Child, *fd))).collect();
        let _ = self.send(&parts, None);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_arrive_with_what_they_are() {
        let (keeper, manager) = seqpacket::pair().unwrap();
        let slot = KeeperLink::new(manager, false).slot(7);
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let fd = file.as_fd();
        slot.keep(&[(KeptPart::Record, fd), (KeptPart::Store, fd)])
            .unwrap();
        let releasing = std::thread::spawn(move || slot.release());
        let next =
            || KeeperRequest::decode(seqpacket::receive(&keeper, RecvFlags::empty()).unwrap());
        let Some(KeeperRequest::Keep(7, parts, None)) = next() else {
            panic!("no descriptors");
        };
        let kinds: Vec<_> = parts.iter().map(|(part, _)| *part).collect();
        assert_eq!(kinds, [KeptPart::Record, KeptPart::Store]);
        let release = next();
        assert!(matches!(release, Some(KeeperRequest::Release(7, Some(_)))));
        assert!(!releasing.is_finished(), "the keeper has the client still");
        drop(release);
        releasing.join().unwrap();
        for (at, part) in PARTS.iter().enumerate() {
            assert_eq!(*part as usize, at);
        }
    }

    #[test]
    fn descriptors_that_systemd_is_to_have_are_confirmed_or_not() {
        let (keeper, manager) = seqpacket::pair().unwrap();
        let slot = KeeperLink::new(manager, true).slot(7);
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let (sender, outcomes) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..4 {
                let kept = slot.keep(&[(KeptPart::Record, file.as_fd())]);
                let outcome = kept.map_or_else(|why| why.to_string(), |()| "kept".to_owned());
                sender.send(outcome).unwrap();
            }
        });
        let mut ends = Vec::new();
        let mut next = || {
            let outcome = outcomes.recv().unwrap();
            ends.push(outcome.rsplit(": ").next().unwrap().to_owned());
        };
        for outcome in [Some(Ok(())), Some(Err("full")), None] {
            let request =
                KeeperRequest::decode(seqpacket::receive(&keeper, RecvFlags::empty()).unwrap());
            let Some(KeeperRequest::Keep(7, parts, Some(to))) = request else {
                panic!("{request:?}");
            };
            assert_eq!(parts.len(), 1);
            if let Some(outcome) = outcome {
                confirm(to, outcome);
            } else {
                drop(to);
            }
            next();
        }
        drop(keeper);
        next();
        let lost = "Too many open files (os error 24)";
        assert_eq!(ends, ["kept", "full", lost, "the keeper has ended"]);
    }

    #[test]
    fn a_message_that_has_lost_descriptors_is_kept_in_no_part() {
        let (keeper, manager) = seqpacket::pair().unwrap();
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut message = head(KEEP, 7).to_vec();
        message.extend([CONFIRMATION, 0, 1]);
        let fds = [file.as_fd(), file.as_fd()];
        seqpacket::send(&manager, &message, &fds, SendFlags::empty()).unwrap();
        let request =
            KeeperRequest::decode(seqpacket::receive(&keeper, RecvFlags::empty()).unwrap());
        assert!(matches!(request, Some(KeeperRequest::Truncated(Some(_)))));
    }

    #[test]
    fn a_connection_arrives_with_its_slot() {
        let (keeper, manager) = seqpacket::pair().unwrap();
        let link = KeeperLink::new(manager, false);
        let (near, far) = UnixStream::pair().unwrap();
        send_arrival(&keeper, 3, far.as_fd()).unwrap();
        drop((far, keeper));
        let (slot, connection) = link.receive().unwrap();
        assert_eq!(slot, 3);
        drop(near);
        let mut connection = connection.unwrap();
        assert_eq!(std::io::Read::read(&mut connection, &mut [0]).unwrap(), 0);
        assert!(link.receive().is_none(), "the keeper has ended");
        link.slot(3).keep(&[]).unwrap();
    }
}
