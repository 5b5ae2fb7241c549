//! A stream whose bytes only the two ends can read and change.
//!
//! What the handshake came to, and records from then on. They are sealed and opened in wired buffers
//! of a fixed size, so that pages cross the link where no memory is to be had.

use crate::config::Protocol;
use crate::fingerprint::Fingerprint;
use crate::record::{Content, LinkError, MAX_CONTENT, MAX_RECORD, OVERHEAD, RecordKey, record_len};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use wired::WiredBytes;

/// Bytes of ciphertext that are received at once: some records of the largest size.
const INPUT: usize = 4 * MAX_RECORD;
/// Bytes of ciphertext that wait for the socket.
const OUTPUT: usize = 4 * (MAX_CONTENT + OVERHEAD);
/// Records after which a key is changed. AES-GCM is safe for 2^24.5 (RFC 8446, section 5.5).
const UPDATE_AFTER: u64 = 1 << 22;

/// HandshakeType of RFC 8446, section 4.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// Makes the next keys of a link.
pub(crate) enum NextKeys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl NextKeys {
    fn sealing(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Self::Client(of) => of.update_tx_secret(),
            Self::Server(of) => of.update_tx_secret(),
        }
    }

    fn opening(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Self::Client(of) => of.update_rx_secret(),
            Self::Server(of) => of.update_rx_secret(),
        }
    }
}

/// What a handshake came to.
pub(crate) struct Established {
    pub peer: Fingerprint,
    pub protocol: Protocol,
    pub sealing: RecordKey,
    pub opening: RecordKey,
    pub next: NextKeys,
}

/// A stream with keys, over one that carries bytes.
pub struct KeyedStream<S: Read + Write> {
    stream: S,
    peer: Fingerprint,
    protocol: Protocol,
    sealing: RecordKey,
    opening: RecordKey,
    next: NextKeys,
    input: WiredBytes,
    /// Content that was opened and not read, within the input, before the ciphertext.
    content: Range<usize>,
    ciphertext: Range<usize>,
    output: WiredBytes,
    pending: Range<usize>,
    update_after: u64,
    /// The peer asked for another key of this end.
    owes_update: bool,
    is_ended: bool,
    is_closed: bool,
    failure: Option<LinkError>,
}

impl<S: Read + Write> KeyedStream<S> {
    /// A stream after its handshake, and the bytes that were received beyond it.
    pub(crate) fn new(stream: S, of: Established, received: &[u8]) -> io::Result<Self> {
        let mut input = WiredBytes::new(INPUT.max(received.len()))?;
        input[..received.len()].copy_from_slice(received);
        Ok(Self {
            stream,
            peer: of.peer,
            protocol: of.protocol,
            sealing: of.sealing,
            opening: of.opening,
            next: of.next,
            input,
            content: 0..0,
            ciphertext: 0..received.len(),
            output: WiredBytes::new(OUTPUT)?,
            pending: 0..0,
            update_after: UPDATE_AFTER,
            owes_update: false,
            is_ended: false,
            is_closed: false,
            failure: None,
        })
    }

    /// The key that the peer has proved to have.
    pub fn peer(&self) -> Fingerprint {
        self.peer
    }

    /// What the link is for.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// What carries the bytes.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Changes the key after so many records, for tests.
    #[doc(hidden)]
    pub fn set_update_after(&mut self, records: u64) {
        self.update_after = records;
    }

    /// Reads bytes that have arrived; 0 at the end of the stream. It receives from the socket at most
    /// once, so that a peer whose records are empty does not keep it here.
    ///
    /// # Errors
    /// `WouldBlock`; a [`LinkError`]; what the socket has.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut has_received = false;
        loop {
            if !self.content.is_empty() {
                let len = self.content.len().min(into.len());
                let from = self.content.start..self.content.start + len;
                into[..len].copy_from_slice(&self.input[from]);
                self.content.start += len;
                return Ok(len);
            }
            if let Some(why) = self.failure {
                return Err(link_error(why));
            }
            if self.is_ended {
                return Ok(0);
            }
            match self.open_next() {
                Ok(true) => continue,
                Ok(false) if has_received => return Err(ErrorKind::WouldBlock.into()),
                Ok(false) => {}
                Err(why) => return Err(self.fail(why)),
            }
            if self.receive()? == 0 {
                return Err(self.fail(LinkError::Truncated));
            }
            has_received = true;
        }
    }

    /// Returns true if [`KeyedStream::read`] needs no socket for what it returns next.
    pub fn has_buffered_input(&self) -> bool {
        if !self.content.is_empty() {
            return true;
        }
        let ciphertext = &self.input[self.ciphertext.clone()];
        match record_len(ciphertext) {
            Ok(Some(len)) => len <= ciphertext.len(),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Takes bytes to be written, and writes them as far as the socket takes them.
    ///
    /// # Errors
    /// `WouldBlock` if none was taken; a [`LinkError`]; what the socket has.
    pub fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if let Some(why) = self.failure {
            return Err(link_error(why));
        }
        if self.pending.len() > OUTPUT / 2 {
            self.flush()?;
        }
        if self.owes_update || self.sealing.records() >= self.update_after {
            self.update_sealing()?;
        }
        let mut taken = 0;
        while taken < from.len() {
            let len = (from.len() - taken).min(MAX_CONTENT);
            if !self.push(&from[taken..taken + len], Content::Data) {
                break;
            }
            taken += len;
        }
        self.flush()?;
        match taken {
            0 if !from.is_empty() => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(taken),
        }
    }

    /// Writes records as far as the socket takes them. Returns true if none is left.
    ///
    /// # Errors
    /// What the socket has.
    pub fn flush(&mut self) -> io::Result<bool> {
        while !self.pending.is_empty() {
            match self.stream.write(&self.output[self.pending.clone()]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.pending.start += written,
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        self.pending = 0..0;
        Ok(true)
    }

    /// Bytes of records that the socket has not taken.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Tells the peer that nothing follows, as far as the socket takes it.
    pub fn close(&mut self) {
        if !self.is_closed && self.failure.is_none() {
            self.is_closed = true;
            self.push_alert(AlertDescription::CloseNotify);
            let _ = self.flush();
        }
    }

    /// Queues a record. Returns false if it has no room.
    fn push(&mut self, content: &[u8], kind: Content) -> bool {
        let len = content.len() + OVERHEAD;
        if OUTPUT - self.pending.end < len {
            let pending = self.pending.clone();
            self.pending = 0..pending.len();
            self.output.copy_within(pending, 0);
        }
        if OUTPUT - self.pending.end < len {
            return false;
        }
        let room = &mut self.output[self.pending.end..];
        self.pending.end += self.sealing.seal(room, content, kind);
        true
    }

    fn push_alert(&mut self, alert: AlertDescription) {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        let level = match alert {
            AlertDescription::CloseNotify => WARNING,
            _ => FATAL,
        };
        self.push(&[level, u8::from(alert)], Content::Alert);
    }

    /// Changes the key of what is sent. It waits where there is no room to tell the peer.
    fn update_sealing(&mut self) -> io::Result<()> {
        const NOT_REQUESTED: u8 = 0;
        if !self.push(&[KEY_UPDATE, 0, 0, 1, NOT_REQUESTED], Content::Handshake) {
            return Ok(());
        }
        self.owes_update = false;
        let next = self.next.sealing().ok().and_then(RecordKey::new);
        match next {
            Some(key) => self.sealing = key,
            None => return Err(self.fail(LinkError::KeyUpdate)),
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<usize> {
        // All content was read: the room before the ciphertext is free.
        if self.ciphertext.start > 0 {
            let ciphertext = self.ciphertext.clone();
            self.ciphertext = 0..ciphertext.len();
            self.input.copy_within(ciphertext, 0);
        }
        loop {
            match self.stream.read(&mut self.input[self.ciphertext.end..]) {
                Ok(len) => {
                    self.ciphertext.end += len;
                    return Ok(len);
                }
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Opens the next record. Returns false if it has not arrived as a whole.
    fn open_next(&mut self) -> Result<bool, LinkError> {
        let at = self.ciphertext.start;
        let Some(len) = record_len(&self.input[self.ciphertext.clone()])? else {
            return Ok(false);
        };
        if len > self.ciphertext.len() {
            return Ok(false);
        }
        let (kind, content) = self.opening.open(&mut self.input[at..at + len])?;
        self.ciphertext.start += len;
        let start = at + crate::record::HEADER;
        match kind {
            Content::Data => self.content = start..start + content,
            Content::Alert => self.on_alert(start..start + content)?,
            Content::Handshake => self.on_handshake(start..start + content)?,
        }
        Ok(true)
    }

    fn on_alert(&mut self, alert: Range<usize>) -> Result<(), LinkError> {
        let &[_, code] = &self.input[alert] else {
            return Err(LinkError::Invalid("an alert of another length"));
        };
        match AlertDescription::from(code) {
            AlertDescription::CloseNotify => self.is_ended = true,
            other => return Err(LinkError::of_alert(other)),
        }
        Ok(())
    }

    fn on_handshake(&mut self, message: Range<usize>) -> Result<(), LinkError> {
        match &self.input[message] {
            &[KEY_UPDATE, 0, 0, 1, is_requested @ (0 | 1)] => {
                self.owes_update |= is_requested == 1;
                let next = self.next.opening().ok().and_then(RecordKey::new);
                self.opening = next.ok_or(LinkError::KeyUpdate)?;
                Ok(())
            }
            // No session is resumed.
            [NEW_SESSION_TICKET, ..] => Ok(()),
            _ => Err(LinkError::Invalid(
                "a handshake message after the handshake",
            )),
        }
    }

    /// Ends the link for good.
    fn fail(&mut self, why: LinkError) -> io::Error {
        let alert = match why {
            LinkError::Forged => Some(AlertDescription::BadRecordMac),
            LinkError::Invalid(_) => Some(AlertDescription::UnexpectedMessage),
            LinkError::KeyUpdate => Some(AlertDescription::InternalError),
            LinkError::Truncated | LinkError::NotMember | LinkError::Alert(_) => None,
        };
        if let Some(alert) = alert {
            self.push_alert(alert);
            let _ = self.flush();
        }
        self.failure = Some(why);
        link_error(why)
    }
}

fn link_error(why: LinkError) -> io::Error {
    let kind = match why {
        LinkError::Truncated => ErrorKind::UnexpectedEof,
        LinkError::NotMember => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidData,
    };
    io::Error::new(kind, why)
}

impl<S: Read + Write> Drop for KeyedStream<S> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<S: Read + Write> std::fmt::Debug for KeyedStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyedStream({:?})", self.peer)
    }
}
