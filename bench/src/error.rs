//! What can go wrong while measuring.

use std::io;

/// Why an experiment, or one arm of it, has no figures.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// A system call or a file operation failed.
    #[error("could not {doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// The error of the system.
        source: io::Error,
    },
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
    /// A worker process ended without figures.
    #[error("the worker failed: {0}")]
    Worker(String),
    /// A signal killed a program that the benchmark did not send: the kernel's OOM killer does that.
    #[error("it was killed (SIGKILL)")]
    Killed,
    /// The options do not make an experiment.
    #[error("{0}")]
    Options(String),
}

/// Refuses options.
pub fn refuse<T>(why: impl Into<String>) -> Result<T, ExperimentError> {
    Err(ExperimentError::Options(why.into()))
}

/// A failure of a worker or of the daemon.
pub fn failed(why: impl std::fmt::Display) -> ExperimentError {
    ExperimentError::Worker(why.to_string())
}

/// Adds the failed operation to an I/O error.
pub fn while_doing<E: Into<io::Error>>(
    doing: impl Into<String>,
) -> impl FnOnce(E) -> ExperimentError {
    let doing = doing.into();
    move |source| ExperimentError::System {
        doing,
        source: source.into(),
    }
}
