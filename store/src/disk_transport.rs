//! Access to a disk of the daemon's: IO channels, one for each thread that moves pages.
//!
//! The user-safe disk of *Self-Paging in the Nemesis Operating System* (OSDI 1999), section 6.7, as
//! a store sees it. The store still assigns bloks; the daemon ensures that they are within the
//! store's swap file, and limits their disk time.

use iochannel::ChannelClient;
use rustix::io::Errno;

/// A process's connection to the daemon that has the disk.
///
/// A fork's child has a copy of its parent's: it gets one of its own before it makes channels (see
/// [`crate::SharedStore::set_transport`]).
pub trait DiskTransport: Send + Sync {
    /// Opens an IO channel on the store's swap file, for at least `depth` requests at once. Setup:
    /// may allocate, and wait.
    fn open(&self, depth: usize) -> Result<ChannelClient, Errno>;

    /// Returns when no I/O of a dead process reaches the disk any more. Until then the bloks that
    /// it was writing are not reused.
    fn wait_for_io(&self);
}
