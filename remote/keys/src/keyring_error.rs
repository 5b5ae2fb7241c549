//! Why a host's keys cannot be used.

use crate::fingerprint::Fingerprint;
use std::io;
use std::path::PathBuf;

/// Why a host's keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// There is no place for them.
    #[error("no folder for this host's key: set XDG_STATE_HOME or HOME to a folder's full path")]
    NoFolder,
    /// The folder cannot be made.
    #[error(
        "cannot create {} for this host's key: {why}; set XDG_STATE_HOME to a folder that this user may write", path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot {what} {}: {why}", path.display())]
    File {
        /// What for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// The key is readable by others.
    #[error(
        "{} has the mode {mode:o}: other users may have read the key; delete the file for a new key, and join the cluster again", path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Another user may replace the key.
    #[error(
        "{} is another user's (user {owner}), or others may write to it: give it to this user (chown), and take the right from others \
         (chmod go-w)", path.display()
    )]
    Foreign {
        /// The file, or its folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// A file holds something else.
    #[error("{} holds {there}: restore it, or delete it and join the cluster again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is there.
        there: String,
    },
    /// The cluster has removed this host.
    #[error(
        "this host's key {} was removed from its cluster: run `selfpage cluster leave` here, which makes another key, and join again", .0.short()
    )]
    Removed(Fingerprint),
}
