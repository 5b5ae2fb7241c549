//! What the tests of paged stretches share.

use selfpage::{DirectIo, Domain, EntryKind};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A domain of so many frames, guaranteed.
pub fn domain(frames: u32, store: &str, entry: EntryKind, direct_io: DirectIo) -> Domain {
    Domain::builder()
        .frames(frames)
        .store(store.parse().unwrap())
        .entry(entry)
        .direct_io(direct_io)
        .build()
        .unwrap()
}
