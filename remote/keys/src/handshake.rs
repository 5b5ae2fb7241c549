//! A handshake of TLS 1.3, as far as the socket permits at a time.
//!
//! rustls does the handshake; what it comes to is a [`KeyedStream`]. rustls gets one record at a time,
//! so that records behind the handshake are left to that stream.

use crate::config::{NotAccepted, Protocol, peer_fingerprint, server_name};
use crate::fingerprint::Fingerprint;
use crate::keyed_stream::{Established, KeyedStream, NextKeys};
use crate::record::{HEADER, LinkError, MAX_RECORD, RecordKey};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{CertificateError, ClientConfig, CommonState, Error, ServerConfig};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a frame of the wire begins with: a peer that sends it has no keys.
pub const PLAIN_MAGIC: [u8; 4] = *b"SPRP";
/// Most bytes of a handshake that wait to be processed: its messages take some hundred.
const MAX_RECEIVED: usize = 2 * MAX_RECORD;

/// Why a handshake fails.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer has no keys.
    #[error(
        "the peer sends in the clear, this host wants keys: give --insecure on both hosts or on neither"
    )]
    Plain,
    /// The peer is of another protocol.
    #[error(
        "the peer does not speak TLS: no selfpage listens there, or another program connects here"
    )]
    Protocol,
    /// The peer's key is no member's.
    #[error(
        "the peer's key {} is no member's: run `selfpage cluster invite` on one of the hosts and `selfpage cluster join` on the other", .0.short()
    )]
    NotAccepted(Fingerprint),
    /// The peer ends the link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The peer closed the connection.
    #[error("the peer closed the connection during the handshake")]
    Closed,
    /// It took too long.
    #[error("the handshake was not over after {0:?}")]
    Late(Duration),
    /// rustls.
    #[error("the handshake failed: {0}")]
    Tls(Error),
    /// The socket.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

impl From<Error> for HandshakeError {
    fn from(why: Error) -> Self {
        match why {
            Error::AlertReceived(alert) => Self::Link(LinkError::of_alert(alert)),
            Error::InvalidCertificate(CertificateError::Other(ref other)) => {
                match other.0.downcast_ref::<NotAccepted>() {
                    Some(NotAccepted(key)) => Self::NotAccepted(*key),
                    None => Self::Tls(why),
                }
            }
            other => Self::Tls(other),
        }
    }
}

/// How far a handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits for the socket: for input, or to write.
    Wait {
        /// It waits to write.
        output: bool,
    },
    /// It is over.
    Done,
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Side {
    fn state(&self) -> &CommonState {
        match self {
            Self::Client(of) => of,
            Self::Server(of) => of,
        }
    }
}

/// What rustls has to be given next.
enum Step {
    Again,
    Input,
    Done,
}

/// A handshake under way.
pub struct Handshake {
    side: Side,
    received: Vec<u8>,
    /// Bytes of those received that rustls has seen: whole records.
    offered: usize,
    output: Vec<u8>,
    is_done: bool,
}

/// A socket that blocks, up to a time: a peer that sends a byte now and then holds it no longer.
struct TimedSocket<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl TimedSocket<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::WouldBlock.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for TimedSocket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for TimedSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Handshake {
    /// Of the end that connects.
    ///
    /// # Errors
    /// As rustls has them.
    pub fn client(config: &Arc<ClientConfig>) -> Result<Self, HandshakeError> {
        let of = UnbufferedClientConnection::new(Arc::clone(config), server_name())?;
        Ok(Self::new(Side::Client(of)))
    }

    /// Of the end that accepts.
    ///
    /// # Errors
    /// As rustls has them.
    pub fn server(config: &Arc<ServerConfig>) -> Result<Self, HandshakeError> {
        let of = UnbufferedServerConnection::new(Arc::clone(config))?;
        Ok(Self::new(Side::Server(of)))
    }

    fn new(side: Side) -> Self {
        Self {
            side,
            received: Vec::new(),
            offered: 0,
            output: Vec::new(),
            is_done: false,
        }
    }

    /// Goes on as far as the stream permits.
    ///
    /// # Errors
    /// [`HandshakeError`]. An alert for the peer may be left to be written: [`Handshake::flush`].
    pub fn advance(
        &mut self,
        stream: &mut (impl Read + Write),
    ) -> Result<Progress, HandshakeError> {
        loop {
            if !self.flush(stream)? {
                return Ok(Progress::Wait { output: true });
            }
            if self.is_done {
                return Ok(Progress::Done);
            }
            match self.step() {
                Ok(Step::Again) => {}
                Ok(Step::Done) => self.is_done = true,
                Ok(Step::Input) => {
                    if !self.offer_record()? && !self.receive(stream)? {
                        return Ok(Progress::Wait { output: false });
                    }
                }
                Err(why) => {
                    // The alert that says so.
                    let _ = self.step();
                    let _ = self.flush(stream);
                    return Err(why.into());
                }
            }
        }
    }

    /// Goes on until it is over, on a socket that may block.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn complete(
        mut self,
        stream: TcpStream,
        limit: Duration,
    ) -> Result<KeyedStream<TcpStream>, HandshakeError> {
        let until = Instant::now() + limit;
        let mut socket = TimedSocket {
            stream: &stream,
            until,
        };
        match self.advance(&mut socket)? {
            Progress::Done => self.into_stream(stream),
            Progress::Wait { .. } => Err(HandshakeError::Late(limit)),
        }
    }

    /// Writes what is left, as far as the stream takes it. Returns true if nothing is.
    ///
    /// # Errors
    /// What the stream has.
    pub fn flush(&mut self, stream: &mut impl Write) -> io::Result<bool> {
        while !self.output.is_empty() {
            match stream.write(&self.output) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.output.drain(..written)),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(true)
    }

    /// The stream, once the handshake is over.
    ///
    /// # Errors
    /// Where it is not, or the peer has named no protocol; memory.
    pub fn into_stream<S: Read + Write>(self, stream: S) -> Result<KeyedStream<S>, HandshakeError> {
        let early = || HandshakeError::Tls(Error::HandshakeNotComplete);
        if !self.is_done {
            return Err(early());
        }
        let peer = peer_fingerprint(self.side.state()).ok_or_else(early)?;
        let protocol = Protocol::of(self.side.state()).ok_or(HandshakeError::Protocol)?;
        let (secrets, next) = match self.side {
            Side::Client(of) => {
                let (secrets, next) = of.dangerous_into_kernel_connection()?;
                (secrets, NextKeys::Client(next))
            }
            Side::Server(of) => {
                let (secrets, next) = of.dangerous_into_kernel_connection()?;
                (secrets, NextKeys::Server(next))
            }
        };
        let established = Established {
            peer,
            protocol,
            sealing: RecordKey::new(secrets.tx).ok_or_else(early)?,
            opening: RecordKey::new(secrets.rx).ok_or_else(early)?,
            next,
        };
        Ok(KeyedStream::new(stream, established, &self.received)?)
    }

    /// Has rustls process what it was offered.
    fn step(&mut self) -> Result<Step, Error> {
        let offered = &mut self.received[..self.offered];
        let (discard, step) = match &mut self.side {
            Side::Client(of) => take_step(of.process_tls_records(offered), &mut self.output),
            Side::Server(of) => take_step(of.process_tls_records(offered), &mut self.output),
        };
        self.received.drain(..discard);
        self.offered -= discard;
        match step {
            // The server's end could write by now, and has not heard the client's.
            Ok(Step::Done) if self.side.state().is_handshaking() => Ok(Step::Input),
            other => other,
        }
    }

    /// Offers the next record to rustls. Returns false if it is not there as a whole.
    fn offer_record(&mut self) -> Result<bool, HandshakeError> {
        let ahead = &self.received[self.offered..];
        if ahead.starts_with(&PLAIN_MAGIC) {
            return Err(HandshakeError::Plain);
        }
        // The types of records: change_cipher_spec, alert, handshake, application_data.
        if ahead.first().is_some_and(|kind| !(20..=23).contains(kind)) && ahead.len() >= 4 {
            return Err(HandshakeError::Protocol);
        }
        let Some(&[.., high, low]) = ahead.first_chunk::<HEADER>() else {
            return Ok(false);
        };
        let len = HEADER + usize::from(u16::from_be_bytes([high, low]));
        if len > MAX_RECORD {
            return Err(HandshakeError::Protocol);
        }
        let is_whole = len <= ahead.len();
        if is_whole {
            self.offered += len;
        }
        Ok(is_whole)
    }

    /// Receives more. Returns false if there is nothing now.
    fn receive(&mut self, stream: &mut impl Read) -> Result<bool, HandshakeError> {
        if self.received.len() >= MAX_RECEIVED {
            return Err(HandshakeError::Protocol);
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => Err(HandshakeError::Closed),
            Ok(len) => {
                self.received.extend(&bytes[..len]);
                Ok(true)
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(why) if why.kind() == ErrorKind::Interrupted => Ok(true),
            Err(why) => Err(why.into()),
        }
    }
}

/// What a state of rustls asks for, and the bytes that it is done with.
fn take_step<D>(
    status: UnbufferedStatus<'_, '_, D>,
    output: &mut Vec<u8>,
) -> (usize, Result<Step, Error>) {
    let unexpected = || Error::General("the peer sent data during the handshake".to_owned());
    let step = match status.state {
        Err(why) => Err(why),
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let required = match data.encode(&mut []) {
                Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    required_size
                }
                _ => 0,
            };
            let before = output.len();
            output.resize(before + required, 0);
            let _ = data.encode(&mut output[before..]);
            Ok(Step::Again)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // The output holds it, and leaves first.
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Input),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Done),
        Ok(_) => Err(unexpected()),
    };
    (status.discard, step)
}
