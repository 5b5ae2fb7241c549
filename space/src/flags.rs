//! Attributes of commits and mappings (ADDR_FLAGS in the paper).

use selfpage::Rights;
use serde::{Deserialize, Serialize};

/// How pages are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitFlags {
    /// The rights to them. Read and write by default.
    #[serde(with = "crate::space_protocol::rights")]
    pub rights: Rights,
    /// Alloc-zero: the pages are zeros. Otherwise they are zeros, or what this space had in pages
    /// that it gave up.
    pub zero: bool,
    /// Auto-commit: each page gets its frame at its first access. Otherwise pages get frames now,
    /// up to half of the domain's.
    pub auto: bool,
    /// The pages may go to another space of the domain as they are, except those that still hold
    /// what they had under a commit without this flag.
    pub dealloc_no_erase: bool,
    /// The pages are a memory object, which other spaces and processes can map. They are zeros,
    /// have no frames of the domain's, and are never paged.
    pub shareable: bool,
}

impl Default for CommitFlags {
    fn default() -> Self {
        Self {
            rights: Rights::READ | Rights::WRITE,
            zero: false,
            auto: false,
            dealloc_no_erase: false,
            shareable: false,
        }
    }
}

/// How an object is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapFlags {
    /// The rights to the mapping. Read by default.
    #[serde(with = "crate::space_protocol::rights")]
    pub rights: Rights,
    /// Stores copy the page first: the object does not see them. The mapping shows later changes of
    /// the object in each page that it has not stored to (asymmetric copy-on-write). A writable
    /// mapping does not need the right to write the object.
    pub copy_on_write: bool,
}

impl MapFlags {
    /// Rights, and stores go to the object.
    pub fn new(rights: Rights) -> Self {
        Self {
            rights,
            copy_on_write: false,
        }
    }
}

impl Default for MapFlags {
    fn default() -> Self {
        Self::new(Rights::READ)
    }
}
