//! The domain's frames, as its threads take, wait for and return them.
//!
//! Frames that only stored pages may use are a reserve: such a page can be dropped again
//! without a write, so that the contents of a full store can still be read.

use crate::counters::Counter;
use crate::fork_cell::ForkCell;
use crate::log::Log;
use crate::page::State;
use crate::stretch::StretchState;
use frames::{DomainFrames, Frame, Millis, PageAge};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use wired::{HUGE_RANGE_PAGES, futex};

/// How long a fault that has nothing to evict sleeps for frames that are revoked from other
/// tenants before it searches again: a revocation takes a tenth of a second or more, and an
/// attempt at a full store takes processor time.
const REVOCATION: Duration = Duration::from_millis(20);

/// The frames of a domain.
pub(crate) struct FrameSource {
    client: ForkCell<DomainFrames<'static>>,
    log: Arc<Log>,
    /// Frames the background evictor keeps unused at most.
    spare: u32,
    /// Frames that only stored pages may use.
    pub(crate) reserve: u32,
    /// Threads that wait for a frame, and the futex word they wait on: it counts how often
    /// frames were released while any thread waited.
    starving: AtomicU32,
    returned: AtomicU32,
    /// How old the oldest page is: trims of other domains go by it.
    age: PageAge,
    /// Not zero while the background evictor runs or has been rung for.
    evictor_up: AtomicU32,
}

impl FrameSource {
    /// `has_store` is true if there can be stored pages.
    pub(crate) fn new(client: DomainFrames<'static>, log: Arc<Log>, has_store: bool) -> Self {
        let most = client.contract().x;
        Self {
            client: ForkCell::new(client),
            log,
            spare: spare_frames(most),
            reserve: if has_store && most >= 64 { 2 } else { 0 },
            starving: AtomicU32::new(0),
            returned: AtomicU32::new(0),
            age: PageAge::default(),
            evictor_up: AtomicU32::new(0),
        }
    }

    /// The client of the frames allocator.
    pub(crate) fn client(&self) -> &DomainFrames<'static> {
        self.client.get()
    }

    /// Switches to the child process: its own client.
    ///
    /// # Safety
    /// For the only thread of a fork's child.
    pub(crate) unsafe fn become_child(&self, client: DomainFrames<'static>) {
        // SAFETY: the caller's promise.
        unsafe { self.client.replace(client) };
    }

    /// An unused frame for a page in this state, if there is one outside the reserve.
    pub(crate) fn take(&self, wanted_by: State) -> Option<Frame> {
        let client = self.client();
        if wanted_by == State::Empty && self.reserve > 0 {
            let in_use = client.n().saturating_sub(client.unused());
            if client.resident_limit().saturating_sub(in_use) <= self.reserve {
                return None;
            }
        }
        let frame = client.take()?;
        self.age.note_taken(client.n());
        Some(frame)
    }

    /// Asks for frames of domains of the tree whose pages are all older than this one's: see
    /// [`frames::Ledger::trim_idle`].
    pub(crate) fn trim_idle(&self) {
        let Some(oldest) = self.age.oldest() else {
            return;
        };
        let (client, now) = (self.client(), Millis::now());
        client
            .ledger()
            .trim_idle(client.id(), TRIM_BATCH, oldest, now);
    }

    /// Asks all other domains for frames, however recently they faulted: this domain has no page that it
    /// can evict.
    pub(crate) fn trim_others(&self) {
        let client = self.client();
        let now = Millis::now();
        client
            .ledger()
            .trim_idle(client.id(), LOCKED_BATCH, now, now);
    }

    /// Waits up to `limit` for the next frames that are released. If it gets none, returns
    /// whether any were.
    pub(crate) fn wait(&self, wanted_by: State, limit: Duration) -> Result<Frame, bool> {
        // Announced before the next check, so that the thread that releases a frame afterwards
        // wakes this one.
        self.starving.fetch_add(1, Ordering::SeqCst);
        let seen = self.returned.load(Ordering::SeqCst);
        let frame = self.take(wanted_by);
        if frame.is_none() {
            futex::wait(&self.returned, seen, Some(limit));
        }
        self.starving.fetch_sub(1, Ordering::SeqCst);
        frame.ok_or_else(|| self.returned.load(Ordering::SeqCst) != seen)
    }

    /// Sleeps until frames became free since `seq` was read, if the tenant is owed frames of its
    /// guarantee. Returns true if it is.
    pub(crate) fn wait_for_guaranteed(&self, seq: u32) -> bool {
        let client = self.client();
        let is_owed = client.request_guaranteed();
        if is_owed {
            client.ledger().wait_freed(seq, Some(REVOCATION));
        }
        is_owed
    }

    /// Wakes the threads that wait for frames: some were released.
    fn wake_waiters(&self) {
        if self.starving.load(Ordering::SeqCst) > 0 {
            self.returned.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&self.returned);
        }
    }

    /// Releases a frame that holds no resident page.
    pub(crate) fn put(&self, frame: Frame) {
        if let Err(misuse) = self.client().put(frame) {
            self.log.write(format_args!("{misuse}"));
        }
        self.wake_waiters();
    }

    /// Releases frames that hold no resident page.
    pub(crate) fn put_all(&self, frames: &[Frame]) {
        if let Err(misuse) = self.client().put_batch(frames) {
            self.log.write(format_args!("{misuse}"));
        }
        self.wake_waiters();
    }

    /// Returns up to so many unused frames to the allocator. Returns how many.
    pub(crate) fn relinquish(&self, count: u32) -> u32 {
        let given = self.client().release(count);
        self.log.add(Counter::FramesReleased, u64::from(given));
        given
    }

    /// Announces how many frames the domain needs from others.
    pub(crate) fn demand(&self, count: u32) {
        self.client().ledger().demand(self.client().id(), count);
    }

    pub(crate) fn mark(&self, frame: u32, state: frames::State) {
        if let Err(misuse) = self.client().mark(Frame(frame), state) {
            self.log.write(format_args!("{misuse}"));
        }
    }

    /// Undoes one nail of a page. Under the unit's closed gate.
    pub(crate) fn unnail(&self, stretch: &StretchState, index: usize) {
        let word = stretch.table().word(index);
        let seen = word.load();
        if word.unnail() && seen.nails() == 1 && seen.state() == State::Resident {
            self.mark(seen.frame(), frames::State::Mapped);
        }
    }

    /// Updates the counters of the frames held.
    pub(crate) fn note_resident(&self) {
        let n = u64::from(self.client().n());
        let counters = self.log.counters();
        counters.set(Counter::ResidentPages, n);
        counters.raise(Counter::PeakResidentPages, n);
    }

    /// Frames that a fault would find without an eviction: frames that the ledger grants at
    /// once count as unused.
    pub(crate) fn room(&self) -> u32 {
        let client = self.client();
        client.resident_limit().saturating_sub(client.n()) + client.unused()
    }

    /// Frames to keep unused: fewer if the domain can own fewer for now than its contract
    /// grants.
    pub(crate) fn spare(&self) -> u32 {
        self.spare.min(spare_frames(self.client().resident_limit()))
    }

    /// Pages that one sweep takes, of the frames that the domain can own for now.
    pub(crate) fn sweep(&self) -> usize {
        sweep_pages(self.client().resident_limit())
    }

    /// Returns true if the background evictor should run.
    pub(crate) fn is_below_spare(&self) -> bool {
        self.room() < self.spare() / 2
    }

    /// Rings for the background evictor, once, when unused frames run low.
    pub(crate) fn wake_evictor_if_low(&self) {
        if self.is_below_spare()
            && self.evictor_up.load(Ordering::Relaxed) == 0
            && self.evictor_up.swap(1, Ordering::SeqCst) == 0
        {
            self.wake_evictor();
        }
    }

    /// Rings for the background evictor.
    pub(crate) fn wake_evictor(&self) {
        let client = self.client();
        client.ledger().ring(client.id());
    }

    /// Records that the background evictor runs, or goes to sleep: while it runs, faults need
    /// not ring for it.
    pub(crate) fn set_evictor_up(&self, up: bool) {
        self.evictor_up.store(u32::from(up), Ordering::SeqCst);
    }
}

/// Frames that domains of a tree are asked for at once: what a small program accesses in a slice
/// of processor time.
const TRIM_BATCH: u32 = 64;

/// Frames that a domain asks others for where its own pages are locked: few, since these others may
/// need them as much.
const LOCKED_BATCH: u32 = 4;

/// Frames to keep unused: enough to make an eviction rare, none if the domain has so few
/// frames that each counts.
fn spare_frames(frames: u32) -> u32 {
    if frames < 64 {
        0
    } else {
        (frames / 16).min(1024)
    }
}

/// Pages that one sweep takes: all of a page table's where frames are many, an eighth of
/// the frames where they are few, so that a sweep never takes most of what is resident.
pub(crate) fn sweep_pages(frames: u32) -> usize {
    let eighth = (frames as usize / 8).max(1);
    let power = 1 << eighth.ilog2();
    power.min(HUGE_RANGE_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_never_takes_more_than_an_eighth_of_the_frames() {
        assert_eq!(sweep_pages(4), 1);
        assert_eq!(sweep_pages(16), 2);
        assert_eq!(sweep_pages(1000), 64);
        assert_eq!(sweep_pages(16_384), 512);
    }
}
