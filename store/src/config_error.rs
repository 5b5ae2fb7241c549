//! What is wrong with a configuration line.

use std::path::PathBuf;
use wired::{Bytes, SizeError};

/// An invalid configuration line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// No tier's name.
    #[error(
        "no store in {0:?}: write ram:SIZE, disk:PATH,size=SIZE, remote:SIZE or opendal:URL,size=SIZE, or several joined by +, remote: before disk:"
    )]
    Nothing(String),
    /// The same tier twice.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// A disk with remote memory or an object store behind it.
    #[error(
        "disk: stands before remote: or opendal:; pages go to other machines or the object store first, and to the disk where these take none: write opendal: or remote: before disk:"
    )]
    DiskBeforeRemote,
    /// An option that the file behind remote memory or an object store does not have.
    #[error(
        "disk: behind remote: or opendal: takes size=SIZE and written alone: its file is allocated when the program starts"
    )]
    NotBehindRemote,
    /// An object store and remote memory.
    #[error(
        "opendal: and remote: are given; pages that leave compressed RAM go to one of them: leave the other out"
    )]
    BesideObjects,
    /// `opendal:` with no size.
    #[error("opendal:{0} needs a size at its end, as in opendal:fs:///mnt/pages,size=4G")]
    NoObjectSize(String),
    /// A URL that is too long.
    #[error("the URL of the object store has {0} bytes: at most {max}", max = crate::config::MAX_URL)]
    LongUrl(usize),
    /// `disk:` with no path.
    #[error("disk: needs a path, as in disk:/var/tmp,size=2G")]
    NoPath,
    /// `disk:` with no size.
    #[error("disk:{} needs a size, as in disk:{},size=2G", .0.display(), .0.display())]
    NoSize(PathBuf),
    /// `disk:` with a size in the place of the path.
    #[error("disk:{0} names a file {0}: a path comes first, as in disk:/var/tmp,size={0}")]
    SizeForPath(String),
    /// An unknown option.
    #[error("disk: unknown option {0:?}; expected size=SIZE, written, or grow")]
    Option(String),
    /// Both ways to allocate a file.
    #[error("disk: takes written or grow, not both: a file that grows is not written beforehand")]
    Both,
    /// A size twice.
    #[error("disk: has two sizes")]
    TwoSizes,
    /// A size that does not parse.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A number too small.
    #[error("{what} of {asked} bytes is too small: at least {least} bytes ({})", Bytes(*.least))]
    TooSmall {
        /// The tier.
        what: &'static str,
        /// The requested size.
        asked: u64,
        /// The smallest size.
        least: u64,
    },
    /// A number too large.
    #[error("{what} of {asked} is too large: at most {}", Bytes(*.most))]
    TooLarge {
        /// The tier.
        what: &'static str,
        /// The requested size.
        asked: String,
        /// The largest size.
        most: u64,
    },
}
