//! A swap file: name, size, and a blob of its owner.

use super::free_space::UnitRun;
use super::{UNIT, free_space};
use std::fmt;

/// Maximum bytes of the owner's data that a file keeps.
pub const MAX_BLOB: usize = 512;

/// Identifies a file for the life of the filesystem: never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub(super) u64);

impl FileId {
    /// The number, for logs.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "swap file {}", self.0)
    }
}

/// The owner's name of a file: 16 to 32 bytes. Long enough to be drawn at random, so that only
/// those it was sent to know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName {
    bytes: [u8; FileName::MAX],
    len: u8,
}

/// A name that is too short or too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "invalid swap file name of {0} bytes: expected {min} to {max}",
    min = FileName::MIN,
    max = FileName::MAX
)]
pub struct NameError(pub usize);

impl FileName {
    /// Minimum bytes.
    pub const MIN: usize = 16;
    /// Maximum bytes.
    pub const MAX: usize = 32;

    /// Makes a name of these bytes.
    pub fn new(name: &[u8]) -> Result<Self, NameError> {
        if name.len() < Self::MIN || name.len() > Self::MAX {
            return Err(NameError(name.len()));
        }
        let mut bytes = [0; Self::MAX];
        bytes[..name.len()].copy_from_slice(name);
        Ok(Self {
            bytes,
            len: name.len() as u8,
        })
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A swap file, as in the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File {
    pub(super) id: FileId,
    pub(super) name: FileName,
    pub(super) blob: Vec<u8>,
    /// Units from the start that are scrubbed: they hold nothing of an earlier owner.
    pub(super) clean: u32,
    pub(super) runs: Vec<UnitRun>,
}

impl File {
    /// The file's id.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// The owner's name.
    pub fn name(&self) -> &FileName {
        &self.name
    }

    /// The owner's blob, opaque to the filesystem.
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// Bytes allocated to it, a multiple of [`UNIT`].
    pub fn size(&self) -> u64 {
        u64::from(self.units()) * UNIT
    }

    /// Usable bytes from its start: those scrubbed of an earlier owner's data. Less than
    /// [`File::size`] until a scrub completes.
    pub fn clean(&self) -> u64 {
        u64::from(self.clean) * UNIT
    }

    pub(super) fn units(&self) -> u32 {
        free_space::total(&self.runs)
    }
}
