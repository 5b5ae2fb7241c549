//! Hosts of a cluster give each other the lists that they have.
//!
//! One message each way, over a link of [`Protocol::Members`]. Both merge what they receive, so each
//! has what the other had. A host does so when it has become a member or has removed one, when it meets a
//! member whose address its list lacks, and then once a minute with one member after the other.

use crate::config::{Protocol, Trust, client_config};
use crate::fingerprint::Fingerprint;
use crate::handshake::{Handshake, HandshakeError};
use crate::keyed_stream::KeyedStream;
use crate::keyring::Keyring;
use crate::keyring_error::KeyringError;
use crate::member_list::MemberList;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a host waits for another.
pub const LIMIT: Duration = Duration::from_secs(2);
/// Most bytes of a message: a list of the most members takes a fifth of it.
const MAX_MESSAGE: usize = 4 << 20;

/// Why a host's list was not shared with another.
#[derive(Debug, thiserror::Error)]
pub enum SharingError {
    /// There is no way to it.
    #[error("{0} does not answer: {1}")]
    Unreachable(String, io::Error),
    /// The handshake.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The link.
    #[error(transparent)]
    Link(#[from] io::Error),
    /// This host's own files.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// The other host's list takes no more removed keys.
    #[error(
        "it has received too many removed keys to take that of {} for one, and accepts it still: run `selfpage cluster leave` there, and \
         `selfpage cluster join` once more", .0.short()
    )]
    NotRemoved(Fingerprint),
}

impl From<rustls::Error> for SharingError {
    fn from(why: rustls::Error) -> Self {
        Self::Handshake(why.into())
    }
}

/// Gives a member this host's list, and takes its.
///
/// # Errors
/// [`SharingError`].
pub fn share_with(keyring: &Arc<Keyring>, address: &str) -> Result<(), SharingError> {
    let stream = connect(address)?;
    let trust = Trust::Members(Arc::clone(keyring));
    let config = client_config(keyring.key(), trust, Protocol::Members)?;
    let mut link = Handshake::client(&config)?.complete(stream, LIMIT)?;
    let ours = keyring.members()?;
    send(&mut link, &ours, LIMIT)?;
    // As it is with ours.
    let theirs: MemberList = receive(&mut link, LIMIT)?;
    merge(keyring, &theirs)?;
    match ours.removed_member(&theirs) {
        Some(key) => Err(SharingError::NotRemoved(key)),
        None => Ok(()),
    }
}

/// Shares with a member that is reached at an address, if this host's list has another one or none: the member joined
/// before it served, or has moved. What it sends has its address, by its own word.
///
/// # Errors
/// [`SharingError`].
pub fn share_if_unlisted(
    keyring: &Arc<Keyring>,
    member: &Fingerprint,
    address: &str,
) -> Result<(), SharingError> {
    let members = keyring.members()?;
    let listed = members.get(member).and_then(|it| it.address.as_deref());
    match listed == Some(address) {
        true => Ok(()),
        false => share_with(keyring, address),
    }
}

/// Takes a member's list from a link that was accepted, and gives it this host's.
///
/// # Errors
/// [`SharingError`].
pub fn answer(keyring: &Keyring, link: &mut KeyedStream<TcpStream>) -> Result<(), SharingError> {
    let theirs: MemberList = receive(link, LIMIT)?;
    let ours = merge(keyring, &theirs)?;
    send(link, &ours, LIMIT)?;
    Ok(())
}

/// Shares with all other members that have an address. Returns those with which it could not: their
/// names, and why.
///
/// # Errors
/// Of this host's own files.
pub fn share_with_all(keyring: &Arc<Keyring>) -> Result<Vec<(String, SharingError)>, KeyringError> {
    let mut failed = Vec::new();
    for (_, name, address) in others(keyring)? {
        if let Err(why) = share_with(keyring, &address) {
            failed.push((name, why));
        }
    }
    Ok(failed)
}

/// The other members that have an address: key, name, address.
///
/// # Errors
/// Of this host's own files.
pub fn others(keyring: &Keyring) -> Result<Vec<(Fingerprint, String, String)>, KeyringError> {
    let own = keyring.fingerprint();
    let members = keyring.members()?;
    let others = members.iter().filter(|(key, _)| **key != own);
    let known = others.filter_map(|(key, member)| {
        let address = member.address.clone()?;
        Some((*key, member.name.clone(), address))
    });
    Ok(known.collect())
}

fn merge(keyring: &Keyring, theirs: &MemberList) -> Result<MemberList, KeyringError> {
    let mut ours = keyring.members()?;
    // Most lists bring nothing new, and a file that does not change needs no lock.
    if ours.merge(theirs) {
        ours = keyring.update(|list| {
            list.merge(theirs);
            list.clone()
        })?;
    }
    Ok(ours)
}

/// Connects to HOST:PORT.
pub(crate) fn connect(address: &str) -> Result<TcpStream, SharingError> {
    let unreachable = |why| SharingError::Unreachable(address.to_owned(), why);
    let found = address.to_socket_addrs().map_err(unreachable)?;
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in found {
        match connect_to(address) {
            Ok(stream) => return Ok(stream),
            Err(why) => last = why,
        }
    }
    Err(unreachable(last))
}

pub(crate) fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends a message on a link whose socket blocks, within a time.
pub(crate) fn send(
    link: &mut KeyedStream<TcpStream>,
    message: &impl Serialize,
    limit: Duration,
) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    let until = Instant::now() + limit;
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let written = unless_blocked(link.write(rest), until)?;
        rest = &rest[written..];
    }
    while !link.flush()? {
        unless_blocked(Err(ErrorKind::WouldBlock.into()), until)?;
    }
    Ok(())
}

/// Receives a message on a link whose socket blocks, within a time.
pub(crate) fn receive<M: DeserializeOwned>(
    link: &mut KeyedStream<TcpStream>,
    limit: Duration,
) -> io::Result<M> {
    let until = Instant::now() + limit;
    let mut length = [0; 4];
    receive_exactly(link, &mut length, until)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        let text = format!("a message of {length} bytes is longer than {MAX_MESSAGE}");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    let mut body = vec![0; length];
    receive_exactly(link, &mut body, until)?;
    postcard::from_bytes(&body).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))
}

fn receive_exactly(
    link: &mut KeyedStream<TcpStream>,
    mut into: &mut [u8],
    until: Instant,
) -> io::Result<()> {
    while !into.is_empty() {
        let read = match link.read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            other => unless_blocked(other, until)?,
        };
        into = &mut into[read..];
    }
    Ok(())
}

/// Nothing, where the socket would block. An error, once there is no time, whatever the peer sends meanwhile.
fn unless_blocked(outcome: io::Result<usize>, until: Instant) -> io::Result<usize> {
    match outcome {
        _ if Instant::now() >= until => Err(ErrorKind::TimedOut.into()),
        Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
