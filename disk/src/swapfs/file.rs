//! A swap file: its name, its size, whose contract it carries.

use super::free_space::UnitRun;
use super::{UNIT, free_space};
use std::fmt;

/// Bytes of a tenant's own that a file keeps for it, at most.
pub const MAX_BLOB: usize = 512;

/// Names a file for as long as the filesystem lives: never given to another file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub(super) u64);

impl FileId {
    /// As a number, for logs.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "swap file {}", self.0)
    }
}

/// What the owner calls a file: 16 to 32 bytes. Long enough to be drawn at random, so that
/// who knows a name was told it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName {
    bytes: [u8; FileName::MAX],
    len: u8,
}

/// A name that is too short or too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a swap file's name of {0} bytes: give it {min} to {max}",
    min = FileName::MIN,
    max = FileName::MAX
)]
pub struct NameError(pub usize);

impl FileName {
    /// Bytes at least.
    pub const MIN: usize = 16;
    /// Bytes at most.
    pub const MAX: usize = 32;

    /// A name of these bytes.
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

    /// The bytes it was made of.
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

/// A swap file, as the tables have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File {
    pub(super) id: FileId,
    pub(super) name: FileName,
    pub(super) blob: Vec<u8>,
    /// Units from the start that hold nothing of an earlier owner.
    pub(super) clean: u32,
    pub(super) runs: Vec<UnitRun>,
}

impl File {
    /// What names it.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// What its owner calls it.
    pub fn name(&self) -> &FileName {
        &self.name
    }

    /// What its owner keeps with it; nothing to the filesystem.
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// Bytes allocated to it, a multiple of [`UNIT`].
    pub fn size(&self) -> u64 {
        u64::from(self.units()) * UNIT
    }

    /// Bytes from its start that may be given out: those that hold nothing of an earlier
    /// owner. Less than [`File::size`] until a scrub has ended.
    pub fn clean(&self) -> u64 {
        u64::from(self.clean) * UNIT
    }

    pub(super) fn units(&self) -> u32 {
        free_space::total(&self.runs)
    }
}
