//! What can go wrong while measuring: errors with what was being done, and the few that are told
//! apart.

use anyhow::Result;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The failures that reports tell apart from all others.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// This machine or these permissions do not have what an arm needs.
    #[error("{0}")]
    Unavailable(String),
    /// Memory did not hold what was written to it.
    #[error("wrong data: page {page} word {word} is {found:#x}, not {expected:#x}")]
    WrongData {
        /// Which page.
        page: u64,
        /// Which of its words.
        word: usize,
        /// What is there.
        found: u64,
        /// What was written.
        expected: u64,
    },
    /// The kernel's OOM killer killed a program in its cgroup.
    #[error("killed by the kernel")]
    Killed,
    /// The benchmark ended a program that took too long.
    #[error("not done after {} s (--limit)", .0.as_secs())]
    Late(Duration),
}

/// This machine or these permissions do not have what an arm needs.
pub fn unavailable(why: impl Display) -> anyhow::Error {
    ExperimentError::Unavailable(why.to_string()).into()
}

/// Returns true if an arm failed only because this machine does not have what it needs.
pub fn is_unavailable(why: &anyhow::Error) -> bool {
    matches!(why.downcast_ref(), Some(ExperimentError::Unavailable(_)))
}

/// An error with all that led to it.
pub fn in_words(why: &anyhow::Error) -> String {
    format!("{why:#}")
}

/// What a call of the C library's that returns 0 came to.
pub fn checked(status: libc::c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Adds the failed operation to an error.
pub trait WhileDoing<T> {
    /// An operation in words.
    fn doing(self, what: impl Display) -> Result<T>;

    /// An operation on a file.
    fn at(self, verb: &str, path: impl AsRef<Path>) -> Result<T>;

    /// The same of an operation that only root may do: where it is not permitted, the machine lacks what the arm needs.
    fn at_as_root(self, verb: &str, path: impl AsRef<Path>) -> Result<T>;

    /// Something that this machine does not have.
    fn or_unavailable(self, what: impl Display) -> Result<T>;
}

impl<T, E: Into<anyhow::Error>> WhileDoing<T> for Result<T, E> {
    fn doing(self, what: impl Display) -> Result<T> {
        self.map_err(|why| why.into().context(format!("could not {what}")))
    }

    fn at(self, verb: &str, path: impl AsRef<Path>) -> Result<T> {
        self.doing(format_args!("{verb} {}", path.as_ref().display()))
    }

    fn at_as_root(self, verb: &str, path: impl AsRef<Path>) -> Result<T> {
        let path = path.as_ref();
        self.or_else(|why| {
            let why = why.into();
            match why.downcast_ref().map(io::Error::kind) {
                Some(io::ErrorKind::PermissionDenied) => Err(unavailable(format_args!(
                    "only root can {verb} {}: {why}",
                    path.display()
                ))),
                _ => Err(why).at(verb, path),
            }
        })
    }

    fn or_unavailable(self, what: impl Display) -> Result<T> {
        self.map_err(|why| unavailable(format_args!("{what}: {:#}", why.into())))
    }
}
