//! Warnings about devices that are usable but unusual.

use std::fmt;

/// A warning about a usable device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceWarning {
    /// The file system has no direct I/O: the kernel caches pages a second time.
    Buffered,
    /// The file system is copy-on-write: it may run out of space after all.
    CopyOnWrite,
    /// The file system is on another machine.
    Network,
    /// Other users may read the file.
    Readable,
}

impl fmt::Display for DeviceWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buffered => {
                "its file system has no direct I/O, so pages are cached a second time"
            }
            Self::CopyOnWrite => {
                "its file system is copy-on-write and may run out of space: chattr +C \
                 an empty file, and format that"
            }
            Self::Network => "its file system is on another machine",
            Self::Readable => "other users may read it, and so what was paged: chmod 600",
        })
    }
}
