//! The way to a disk that belongs to the system: IO channels, opened one for each thread
//! that moves pages.
//!
//! The user-safe disk of *Self-Paging in the Nemesis Operating System* (OSDI 1999), section
//! 6.7, as a store sees it. The store still says where each page lies: bloks are its own,
//! and what the system guards is that they are within its swap file, and the time they take.

use iochannel::ChannelClient;
use rustix::io::Errno;

/// A process's connection to whoever has the disk.
///
/// A fork's child has a copy of its parent's: it is given one of its own before it makes
/// channels (see [`crate::SharedStore::set_transport`]).
pub trait DiskTransport: Send + Sync {
    /// A new IO channel on the store's swap file, with `depth` requests at once at least.
    /// Setup: may allocate, and wait.
    fn open(&self, depth: usize) -> Result<ChannelClient, Errno>;

    /// Returns when nothing that processes which are gone had asked for reaches the disk any
    /// more. Until then the bloks they were writing are not used again.
    fn wait_for_io(&self);
}
