//! Records of TLS 1.3 (RFC 8446, section 5): sealed and opened where they are.
//!
//! | bytes | of a record |
//! |---|---|
//! | 0 | 23: all records after the handshake look like application data |
//! | 1..3 | 3, 3 |
//! | 3..5 | length of what follows, big-endian |
//! | 5.. | ciphertext of the content, its type and zeros, and a tag of 16 bytes |
//!
//! Both ends count records, and the count is part of each one's nonce: a record that is repeated, left
//! out or moved opens no more than one that was changed.

use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::{AlertDescription, ConnectionTrafficSecrets};

/// Bytes before the ciphertext.
pub(crate) const HEADER: usize = 5;
/// Bytes of the tag.
const TAG: usize = 16;
/// Most bytes of content in a record.
pub(crate) const MAX_CONTENT: usize = 1 << 14;
/// Bytes of a record beyond its content.
pub(crate) const OVERHEAD: usize = HEADER + 1 + TAG;
/// Most bytes of a record: of those that follow the header, RFC 8446 permits 256 beyond the content.
pub(crate) const MAX_RECORD: usize = HEADER + MAX_CONTENT + 256;

/// What a record's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Data,
    Alert,
    Handshake,
}

impl Content {
    fn code(self) -> u8 {
        match self {
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::Data => 23,
        }
    }
}

/// Why a link ends. A link that has failed once stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A record does not open.
    #[error(
        "a record of the link is forged: it was changed, repeated, left out or sent by another host on the way"
    )]
    Forged,
    /// The stream ended without the record that ends it.
    #[error("the link was cut: the peer was killed, or a host on the way ended the connection")]
    Truncated,
    /// A record that no peer may send.
    #[error("the peer sent a record that TLS 1.3 does not have: {0}")]
    Invalid(&'static str),
    /// The peer has no place for this host's key in its list.
    #[error(
        "the peer does not know this host's key: run `selfpage cluster invite` on a member and `selfpage cluster join` here; if this host was \
         removed, run `selfpage cluster leave` here before"
    )]
    NotMember,
    /// Another alert.
    #[error("the peer ended the link with the alert {0:?}")]
    Alert(AlertDescription),
    /// The keys cannot be changed.
    #[error("the keys of the link cannot be changed")]
    KeyUpdate,
}

impl LinkError {
    /// The error that an alert is.
    pub(crate) fn of_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::CertificateUnknown => Self::NotMember,
            other => Self::Alert(other),
        }
    }
}

/// The key of one direction.
pub(crate) struct RecordKey {
    key: LessSafeKey,
    iv: [u8; 12],
    /// Number of the next record.
    next: u64,
}

impl RecordKey {
    /// A key of the handshake's. `None` if it is of a cipher that was not offered.
    pub fn new((next, secrets): (u64, ConnectionTrafficSecrets)) -> Option<Self> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return None,
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).ok()?;
        Some(Self {
            key: LessSafeKey::new(key),
            iv: iv.as_ref().try_into().ok()?,
            next,
        })
    }

    /// Records that it has sealed or opened.
    pub fn records(&self) -> u64 {
        self.next
    }

    /// Writes a record of `content` at the beginning of `room`, which has [`OVERHEAD`] more bytes.
    /// Returns the record's length.
    pub fn seal(&mut self, room: &mut [u8], content: &[u8], kind: Content) -> usize {
        let inner = content.len() + 1;
        let header = header(inner + TAG);
        let nonce = self.next_nonce();
        let (head, rest) = room.split_at_mut(HEADER);
        head.copy_from_slice(&header);
        rest[..content.len()].copy_from_slice(content);
        rest[content.len()] = kind.code();
        let sealed =
            self.key
                .seal_in_place_separate_tag(nonce, Aad::from(header), &mut rest[..inner]);
        match sealed {
            Ok(tag) => rest[inner..inner + TAG].copy_from_slice(tag.as_ref()),
            // It fails for inputs of many GiB only. Nothing leaves in the clear: the peer refuses it.
            Err(_) => rest[..inner + TAG].fill(0),
        }
        HEADER + inner + TAG
    }

    /// Opens a whole record. Its content is the bytes after the header, as many as are returned.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(Content, usize), LinkError> {
        let (head, rest) = record.split_at_mut(HEADER);
        let mut header = [0; HEADER];
        header.copy_from_slice(head);
        let nonce = self.next_nonce();
        let opened = self.key.open_in_place(nonce, Aad::from(header), rest);
        let opened = opened.map_err(|_| LinkError::Forged)?;
        let last = opened.iter().rposition(|byte| *byte != 0);
        let last = last.ok_or(LinkError::Invalid("no content"))?;
        if last > MAX_CONTENT {
            return Err(LinkError::Invalid("content of more than 16 KiB"));
        }
        let kinds = [Content::Data, Content::Alert, Content::Handshake];
        let kind = kinds.into_iter().find(|kind| kind.code() == opened[last]);
        let kind = kind.ok_or(LinkError::Invalid("a content of unknown type"))?;
        Ok((kind, last))
    }

    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, count) in nonce[4..].iter_mut().zip(self.next.to_be_bytes()) {
            *byte ^= count;
        }
        // Keys change long before.
        self.next = self.next.wrapping_add(1);
        Nonce::assume_unique_for_key(nonce)
    }
}

fn header(len: usize) -> [u8; HEADER] {
    let [high, low] = (len as u16).to_be_bytes();
    [Content::Data.code(), 3, 3, high, low]
}

/// The length of the record that begins with these bytes, if its header is there.
pub(crate) fn record_len(bytes: &[u8]) -> Result<Option<usize>, LinkError> {
    let Some(&[kind, major, _, high, low]) = bytes.first_chunk() else {
        return Ok(None);
    };
    if (kind, major) != (Content::Data.code(), 3) {
        // What is not encrypted now is not the peer's.
        return Err(LinkError::Forged);
    }
    let len = HEADER + usize::from(u16::from_be_bytes([high, low]));
    match len {
        _ if len > MAX_RECORD => Err(LinkError::Invalid("a record of more than 16 KiB")),
        _ if len < OVERHEAD => Err(LinkError::Forged),
        _ => Ok(Some(len)),
    }
}
