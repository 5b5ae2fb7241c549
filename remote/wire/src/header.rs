//! The header of a frame: 80 bytes, little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic number |
//! | 4 | version of the wire |
//! | 5 | kind |
//! | 6..8 | pages, or the status of an error |
//! | 8..12 | length of the body |
//! | 12..16 | number of the request |
//! | 16..24, 24..32 | paging object: client, number |
//! | 32..40 | first page |
//! | 40..48 | version of the write |
//! | 48..56 | generation of the object that the sender knows |
//! | 56..64 | zero |
//! | 64..80 | xxh3-128 of the body, with the xxh3-64 of the bytes before as its seed |

use crate::error::FrameError;
use remote_policy::identity::{Generation, HostId, ObjectId, PageNumber, Version};
use twox_hash::{XxHash3_64, XxHash3_128};
use wired::PAGE;

/// Bytes of a header.
pub const HEADER: usize = 80;
/// Most pages of one request: what an IO channel moves in one.
pub const MAX_RUN: usize = 32;
/// Most bytes of a body: the versions and the pages of a run.
pub const MAX_BODY: usize = MAX_RUN * (8 + PAGE);

/// The version of the wire.
pub(crate) const VERSION: u8 = 2;
const MAGIC: u32 = u32::from_le_bytes(remote_keys::PLAIN_MAGIC);
/// What a TLS handshake begins with: a record of type 22, version 3 (RFC 8446, section 5.1).
const TLS_HANDSHAKE: [u8; 2] = [22, 3];
/// Bytes before the checksum.
const COVERED: usize = 64;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Reads a run of pages.
    Read = 1,
    /// Writes a run of pages.
    Write = 2,
    /// Frees a run of pages.
    Discard = 3,
    /// A control request.
    Control = 4,
    /// A [`crate::control::ServerNotice`], which a server sends unasked. It has no reply.
    Notice = 5,
    /// Reply to a read: versions, then pages.
    ReadReply = 129,
    /// Reply to a write.
    WriteReply = 130,
    /// Reply to a discard.
    DiscardReply = 131,
    /// Reply to a control request.
    ControlReply = 132,
    /// Reply to any request that failed: `pages` is the status, the body its text.
    ErrorReply = 255,
}

impl Kind {
    fn from_code(code: u8) -> Option<Self> {
        use Kind::*;
        let all = [
            Read,
            Write,
            Discard,
            Control,
            Notice,
            ReadReply,
            WriteReply,
            DiscardReply,
            ControlReply,
            ErrorReply,
        ];
        all.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Returns true if a frame of this kind may have that many pages and body bytes.
    fn has_shape(self, pages: u16, body: u32) -> bool {
        let run = (1..=MAX_RUN as u16).contains(&pages);
        let page_bytes = u32::from(pages) * PAGE as u32;
        match self {
            Self::Read => run && body == 0,
            Self::Write => run && body == page_bytes,
            Self::ReadReply => run && body == page_bytes + u32::from(pages) * 8,
            Self::Discard => pages > 0 && body == 0,
            Self::WriteReply | Self::DiscardReply => body == 0,
            Self::Control | Self::Notice | Self::ControlReply | Self::ErrorReply => true,
        }
    }
}

/// A frame's header, but for the length of its body and the checksum, which the codec computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Pages of a request or a reply; the status of an error.
    pub pages: u16,
    /// Number of the request.
    pub request: u32,
    /// The paging object.
    pub object: ObjectId,
    /// First page of the run, within the object.
    pub page: PageNumber,
    /// Version of the pages written; zero in a read.
    pub version: Version,
    /// Generation of the object that the sender knows.
    pub generation: Generation,
}

impl Header {
    /// A header of a control message.
    pub fn control(kind: Kind, request: u32) -> Self {
        Self {
            kind,
            pages: 0,
            request,
            object: ObjectId {
                client: HostId(0),
                number: 0,
            },
            page: PageNumber(0),
            version: Version(0),
            generation: Generation(0),
        }
    }

    /// The header of the reply of `kind` to this request.
    pub fn reply(&self, kind: Kind) -> Self {
        Self { kind, ..*self }
    }

    /// The bytes of the header that precede a body.
    pub fn encode(&self, body: &[u8]) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.pages.to_le_bytes());
        bytes[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.request.to_le_bytes());
        let words = [
            self.object.client.0,
            self.object.number,
            self.page.0,
            self.version.0,
            self.generation.0,
        ];
        for (place, word) in bytes[16..56].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&bytes[..COVERED], body);
        bytes[COVERED..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a header and returns it with the length of its body. The checksum is checked once the
    /// body is there, by [`Header::verify`].
    pub fn decode(bytes: &[u8; HEADER]) -> Result<(Self, usize), FrameError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if bytes[..2] == TLS_HANDSHAKE {
            return Err(FrameError::Keyed);
        }
        if u32_at(0) != MAGIC {
            return Err(FrameError::Magic(u32_at(0)));
        }
        if bytes[4] != VERSION {
            return Err(FrameError::Version { there: bytes[4] });
        }
        let kind = Kind::from_code(bytes[5]).ok_or(FrameError::Kind(bytes[5]))?;
        let (pages, body) = (u16_at(6), u32_at(8));
        if body as usize > MAX_BODY {
            return Err(FrameError::Body(body));
        }
        if !kind.has_shape(pages, body) {
            return Err(FrameError::Shape { pages, body });
        }
        let header = Self {
            kind,
            pages,
            request: u32_at(12),
            object: ObjectId {
                client: HostId(u64_at(16)),
                number: u64_at(24),
            },
            page: PageNumber(u64_at(32)),
            version: Version(u64_at(40)),
            generation: Generation(u64_at(48)),
        };
        Ok((header, body as usize))
    }

    /// Checks that header and body are as they were sent.
    pub fn verify(bytes: &[u8; HEADER], body: &[u8]) -> Result<(), FrameError> {
        let sum = checksum(&bytes[..COVERED], body).to_le_bytes();
        match sum == bytes[COVERED..] {
            true => Ok(()),
            false => Err(FrameError::Checksum),
        }
    }
}

fn checksum(covered: &[u8], body: &[u8]) -> u128 {
    XxHash3_128::oneshot_with_seed(XxHash3_64::oneshot(covered), body)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        /// A frame that a correct peer sends.
        pub(crate) fn any_frame()(
            kind in prop::sample::select(vec![Kind::Read, Kind::Write, Kind::Discard, Kind::Control,
                Kind::ReadReply, Kind::WriteReply, Kind::ErrorReply]),
            pages in 1..=3u16,
            request: u32,
            words: [u64; 5],
            fill: u8,
        ) -> (Header, Vec<u8>) {
            let body = match kind {
                Kind::Write => usize::from(pages) * PAGE,
                Kind::ReadReply => usize::from(pages) * (PAGE + 8),
                Kind::Control | Kind::ErrorReply => usize::from(fill),
                _ => 0,
            };
            let header = Header {
                kind,
                pages,
                request,
                object: ObjectId { client: HostId(words[0]), number: words[1] },
                page: PageNumber(words[2]),
                version: Version(words[3]),
                generation: Generation(words[4]),
            };
            (header, vec![fill; body])
        }
    }

    proptest! {
        #[test]
        fn a_header_decodes_to_what_was_encoded((header, body) in any_frame()) {
            let bytes = header.encode(&body);
            prop_assert_eq!(Header::decode(&bytes), Ok((header, body.len())));
            prop_assert_eq!(Header::verify(&bytes, &body), Ok(()));
        }

        #[test]
        fn a_changed_bit_is_noticed((header, mut body) in any_frame(), at: prop::sample::Index, bit in 0..8u8) {
            let mut bytes = header.encode(&body);
            let at = at.index(HEADER + body.len());
            match at.checked_sub(HEADER) {
                Some(at) => body[at] ^= 1 << bit,
                None => bytes[at] ^= 1 << bit,
            }
            let is_accepted = Header::decode(&bytes).is_ok() && Header::verify(&bytes, &body).is_ok();
            prop_assert!(!is_accepted);
        }

        #[test]
        fn no_bytes_make_a_header_with_a_body_too_long(bytes: [u8; 16]) {
            let mut header = Header::control(Kind::Control, 0).encode(&[]);
            header[5..16].copy_from_slice(&bytes[5..]);
            if let Ok((_, body)) = Header::decode(&header) {
                prop_assert!(body <= MAX_BODY);
            }
        }
    }
}
