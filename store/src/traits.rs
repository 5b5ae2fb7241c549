//! The store's interface for the pager: pages are submitted and return by completion.

use crate::usage::Usage;
use crate::{Checksum, HolderId, PageHandle, StoreError};
use rustix::fd::BorrowedFd;
use wired::PAGE;

/// Maximum pages of a channel between submission and completion.
pub const MAX_PENDING: usize = 2048;

/// A store for pages, shared by the processes of a tree.
pub trait Store: Send + Sync {
    /// Describes the store, as in `ram:256MiB+disk:/x,size=2GiB`, with warnings.
    fn describe(&self) -> String;

    /// Makes a channel for one thread that moves pages: it owns its ring, if there is a disk, and
    /// its buffers. `depth` bounds the reads and writes of the disk in flight (1 to 128, each of a
    /// run of up to 32 pages). It works for the holder that the store is attached as now. Setup:
    /// allocates.
    fn channel(&self, depth: usize) -> Result<Box<dyn Channel>, StoreError>;

    /// The same for reads that nothing waits for: where the store has it opened by its first page, a page whose channel
    /// cannot be opened is not read.
    fn readahead_channel(&self, depth: usize) -> Result<Box<dyn Channel>, StoreError> {
        self.channel(depth)
    }

    /// `slot` releases these pages; a page without holders is freed.
    fn discard(&self, slot: HolderId, handles: &[PageHandle]);

    /// The checksum that the page was written with.
    fn checksum(&self, handle: PageHandle) -> Checksum;

    /// Returns true if `page` is what was written as `handle`: for a page that was read ahead, when
    /// it is used. False, too, if the handle names no page (any more).
    fn verify_checksum(&self, handle: PageHandle, page: &[u8; PAGE]) -> bool;

    /// Usage, counted by a walk over the page index: for reports, not for the page path.
    fn usage(&self) -> Usage;

    /// Makes `child` hold everything that `parent` holds, copy on write. The parent's channels must
    /// be idle. Anything that `child` held before is dropped.
    fn adopt_fork(&self, parent: HolderId, child: HolderId);

    /// Releases the holds of `holder`, which has ended or was killed, and finishes or undoes its
    /// interrupted operations. Returns false if a page is locked by another process, which may be
    /// dead too: retire that one and call again before the slot is used again.
    fn retire(&self, holder: HolderId) -> bool;
}

/// One thread's channel to a store.
pub trait Channel: Send {
    /// Writes pages. Adjacent `pages` go to adjacent bloks where possible, one I/O a run. Each
    /// token returns once, by [`Channel::complete`], with the page's handle or the reason it was
    /// not stored. `Busy` (more than [`MAX_PENDING`]): nothing was submitted.
    ///
    /// The memory is page aligned, and stays mapped and unchanged until completion.
    fn submit_write(&mut self, pages: &[WritePage]) -> Result<(), StoreError>;

    /// Reads a page. `Done`: the page is read and verified, and
    /// the token does not return. `Pending`: the token returns by [`Channel::complete`].
    fn submit_read(&mut self, page: ReadPage) -> Result<Submitted, StoreError>;

    /// Reads several pages; adjacent bloks in one I/O. Every token returns by
    /// [`Channel::complete`], also for pages that are read at once. Returns the number of pending
    /// pages.
    fn submit_read_run(&mut self, run: &[ReadPage]) -> Result<usize, StoreError>;

    /// Like [`Channel::submit_read_run`], speculatively: the pages need no holder, and may be
    /// discarded, moved and their handles reused meanwhile. So nothing is verified: completed bytes
    /// are arbitrary, and are the page only if [`Store::verify_checksum`] confirms it at use. A page that is
    /// gone is an error of its completion, and counts as no mismatch.
    fn submit_read_ahead(&mut self, run: &[ReadPage]) -> Result<usize, StoreError>;

    /// The next completion. With [`Wait::Yes`], sleeps until there is one; `None` then means that
    /// nothing is pending.
    fn complete(&mut self, wait: Wait) -> Option<Completion>;

    /// Names the thread that waits for what is submitted from now on, behind the calling one; 0 for
    /// none.
    fn set_waiter(&mut self, _thread: u32) {
        // Only a disk of the daemon's gives waiting threads processor time.
    }

    /// Returns true if this page, whose stored copy is the same, is to be written all the same:
    /// that copy is on disk, and compressed RAM under contract has room for it.
    fn should_promote(&mut self, _handle: PageHandle, _page: &[u8; PAGE]) -> bool {
        false
    }

    /// Gives back what other channels may need, where it was not used since the last call: for
    /// a channel that may be idle from now on.
    fn release_idle(&mut self) {
        // Nothing is held.
    }

    /// Closes the channel with its buffers, where nothing is pending and the next page can open
    /// it again: for a channel that has been idle for a while.
    fn close_idle(&mut self) {
        // This channel stays open.
    }

    /// Returns true if the first page will open the channel, for the process and the holder of
    /// then: so a fork's child may keep it.
    fn is_unopened(&self) -> bool {
        false
    }

    /// Pages submitted and not completed.
    fn pending(&self) -> usize;

    /// Readable when a completion waits, if completions can arrive later at all. It does not signal
    /// those that [`Channel::is_ready`] reports.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns true if a completion waits that happened at submission: without a ring, or by an
    /// error.
    fn is_ready(&self) -> bool;

    /// Returns true if polling for a completion may pay, rather than sleeping until
    /// [`Channel::poll_fd`] is readable.
    fn may_poll(&self) -> bool {
        true
    }
}

/// A page to write.
#[derive(Clone, Copy, Debug)]
pub struct WritePage {
    /// Contents, page aligned.
    pub from: *const u8,
    /// Checksum of the contents.
    pub sum: Checksum,
    /// Returned with the completion.
    pub token: u64,
}

/// A page to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadPage {
    /// The page.
    pub handle: PageHandle,
    /// Destination, page aligned and wired.
    pub into: *mut u8,
    /// Returned with the completion.
    pub token: u64,
}

/// Result of submitting a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitted {
    /// The page is read and verified.
    Done,
    /// [`Channel::complete`] returns it later.
    Pending,
}

/// Whether to sleep for a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Return at once.
    No,
    /// Sleep until something completes.
    Yes,
}

/// A completed page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The token submitted.
    pub token: u64,
    /// For a write, the handle; for a read, `None`; or the error.
    pub result: Result<Option<PageHandle>, StoreError>,
}

/// Page memory as an array.
///
/// # Safety
/// `at` points to a page that no thread writes for as long as `'a`.
pub(crate) unsafe fn page<'a>(at: *const u8) -> &'a [u8; PAGE] {
    // SAFETY: the caller's promise.
    unsafe { &*at.cast() }
}
