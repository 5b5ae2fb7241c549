//! Why a process did not join; nothing here allocates.

// Refusals carry their text in place.
#![allow(clippy::large_enum_variant)]

use crate::handshake::{Reply, TEXT};
use rustix::io::Errno;

/// Why a process did not join.
#[derive(Clone, Copy, Debug)]
pub enum JoinError {
    /// The environment names no supervisor: this process is not part of a tree.
    NotInTree,
    /// The supervisor has ended, neither of its sockets can be reached, or one of the two processes has no free descriptor.
    Unreachable(Errno),
    /// The supervisor refused; the text has the reason.
    Refused(RefusalText),
    /// The supervisor's reply is not of this build's protocol.
    OtherBuild,
}

impl JoinError {
    /// The error of an unexpected reply: a refusal, or a reply of another build.
    pub(crate) fn of(reply: Option<Reply<'_>>) -> Self {
        match reply {
            Some(Reply::Refused(text)) => Self::Refused(RefusalText::new(text)),
            _ => Self::OtherBuild,
        }
    }
}

impl std::fmt::Display for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotInTree => write!(f, "this process was not started by `selfpage run`"),
            Self::Unreachable(errno @ (Errno::MFILE | Errno::NFILE | Errno::TOOMANYREFS)) => {
                write!(
                    f,
                    "no descriptor is free to reach the `selfpage run` that started this process ({errno}): raise \
                 `ulimit -n`"
                )
            }
            Self::Unreachable(errno) => write!(
                f,
                "the `selfpage run` that started this process cannot be reached ({errno}): it has ended, or this \
                 process was started by something outside of it"
            ),
            Self::Refused(text) => f.write_str(text.as_str()),
            Self::OtherBuild => {
                write!(
                    f,
                    "`selfpage` and libselfpage_preload.so are of different versions: install both from one build"
                )
            }
        }
    }
}

/// A text of bounded length, held in place.
#[derive(Clone, Copy)]
pub struct RefusalText {
    bytes: [u8; TEXT],
    len: u16,
}

impl RefusalText {
    /// The first [`TEXT`] bytes of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        let len = bytes.len().min(TEXT);
        let mut it = Self {
            bytes: [0; TEXT],
            len: len as u16,
        };
        it.bytes[..len].copy_from_slice(&bytes[..len]);
        it
    }

    /// The text, up to the first byte that is not UTF-8.
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.len)];
        match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl std::fmt::Debug for RefusalText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}
