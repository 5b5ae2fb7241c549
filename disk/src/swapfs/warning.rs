//! Warnings about devices that are usable but unusual.

/// A warning about a usable device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceWarning {
    /// The file system has no direct I/O: the kernel caches pages a second time.
    #[error("its file system has no direct I/O, so pages are cached a second time")]
    Buffered,
    /// The file system is copy-on-write: it may run out of space after all.
    #[error(
        "its file system is copy-on-write and may run out of space: chattr +C an empty file, and format that"
    )]
    CopyOnWrite,
    /// The file system is on another machine.
    #[error("its file system is on another machine")]
    Network,
    /// Other users may read the file.
    #[error("other users may read it, and so what was paged: chmod 600")]
    Readable,
}
