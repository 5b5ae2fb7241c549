//! How a case ends when it does not pass.

use std::path::Path;
use std::time::{Duration, Instant};

/// Why a case did not pass.
#[derive(Debug, thiserror::Error)]
pub enum Halt {
    /// It cannot run on this machine; counted, not failed.
    #[error("SKIPPED: {0}")]
    Skipped(String),
    /// A promise did not hold.
    #[error("{0}")]
    Failed(String),
    /// The harness itself could not work.
    #[error("the harness could not {doing}: {source}")]
    Harness {
        /// The operation.
        doing: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// The end of a case.
pub type Verdict<T = ()> = Result<T, Halt>;

/// A failure with its text.
pub fn failed<T>(text: impl Into<String>) -> Verdict<T> {
    Err(Halt::Failed(text.into()))
}

/// A skip with its reason.
pub fn skipped<T>(reason: impl Into<String>) -> Verdict<T> {
    Err(Halt::Skipped(reason.into()))
}

/// Fails with `text` where `holds` is false.
pub fn ensure(holds: bool, text: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { failed(text()) }
}

/// Repeats `attempt` until it returns something; fails with `text` after `limit`.
pub fn wait_for<T>(
    limit: Duration,
    text: impl Fn() -> String,
    mut attempt: impl FnMut() -> Verdict<Option<T>>,
) -> Verdict<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = attempt()? {
            return Ok(found);
        }
        ensure(begun.elapsed() < limit, &text)?;
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Adds the operation to the error of a system call of the harness.
pub trait Doing<T> {
    /// Names the act.
    fn doing(self, what: impl FnOnce() -> String) -> Verdict<T>;
    /// Names the act as work on a path.
    fn at(self, verb: &str, path: &Path) -> Verdict<T>
    where
        Self: Sized,
    {
        self.doing(|| format!("{verb} {}", path.display()))
    }
}

impl<T, E: Into<std::io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Verdict<T> {
        self.map_err(|e| Halt::Harness {
            doing: what(),
            source: e.into(),
        })
    }
}
