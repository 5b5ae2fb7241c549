//! The messages between a process and the supervisor, as bytes.
//!
//! One datagram each over a SOCK_SEQPACKET socket: the version, the family of the message, and the
//! message as postcard encodes it. Nothing is allocated. Both ends come from one build on one
//! machine; the version differs when they do not.

use crate::shared_request::SharedRequest;
use host::seqpacket::{DESCRIPTORS, MESSAGE};
use serde::{Deserialize, Serialize};

/// First word of every message: "SPG" and the version. Another number means another
/// build of the library or of `selfpage`.
pub const VERSION: u32 = 0x5350_470d;

/// Longest text a message carries, in bytes.
pub const TEXT: usize = 400;

/// The number of a process in the shared tables: a domain's slot in the ledger, a holder
/// in the store, a block on the stats page. Never 0.
pub type SlotIndex = u16;

/// A domain of the ledger as a number (`frames::DomainId::raw`): its slot and the
/// slot's generation.
pub type RawDomainId = u32;

/// The slot of a domain.
pub fn slot_of(domain: RawDomainId) -> SlotIndex {
    // The ledger keeps the slot in the low 12 bits.
    (domain & 0xfff) as SlotIndex
}

/// Where the program is that a pager process joins for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramPlace {
    /// How many generations above the sender: 0 where the sender is the program itself.
    pub above: u8,
    /// Its process number in its own PID namespace, which differs from the ancestor's once the program has ended.
    pub pid: u32,
}

/// The first message of a process on a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// A new image, started by exec: it holds nothing.
    Exec {
        /// Its program.
        program: ProgramPlace,
    },
    /// The child of a fork; its parent admitted its domain in the ledger before the fork
    /// (`frames::DomainFrames::admit_child`).
    Fork {
        /// The parent's domain.
        parent: RawDomainId,
        /// The domain admitted for this child.
        child: RawDomainId,
        /// As for an image.
        program: ProgramPlace,
    },
    /// The fork did not happen, or its child has no pager: the supervisor releases the domain.
    Release {
        /// The domain of the sender.
        parent: RawDomainId,
        /// The domain admitted for the child.
        child: RawDomainId,
    },
}

/// Later messages of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChildMessage<'a> {
    /// A line for the user, printed once on the standard error of `run`.
    Notice(&'a [u8]),
    /// The pager now checks for pinned pages before it evicts (see [`crate::stats_page::StatsPage::careful`]).
    Careful,
    /// A pager process serves. With descriptors that the supervisor keeps until the pager process has ended: a socket
    /// by which the kernel then kills the program, the userfaultfd, and that of shared memory.
    Lifeline,
    /// A request for an IO channel to the daemon's disk, for this many operations at a time. With a socket for the reply.
    Channel(u32),
    /// A request for the tree's shared memory. With a socket for the reply, then the descriptor that the request needs.
    Shared(SharedRequest),
}

/// The options in force for the whole tree that a process needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFlags {
    /// A program that cannot be paged runs unpaged, with a warning.
    pub allow_unpaged: bool,
    /// The kernel's features to use, probed when the tree started, as `translation`'s own bits.
    pub capabilities: u32,
}

/// What a descriptor of a [`Welcome`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FdRole {
    /// No descriptor.
    Nothing,
    /// The ledger's memory.
    Ledger,
    /// The stats page's memory.
    StatsPage,
    /// One of the store's, in the order the store gave them.
    Store,
    /// /dev/userfaultfd, opened while `run` was allowed to.
    Userfaultfd,
    /// The bell to ring when the tree needs more frames of the daemon.
    PressureBell,
}

/// The reply that admits a process, with its descriptors in the order of `roles`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The process's domain in the ledger, to be adopted.
    pub domain: RawDomainId,
    /// Frames of the whole tree.
    pub frames: u32,
    /// Frames this process is guaranteed.
    pub guaranteed: u32,
    /// The options in force.
    pub options: RunFlags,
    /// The role of each descriptor.
    pub roles: [FdRole; DESCRIPTORS],
}

/// The reply to a first message or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply<'a> {
    /// The process is admitted.
    Welcome(Welcome),
    /// The domain is released.
    Released,
    /// A channel. With its memory, the doorbell and the client's bell.
    Channel,
    /// Shared memory was created. With its descriptor.
    Memory,
    /// The request for shared memory is done.
    Shared,
    /// Refused: the text names what was requested, what is available and what to do.
    Refused(&'a [u8]),
}

/// An encoded message.
pub struct Bytes {
    bytes: [u8; MESSAGE],
    len: usize,
}

impl Bytes {
    /// The bytes to send.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A message between a process, or the front process, and the supervisor.
pub trait Message<'a>: Serialize + Deserialize<'a> {
    /// The number of the message's type, so that a message of one type never decodes as another.
    const FAMILY: u32;

    /// The message with its text cut to [`TEXT`], if it has one.
    fn cut(self) -> Self {
        self
    }

    /// Encodes the message.
    fn encode(self) -> Bytes {
        let mut bytes = [0; MESSAGE];
        let (head, rest) = bytes.split_at_mut(HEADER);
        head[..4].copy_from_slice(&VERSION.to_ne_bytes());
        head[4..].copy_from_slice(&Self::FAMILY.to_ne_bytes());
        // A message fits, since its text was cut.
        let len = postcard::to_slice(&self.cut(), rest).map_or(0, |used| used.len());
        Bytes {
            bytes,
            len: HEADER + len,
        }
    }

    /// Decodes a message; `None` where the bytes are not a message of this family and version.
    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first_chunk()?;
        let (family, rest) = rest.split_first_chunk()?;
        let known = (VERSION, Self::FAMILY);
        let found = (u32::from_ne_bytes(*version), u32::from_ne_bytes(*family));
        match postcard::take_from_bytes(rest) {
            Ok((message, [])) if found == known => Some(message),
            _ => None,
        }
    }
}

/// Bytes before the message: the version and the family.
const HEADER: usize = 8;

impl Message<'_> for Hello {
    const FAMILY: u32 = 1;
}

impl<'a> Message<'a> for ChildMessage<'a> {
    const FAMILY: u32 = 2;

    fn cut(self) -> Self {
        match self {
            Self::Notice(text) => Self::Notice(&text[..text.len().min(TEXT)]),
            Self::Careful | Self::Lifeline | Self::Channel(_) | Self::Shared(_) => self,
        }
    }
}

impl<'a> Message<'a> for Reply<'a> {
    const FAMILY: u32 = 3;

    fn cut(self) -> Self {
        match self {
            Self::Refused(text) => Self::Refused(&text[..text.len().min(TEXT)]),
            _ => self,
        }
    }
}

impl Welcome {
    /// The process's number in every shared table.
    pub fn slot(&self) -> SlotIndex {
        slot_of(self.domain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_of_shared_memory_arrives_as_it_was_sent() {
        let (addr, len) = (1 << 46, 4096);
        for request in [
            SharedRequest::Create { len: 1 << 40 },
            SharedRequest::Share { addr, len },
            SharedRequest::Fork { child: 9 },
            SharedRequest::Inherit,
            SharedRequest::Discard { addr, len },
            SharedRequest::Lock { addr, len },
            SharedRequest::Unmapped { addr, len },
            SharedRequest::Unlock { addr, len },
            SharedRequest::Extend {
                from: u64::MAX,
                offset: len,
                to: addr,
                len,
            },
        ] {
            let message = ChildMessage::Shared(request);
            assert_eq!(
                ChildMessage::decode(message.encode().as_slice()),
                Some(message)
            );
        }
    }

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        for hello in [
            Hello::Exec {
                program: ProgramPlace { above: 2, pid: 77 },
            },
            Hello::Fork {
                parent: 3,
                child: 1023,
                program: ProgramPlace { above: 1, pid: 78 },
            },
            Hello::Release {
                parent: 9,
                child: 10,
            },
        ] {
            assert_eq!(Hello::decode(hello.encode().as_slice()), Some(hello));
        }
        for message in [
            ChildMessage::Notice(b"a line"),
            ChildMessage::Notice(b""),
            ChildMessage::Careful,
            ChildMessage::Lifeline,
            ChildMessage::Channel(64),
        ] {
            assert_eq!(
                ChildMessage::decode(message.encode().as_slice()),
                Some(message)
            );
        }
        let mut roles = [FdRole::Nothing; DESCRIPTORS];
        roles[..3].copy_from_slice(&[FdRole::Ledger, FdRole::StatsPage, FdRole::Store]);
        let welcome = Welcome {
            domain: 7 | 3 << 12,
            frames: 16384,
            guaranteed: 16,
            options: RunFlags {
                allow_unpaged: true,
                capabilities: 1 << 30,
            },
            roles,
        };
        for reply in [
            Reply::Welcome(welcome),
            Reply::Released,
            Reply::Channel,
            Reply::Memory,
            Reply::Shared,
            Reply::Refused(b"no"),
        ] {
            assert_eq!(Reply::decode(reply.encode().as_slice()), Some(reply));
        }
    }

    #[test]
    fn bytes_of_another_build_or_cut_short_are_not_a_message() {
        let hello = Hello::Fork {
            parent: 1,
            child: 2,
            program: ProgramPlace { above: 2, pid: 3 },
        }
        .encode();
        let whole = hello.as_slice();
        for cut in 0..whole.len() {
            assert_eq!(Hello::decode(&whole[..cut]), None);
        }
        let mut other = whole.to_vec();
        other[0] ^= 0xff;
        assert_eq!(Hello::decode(&other), None);
        assert_eq!(Reply::decode(whole), None);
    }

    #[test]
    fn a_text_too_long_is_cut_not_refused() {
        let long = [b'x'; 4 * TEXT];
        assert_eq!(
            ChildMessage::decode(ChildMessage::Notice(&long).encode().as_slice()),
            Some(ChildMessage::Notice(&long[..TEXT]))
        );
    }
}
