//! Identifiers: of a stored page, and of a process that holds pages.

use std::num::NonZeroU32;

/// Slot number of a process of the tree, the same as its domain's in the ledger.
pub type HolderId = u16;

/// Identifies a stored page: an entry of the page index. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct PageHandle(NonZeroU32);

impl PageHandle {
    /// Handles fit in this many bits, so that a page's state word has room for one.
    pub const BITS: u32 = 28;

    /// The handle with this number, if the number is valid.
    pub const fn new(number: u32) -> Option<Self> {
        if number >> Self::BITS != 0 {
            return None;
        }
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number, from 1 to 2^28 - 1.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl std::fmt::Display for PageHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {}", self.0)
    }
}
