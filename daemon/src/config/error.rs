//! Why a configuration is not used.

use std::io::ErrorKind;
use std::path::PathBuf;
use wired::Bytes;

/// Why a configuration is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read {}: {why}{}",
        path.display(),
        if why.kind() == ErrorKind::NotFound { "; name the configuration with --config" } else { "" }
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of reading it.
        why: std::io::Error,
    },
    /// The file is not a configuration, or has an invalid value.
    #[error("{}:{line}:{column}: {why}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong, and the expected form.
        why: String,
    },
    /// More memory is to be promised than there is.
    #[error("memory.frames is {}, and this machine has {}: promise less", Bytes(*asked), Bytes(*there))]
    Memory {
        /// Bytes to be promised.
        asked: u64,
        /// Bytes of the machine.
        there: u64,
    },
}
