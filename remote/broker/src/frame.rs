//! Messages on a stream: a length, a version, and the message.
//!
//! Rule: the length is checked before anything is read or kept for it, and a message that is not whole or
//! has bytes left over ends the connection: the next one cannot be found.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long the bytes of a message may take after its length.
const WHOLE: Duration = Duration::from_secs(10);

/// Version of the messages. Hosts of another version are refused.
pub const VERSION: u8 = 5;
/// The longest message: a report of the most permits that a server issues (4096, of a hundred bytes each)
/// and some more.
pub const MAX_MESSAGE: usize = 1 << 20;
/// The first bytes of a handshake: a record of handshake messages, of version 3 (RFC 8446, section 5.1).
const TLS_HANDSHAKE: [u8; 2] = [22, 3];
/// The longest first message.
pub const MAX_HELLO: usize = 1024;

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream.
    #[error(transparent)]
    Stream(#[from] io::Error),
    /// Too long.
    #[error("a message of {length} bytes: expected {most} at most")]
    Length {
        /// Its length.
        length: usize,
        /// The most.
        most: usize,
    },
    /// The peer begins a handshake.
    #[error(
        "the peer wants a link with keys, this host serves in the clear: give --insecure on both hosts or on neither"
    )]
    Keyed,
    /// Another version.
    #[error(
        "a message of version {0}: expected {VERSION}; run the same version of selfpage on all hosts"
    )]
    Version(u8),
    /// Not a message.
    #[error("{0} bytes that are no message")]
    Garbage(usize),
}

/// A message as it goes on the stream.
///
/// # Errors
/// [`FrameError::Length`].
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; size_of::<u32>()];
    bytes.push(VERSION);
    let bytes = postcard::to_extend(message, bytes).map_err(|_| FrameError::Garbage(0))?;
    fill_length(bytes)
}

fn fill_length(mut bytes: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    let length = bytes.len() - size_of::<u32>();
    if length > MAX_MESSAGE {
        let most = MAX_MESSAGE;
        return Err(FrameError::Length { length, most });
    }
    bytes[..size_of::<u32>()].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// Writes a message.
///
/// # Errors
/// [`FrameError`].
pub async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> Result<(), FrameError> {
    Ok(stream.write_all(&encode(message)?).await?)
}

/// Writes this host's version and no message: an answer to a peer of another version.
///
/// # Errors
/// [`FrameError::Stream`].
pub async fn write_version(stream: &mut (impl AsyncWrite + Unpin)) -> Result<(), FrameError> {
    stream
        .write_all(&fill_length(vec![0, 0, 0, 0, VERSION])?)
        .await?;
    Ok(stream.flush().await?)
}

/// Reads a message of `most` bytes at most. The next one may be long in coming; one that has begun is all there within
/// `WHOLE`, or its sender could have this host keep a part of it for ever.
///
/// # Errors
/// [`FrameError`]; the stream cannot be read further then.
pub async fn read<M: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> Result<M, FrameError> {
    let length = read_length(stream, most).await?;
    read_body(stream, length).await
}

/// Waits for a message of `most` bytes at most. Returns its length.
///
/// # Errors
/// As [`read`].
pub async fn read_length(
    stream: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> Result<usize, FrameError> {
    let length = stream.read_u32_le().await? as usize;
    if length > most {
        // A message as long as these bytes say is none that a peer begins with.
        return Err(match length.to_le_bytes()[..2] == TLS_HANDSHAKE {
            true => FrameError::Keyed,
            false => FrameError::Length { length, most },
        });
    }
    Ok(length)
}

/// Reads a message of a length that was read.
///
/// # Errors
/// As [`read`].
pub async fn read_body<M: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    length: usize,
) -> Result<M, FrameError> {
    read_within(WHOLE, stream, length).await
}

async fn read_within<M: DeserializeOwned>(
    whole: Duration,
    stream: &mut (impl AsyncRead + Unpin),
    length: usize,
) -> Result<M, FrameError> {
    let mut bytes = Vec::new();
    // Memory grows with what arrives, not with what was announced.
    let mut body = stream.take(length as u64);
    let late = |_| io::Error::from(ErrorKind::TimedOut);
    let read = timeout(whole, body.read_to_end(&mut bytes)).await;
    if read.map_err(late)?? < length {
        return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
    }
    decode(&bytes)
}

fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, FrameError> {
    let Some((version, body)) = bytes.split_first() else {
        return Err(FrameError::Garbage(0));
    };
    if *version != VERSION {
        return Err(FrameError::Version(*version));
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Garbage(bytes.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_member::runtime;

    fn reads<M: DeserializeOwned>(mut bytes: &[u8], most: usize) -> Result<M, FrameError> {
        runtime().block_on(read(&mut bytes, most))
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let bytes = encode(&(7u64, "near".to_owned())).unwrap();
        let read: (u64, String) = reads(&bytes, MAX_HELLO).unwrap();
        assert_eq!(read, (7, "near".to_owned()));
    }

    #[test]
    fn what_is_too_long_cut_off_or_of_another_version_is_refused() {
        let bytes = encode(&vec![9u8; 40]).unwrap();
        assert!(matches!(
            reads::<Vec<u8>>(&bytes, 10),
            Err(FrameError::Length { most: 10, .. })
        ));
        let most = u32::MAX.to_le_bytes();
        assert!(matches!(
            reads::<u64>(&most, MAX_MESSAGE),
            Err(FrameError::Length { .. })
        ));
        assert!(matches!(
            reads::<u64>(&bytes[..20], MAX_MESSAGE),
            Err(FrameError::Stream(_))
        ));
        assert!(matches!(
            reads::<u64>(&bytes, MAX_MESSAGE),
            Err(FrameError::Garbage(_))
        ));
        assert!(matches!(
            reads::<u64>(&[0, 0, 0, 0], MAX_MESSAGE),
            Err(FrameError::Garbage(0))
        ));
        let mut other = encode(&1u64).unwrap();
        other[4] = VERSION + 1;
        assert!(matches!(
            reads::<u64>(&other, MAX_MESSAGE),
            Err(FrameError::Version(_))
        ));
    }

    #[test]
    fn a_peer_that_begins_a_handshake_is_named() {
        let hello = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
        assert!(matches!(
            reads::<u64>(&hello, MAX_HELLO),
            Err(FrameError::Keyed)
        ));
    }

    #[test]
    fn a_host_of_another_version_reads_which_one_is_expected() {
        let mut answer = Vec::new();
        runtime().block_on(write_version(&mut answer)).unwrap();
        // As that host reads it.
        answer[4] = VERSION + 1;
        assert!(matches!(
            reads::<Vec<u8>>(&answer, MAX_HELLO),
            Err(FrameError::Version(other)) if other == VERSION + 1
        ));
    }

    #[test]
    fn a_message_that_has_begun_and_does_not_go_on_is_refused() {
        let bytes = encode(&vec![9u8; 40]).unwrap();
        let (mut sender, mut receiver) = tokio::io::duplex(64);
        let outcome = runtime().block_on(async {
            sender.write_all(&bytes[..20]).await.unwrap();
            let length = read_length(&mut receiver, 100).await?;
            read_within::<Vec<u8>>(Duration::from_millis(10), &mut receiver, length).await
        });
        let Err(FrameError::Stream(why)) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(why.kind(), ErrorKind::TimedOut);
    }
}
