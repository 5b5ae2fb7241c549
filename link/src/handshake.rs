//! The messages between a process and the system domain, as bytes.
//!
//! Fixed-size messages over a SOCK_SEQPACKET socket: one datagram each, no framing, no
//! allocation. Both ends come from one build on one machine, so numbers are in native
//! byte order; the version differs when they do not.

use host::seqpacket::{DESCRIPTORS, MESSAGE};

/// First word of every message: "SPG" and the version. Another number means another
/// build of the library or of `selfpage`.
pub const VERSION: u32 = 0x5350_4703;

/// Longest text a message carries, in bytes.
pub const TEXT: usize = 400;

/// The number of a process in the shared tables: a domain's slot in the ledger, a holder
/// in the store, a block on the board. Never 0.
pub type SlotIndex = u16;

/// A domain of the ledger as a number (`frames::DomainId::raw`): its slot and the
/// slot's generation.
pub type RawDomainId = u32;

/// The slot of a domain.
pub fn slot_of(domain: RawDomainId) -> SlotIndex {
    // The ledger keeps the slot in the low 12 bits.
    (domain & 0xfff) as SlotIndex
}

/// The first message of a process on a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hello {
    /// A new image, started by exec: it holds nothing.
    Exec {
        /// How many generations above the sender, its pager process, the program is: 0 where
        /// the sender is the program itself.
        above: u8,
    },
    /// The child of a fork; its domain was admitted before the fork, by its parent in the
    /// ledger (`frames::DomainFrames::admit_child`) or by [`Hello::Reserve`].
    Fork {
        /// The parent's domain.
        parent: RawDomainId,
        /// The domain admitted for this child.
        child: RawDomainId,
        /// As for an image.
        above: u8,
    },
    /// A process about to fork requests its child's domain. The connection ends with the
    /// answer.
    Reserve {
        /// The asking process's domain.
        parent: RawDomainId,
    },
    /// A process requests an IO channel to the system's disk. The connection ends with the
    /// answer.
    Channel {
        /// The asking process's domain.
        domain: RawDomainId,
        /// Operations at a time.
        depth: u32,
    },
    /// The fork did not happen: the domain goes.
    Release {
        /// The asking process's domain.
        parent: RawDomainId,
        /// The domain admitted for the child.
        child: RawDomainId,
    },
}

/// Later messages of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildMessage<'a> {
    /// A line for the user, printed once on the standard error of `run`.
    Notice(&'a [u8]),
    /// This process refuses to start, or to start another program, and why.
    Refused(&'a [u8]),
    /// The pager now checks for pinned pages (see [`crate::stats_page::StatsPage::careful`]).
    Careful,
    /// A pager process serves. The supervisor is to keep what comes along until that has
    /// ended: a socket by which the kernel then kills the program, and the userfaultfd.
    Lifeline,
}

/// What is in force for the whole tree, as a process needs to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunFlags {
    /// A program that cannot be paged runs unpaged, with a warning.
    pub allow_unpaged: bool,
    /// Features of `translation` to do without, as its own bits.
    pub without: u64,
}

/// Which shared thing a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FdRole {
    /// No descriptor.
    Nothing = 0,
    /// The ledger's memory.
    Ledger = 1,
    /// The board's memory.
    StatsPage = 2,
    /// One of the store's, in the order the store gave them.
    Store = 3,
    /// /dev/userfaultfd, opened while `run` was allowed to.
    Userfaultfd = 4,
    /// The bell to ring when the tree wants more frames of the daemon.
    Hunger = 5,
}

impl FdRole {
    fn from(byte: u8) -> Self {
        match byte {
            1 => Self::Ledger,
            2 => Self::StatsPage,
            3 => Self::Store,
            4 => Self::Userfaultfd,
            5 => Self::Hunger,
            _ => Self::Nothing,
        }
    }
}

/// The answer that lets a process in. Its descriptors come with it, in `roles`' order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The process's domain in the ledger, to be adopted.
    pub domain: RawDomainId,
    /// Frames of the whole tree.
    pub frames: u32,
    /// Frames this process is guaranteed.
    pub guaranteed: u32,
    /// What is in force.
    pub options: RunFlags,
    /// What each descriptor is.
    pub roles: [FdRole; DESCRIPTORS],
}

/// The answer to a first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The process is admitted.
    Welcome(Welcome),
    /// The child's domain.
    Reserved(RawDomainId),
    /// The domain is gone.
    Released,
    /// A channel: its memory, the doorbell and the client's bell come along.
    Channel,
    /// Refused: the text names what was asked, what there is and what to do.
    Refused(&'a [u8]),
}

/// A message as it travels.
pub struct Bytes {
    bytes: [u8; MESSAGE],
    len: usize,
}

impl Bytes {
    fn new(kind: u32) -> Self {
        let mut it = Self {
            bytes: [0; MESSAGE],
            len: 0,
        };
        it.u32(VERSION);
        it.u32(kind);
        it
    }

    /// The bytes to send.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, bytes: &[u8]) {
        // Every message below fits by construction; a longer text is cut before.
        let room = MESSAGE - self.len;
        let n = bytes.len().min(room);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }

    fn text(&mut self, text: &[u8]) {
        self.put(&text[..text.len().min(TEXT)]);
    }
}

/// Decodes a message from another process: any bytes, so every read may fail.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn open(bytes: &'a [u8]) -> Option<(u32, Self)> {
        let mut it = Self(bytes);
        (it.u32()? == VERSION).then_some(())?;
        Some((it.u32()?, it))
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)
            .map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self) -> Option<u64> {
        let low = self.take(8)?;
        let mut word = [0; 8];
        word.copy_from_slice(low);
        Some(u64::from_ne_bytes(word))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

impl Hello {
    /// As it travels.
    pub fn encode(self) -> Bytes {
        match self {
            Self::Exec { above } => pair(1, above.into(), 0),
            Self::Fork {
                parent,
                child,
                above,
            } => {
                let mut bytes = pair(2, parent, child);
                bytes.u32(above.into());
                bytes
            }
            Self::Reserve { parent } => pair(3, parent, 0),
            Self::Release { parent, child } => pair(4, parent, child),
            Self::Channel { domain, depth } => pair(5, domain, depth),
        }
    }

    /// From what arrived; `None` where it is not one of ours.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, mut reader) = Reader::open(bytes)?;
        Some(match kind {
            1 => Self::Exec {
                above: reader.u32()?.try_into().ok()?,
            },
            2 => Self::Fork {
                parent: reader.u32()?,
                child: reader.u32()?,
                above: reader.u32()?.try_into().ok()?,
            },
            3 => Self::Reserve {
                parent: reader.u32()?,
            },
            4 => Self::Release {
                parent: reader.u32()?,
                child: reader.u32()?,
            },
            5 => Self::Channel {
                domain: reader.u32()?,
                depth: reader.u32()?,
            },
            _ => return None,
        })
    }
}

fn pair(kind: u32, a: RawDomainId, b: RawDomainId) -> Bytes {
    let mut bytes = Bytes::new(kind);
    bytes.u32(a);
    bytes.u32(b);
    bytes
}

impl<'a> ChildMessage<'a> {
    /// As it travels.
    pub fn encode(self) -> Bytes {
        let (kind, text) = match self {
            Self::Notice(text) => (16, text),
            Self::Refused(text) => (17, text),
            Self::Careful => (18, &[][..]),
            Self::Lifeline => (19, &[][..]),
        };
        let mut bytes = Bytes::new(kind);
        bytes.text(text);
        bytes
    }

    /// From what arrived; `None` where it is not one of ours.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (kind, mut reader) = Reader::open(bytes)?;
        Some(match kind {
            16 => Self::Notice(reader.rest()),
            17 => Self::Refused(reader.rest()),
            18 => Self::Careful,
            19 => Self::Lifeline,
            _ => return None,
        })
    }
}

impl<'a> Reply<'a> {
    /// As it travels.
    pub fn encode(self) -> Bytes {
        match self {
            Self::Welcome(welcome) => welcome.encode(),
            Self::Reserved(slot) => pair(33, slot, 0),
            Self::Released => pair(34, 0, 0),
            Self::Channel => pair(36, 0, 0),
            Self::Refused(text) => {
                let mut bytes = Bytes::new(35);
                bytes.text(text);
                bytes
            }
        }
    }

    /// From what arrived; `None` where it is not one of ours.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (kind, mut reader) = Reader::open(bytes)?;
        Some(match kind {
            32 => Self::Welcome(Welcome::decode(&mut reader)?),
            33 => Self::Reserved(reader.u32()?),
            34 => Self::Released,
            35 => Self::Refused(reader.rest()),
            36 => Self::Channel,
            _ => return None,
        })
    }
}

impl Welcome {
    /// The process's number in every shared table.
    pub fn slot(&self) -> SlotIndex {
        slot_of(self.domain)
    }

    fn encode(&self) -> Bytes {
        let mut bytes = Bytes::new(32);
        bytes.u32(self.domain);
        bytes.u32(self.frames);
        bytes.u32(self.guaranteed);
        bytes.u32(self.options.allow_unpaged.into());
        bytes.u64(self.options.without);
        for role in self.roles {
            bytes.put(&[role as u8]);
        }
        bytes
    }

    fn decode(reader: &mut Reader) -> Option<Self> {
        let (domain, frames, guaranteed) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let options = RunFlags {
            allow_unpaged: reader.u32()? != 0,
            without: reader.u64()?,
        };
        let mut roles = [FdRole::Nothing; DESCRIPTORS];
        for (role, byte) in roles.iter_mut().zip(reader.take(DESCRIPTORS)?) {
            *role = FdRole::from(*byte);
        }
        Some(Self {
            domain,
            frames,
            guaranteed,
            options,
            roles,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        for hello in [
            Hello::Exec { above: 2 },
            Hello::Fork {
                parent: 3,
                child: 1023,
                above: 1,
            },
            Hello::Reserve { parent: 9 },
            Hello::Release {
                parent: 9,
                child: 10,
            },
            Hello::Channel {
                domain: 9,
                depth: 64,
            },
        ] {
            assert_eq!(Hello::decode(hello.encode().as_slice()), Some(hello));
        }
        for say in [
            ChildMessage::Notice(b"a line"),
            ChildMessage::Refused(b""),
            ChildMessage::Careful,
            ChildMessage::Lifeline,
        ] {
            assert_eq!(ChildMessage::decode(say.encode().as_slice()), Some(say));
        }
        let mut roles = [FdRole::Nothing; DESCRIPTORS];
        roles[..3].copy_from_slice(&[FdRole::Ledger, FdRole::StatsPage, FdRole::Store]);
        let welcome = Welcome {
            domain: 7 | 3 << 12,
            frames: 16384,
            guaranteed: 16,
            options: RunFlags {
                allow_unpaged: true,
                without: 1 << 40,
            },
            roles,
        };
        for answer in [
            Reply::Welcome(welcome),
            Reply::Reserved(4),
            Reply::Released,
            Reply::Channel,
            Reply::Refused(b"no"),
        ] {
            assert_eq!(Reply::decode(answer.encode().as_slice()), Some(answer));
        }
    }

    #[test]
    fn bytes_of_another_build_or_cut_short_are_not_a_message() {
        let hello = Hello::Fork {
            parent: 1,
            child: 2,
            above: 2,
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
