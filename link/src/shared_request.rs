//! What a process asks of the shared memory of its tree, in bytes and addresses of that process.

use crate::handshake::RawDomainId;
use serde::{Deserialize, Serialize};

/// A request. What of a range is not paged as shared memory is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedRequest {
    /// Memory to share with children: it comes with the answer.
    Create {
        /// Bytes.
        len: u64,
    },
    /// That memory, which comes along, is mapped, and is to be paged.
    Share {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The asking process is the child of a fork, and has what its parent shares; its userfaultfd comes along.
    Inherit {
        /// The parent's domain.
        parent: RawDomainId,
    },
    /// The contents end, for all processes (MADV_REMOVE).
    Discard {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The process has more of an object mapped than it had (`mremap`): at `to` is what follows `offset` bytes
    /// behind the contents of `from`.
    Extend {
        /// A byte of a mapping that is known.
        from: u64,
        /// Bytes from there on.
        offset: u64,
        /// The first byte of the new part.
        to: u64,
        /// Bytes of it.
        len: u64,
    },
    /// Other pages of an object are mapped at `to` (`remap_file_pages`).
    Remap {
        /// A byte of a mapping of that object.
        like: u64,
        /// The page of the object that is mapped first.
        page: u64,
        /// The first byte of the new mapping.
        to: u64,
        /// Bytes of it.
        len: u64,
    },
    /// The pages stay resident once they are there (`mlock`).
    Lock {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// They may be evicted again.
    Unlock {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
}
