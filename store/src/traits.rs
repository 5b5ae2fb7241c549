//! The store as the pager sees it: hand pages over, get them back, by completion.

use crate::{Checksum, HolderId, PageHandle, StoreError};
use rustix::fd::BorrowedFd;
use wired::PAGE;

/// Pages one channel holds at most between their submission and their completion.
pub const MAX_PENDING: usize = 2048;

/// A place for pages, shared by the processes of a tree.
pub trait Store: Send + Sync {
    /// What it is, as in `ram:256MiB+disk:/x,size=2GiB`, and what is unusual about it.
    fn describe(&self) -> String;

    /// A way in for one thread that moves pages: it owns its ring, if there is a disk, and
    /// its buffers. `depth` is how many reads and writes of the disk are in flight at most
    /// (1 to 128, each of a run of up to 32 pages). Works for the holder the store is
    /// attached as now. Setup: allocates.
    fn channel(&self, depth: usize) -> Result<Box<dyn Channel>, StoreError>;

    /// `slot` no longer holds these pages; a page that nobody holds is gone.
    fn discard(&self, slot: HolderId, handles: &[PageHandle]);

    /// The checksum the page was written with.
    fn checksum(&self, handle: PageHandle) -> Checksum;

    /// Whether this is what was written as `handle`: for a page that was read ahead, when it
    /// is used. False, too, if the handle names no page (any more).
    fn verify(&self, handle: PageHandle, page: &[u8; PAGE]) -> bool;

    /// How much is in it, counted now by walking the page_index: for reports, not for the
    /// page path.
    fn usage(&self) -> Usage;

    /// `child` holds everything that `parent` holds, copy on write. The parent's channels
    /// must be idle. What `child` held before, if anything, is dropped.
    fn adopt_fork(&self, parent: HolderId, child: HolderId);

    /// `holder` is gone, killed perhaps: its holds are dropped, what it was in the middle of
    /// is finished or undone. False if a page is in the hands of another process, perhaps
    /// dead too: retire that one and call again before the slot is used again.
    fn retire(&self, holder: HolderId) -> bool;
}

/// One thread's way into a store.
pub trait Channel: Send {
    /// Pages leave. Neighbours in `pages` go to neighbouring bloks where possible, one I/O a
    /// run. Each token comes back once, by [`Channel::complete`], with the page's handle or
    /// the reason it was not stored. `Busy` (too many for [`MAX_PENDING`]): nothing was
    /// taken.
    ///
    /// The memory is page aligned, and stays mapped and unchanged until completion.
    fn submit_write(&mut self, pages: &[WritePage]) -> Result<(), StoreError>;

    /// A page comes back into `into`, page aligned and wired. `Done`: it is there and
    /// verified, the token will not come back. `Pending`: by [`Channel::complete`].
    fn submit_read(
        &mut self,
        handle: PageHandle,
        into: *mut u8,
        token: u64,
    ) -> Result<Submitted, StoreError>;

    /// Several pages come back; neighbours on disk in one I/O. Every token comes back by
    /// [`Channel::complete`], those of pages that are there at once too. Returns how many
    /// are still on their way.
    fn submit_read_run(&mut self, run: &[ReadPage]) -> Result<usize, StoreError>;

    /// As [`Channel::submit_read_run`], on a guess: nobody need hold the pages, which may be
    /// discarded, moved and their handles used again meanwhile. So nothing is verified:
    /// what is told as read may be any bytes, and is a page only if [`Store::verify`] says
    /// so when it is used. A page that is gone is an error of its completion, and no
    /// mismatch in the figures.
    fn submit_read_ahead(&mut self, run: &[ReadPage]) -> Result<usize, StoreError>;

    /// The next page that is done. With [`Wait::Yes`], sleeps until there is one; `None`
    /// then means that nothing is pending.
    fn complete(&mut self, wait: Wait) -> Option<Completion>;

    /// Pages submitted and not yet completed.
    fn pending(&self) -> usize;

    /// Readable when a completion waits, if completions can come later at all. It does not
    /// tell of those that [`Channel::is_ready`] tells of.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether a completion waits that came about when its read was submitted: without a ring,
    /// or by an error.
    fn is_ready(&self) -> bool;
}

/// A page to write.
#[derive(Clone, Copy, Debug)]
pub struct WritePage {
    /// Its contents, page aligned.
    pub from: *const u8,
    /// Their checksum.
    pub sum: Checksum,
    /// Comes back with the completion.
    pub token: u64,
}

/// A page to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadPage {
    /// Which.
    pub handle: PageHandle,
    /// Where to, page aligned.
    pub into: *mut u8,
    /// Comes back with the completion.
    pub token: u64,
}

/// Whether a read is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitted {
    /// The page is there, verified.
    Done,
    /// It will be told by [`Channel::complete`].
    Pending,
}

/// Whether to sleep for a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// SegmentState only.
    No,
    /// Sleep until something completes.
    Yes,
}

/// A page is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// As submitted.
    pub token: u64,
    /// A write: the handle. A read: `None`. Or why not.
    pub result: Result<Option<PageHandle>, StoreError>,
}

/// How much is in a store, and what it did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Pages in compressed RAM.
    pub pages_ram: u64,
    /// Pages of one repeated value, which take no room.
    pub pages_filled: u64,
    /// Pages on disk.
    pub pages_disk: u64,
    /// Bytes the pages in RAM take, compressed.
    pub ram_compressed: u64,
    /// Bytes of the arena in use, holes included.
    pub ram_used: u64,
    /// Bytes the arena may take; 0 without one.
    pub ram_limit: u64,
    /// Bytes of bloks in use.
    pub disk_used: u64,
    /// Bytes of the swap file; 0 without one.
    pub disk_limit: u64,
    /// Bytes of the tables themselves in use, as far as the catalogue goes.
    pub tables: u64,
    /// Holds, over all holders: pages times the processes that hold them.
    pub holds: u64,
    /// Pages written so far.
    pub written: u64,
    /// Pages read so far, those read ahead too.
    pub read: u64,
    /// Of those, from disk.
    pub read_disk: u64,
    /// Pages moved from RAM to disk.
    pub demoted: u64,
    /// Pages moved within RAM to close holes.
    pub compacted: u64,
    /// Pages told as not what was written.
    pub mismatches: u64,
    /// Reads and writes of the disk that failed.
    pub io_errors: u64,
    /// Reads and writes of the disk.
    pub ios: u64,
    /// Pages put into compressed RAM so far, whole ones moved back from a full disk too.
    pub to_ram: u64,
    /// Bytes that these took there.
    pub to_ram_bytes: u64,
}

/// What the tiers hold at one moment, in bytes: cheaper to know than [`Usage`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// Of the arena, holes included.
    pub ram: u64,
    /// Of the swap file.
    pub disk: u64,
}

impl Occupancy {
    /// The higher of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            ram: self.ram.max(other.ram),
            disk: self.disk.max(other.disk),
        }
    }
}

/// Page memory as an array.
///
/// # Safety
/// `at` points to a page that nobody writes for as long as `'a`.
pub(crate) unsafe fn page<'a>(at: *const u8) -> &'a [u8; PAGE] {
    // SAFETY: the caller's promise.
    unsafe { &*at.cast() }
}
