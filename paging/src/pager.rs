//! The engine of a domain: one per process (linked or preloaded).
//!
//! Nemesis's self-paging (section 5): every domain resolves its own faults, with its own
//! frames, its own thread's time and its own input and output. A pager owns what that
//! takes: the userfaultfd, the page tables of its stretches, its client of the frames
//! allocator, its channels to the store, and the standby list.
//!
//! # Rules for waiting
//! - A thread that owns a page in `Filling` waits for a device only, never for a frame, a lock
//!   or another page. A thread that finds no frame releases the page first.
//! - A unit's gate is held shared for one ioctl (publishing a filled page), exclusively for
//!   one `mremap` and the words it changes. A thread that holds it exclusively and meets a
//!   page in `Filling` opens the gate before it waits.
//! - A thread that evicts takes a cleaner, then the stager's lock, then gates (`evict`). An
//!   entry thread that has reads under way only tries the first two.

use crate::counters::Counters;
use crate::entry::idle::Entries;
use crate::entry::marked::Marks;
use crate::evict::writeback::{Cleaner, MOST_CLEANERS};
use crate::evict::{HeldByDevices, SpareMappings, Stager};
use crate::fault_context::Pool;
use crate::frame_source::FrameSource;
use crate::huge::{self, Scratches};
use crate::log::Log;
use crate::mm::Mm;
use crate::readahead::{Ahead, WINDOWS};
use crate::replacement::ScanResistant;
use crate::standby::{Places, Staging};
use crate::stored_pages::StoredPages;
use crate::stream_detector::{Advice, Recogniser, WIDEST};
use crate::stretch::Handler;
use crate::throttle::Pace;
use frames::DomainFrames;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use store::{HolderId, Store};
use translation::{Capabilities, Userfault};
use wired::{Guard, HUGE_RANGE_PAGES, Lock, PAGE, PiLock};

/// Frames below which a domain cannot run: two for an instruction that straddles two
/// pages, one for the page that it moves from, one to move through.
pub const FEWEST_FRAMES: u32 = 4;

/// Readers of a pager. Threads share them by their streams; a thread that finds its reader in
/// use goes without read-ahead for that fault.
const READERS: usize = 4;

/// The pager's interface to its host: queries and notifications.
pub trait Hooks: Send + Sync {
    /// Returns true if the program has allocated `addr`, an address inside a stretch. Called
    /// at the first touch of a page, on the page path.
    fn allocated(&self, _addr: usize) -> bool {
        true
    }

    /// The program touched `page`, which is not allocated. Unless it is allocated by now, the
    /// hook makes it inaccessible, so that the access gets its natural SIGSEGV. On the page
    /// path.
    fn close(&self, page: usize) {
        // SAFETY: the page is of a stretch, and nothing is allocated there.
        let _ = unsafe { translation::set_access(page, PAGE, translation::Access::NONE) };
    }

    /// The processor that a thread of the program runs on, if that is known at no cost. Called
    /// on the page path, while the thread waits for a page.
    fn processor_of(&self, _thread: u32) -> Option<u32> {
        None
    }

    /// Reports what was lost and why, for the operator. On the page path.
    fn notice(&self, text: &str);
}

/// Hooks of a linked program: messages go to standard error.
pub struct StandardError;

impl Hooks for StandardError {
    fn notice(&self, text: &str) {
        // SAFETY: descriptor 2 is borrowed for one write; a closed one is an error.
        let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
        let _ = rustix::io::write(stderr, text.as_bytes());
    }
}

/// What a pager is made of.
pub(crate) struct Parts {
    pub(crate) capabilities: Capabilities,
    pub(crate) userfault: Userfault,
    pub(crate) frames: DomainFrames<'static>,
    /// Frames of the whole ledger: frame numbers are below this.
    pub(crate) total_frames: u32,
    pub(crate) store: Option<&'static dyn Store>,
    pub(crate) holder: HolderId,
    pub(crate) counters: Counters,
    /// Not zero once a device may read or write the program's memory behind the
    /// processor's back: eviction then looks for pinned pages.
    pub(crate) careful: &'static AtomicU32,
    pub(crate) hooks: &'static dyn Hooks,
    /// Faults that upcalls resolve at once.
    pub(crate) contexts: usize,
    /// Limits of the fault rate.
    pub(crate) limits: rate::SharedLimits<'static>,
}

pub(crate) struct Pager {
    pub(crate) hooks: &'static dyn Hooks,
    pub(crate) log: Arc<Log>,
    pub(crate) mm: Arc<Mm>,
    pub(crate) frames: Arc<FrameSource>,
    pub(crate) store: Arc<StoredPages>,
    pub(crate) places: Places,
    pub(crate) staging: Staging,
    /// The replacement's queues.
    pub(crate) order: Lock<ScanResistant>,
    /// The stager's state.
    pub(crate) stager: PiLock<Stager>,
    /// The cleaners; the first is the background evictor's.
    pub(crate) cleaners: Box<[PiLock<Cleaner>]>,
    /// Pages that a device held when they were selected for eviction. They stay nailed until
    /// they are checked again. Changed under the closed gates of their units.
    pub(crate) held_by_devices: PiLock<HeldByDevices>,
    /// Reserve for evictions when the program has used up its mappings.
    pub(crate) spare_mappings: SpareMappings,
    pub(crate) pool: Pool,
    unallocated: AtomicPtr<Box<Handler>>,
    /// As many pages of zeros as the widest window has. Never written, so that all are one
    /// page of the kernel's.
    pub(crate) zeros: wired::WiredMemory,
    /// Where huge frames are made, once a stretch has asked for them.
    scratches: OnceLock<Box<Scratches>>,
    /// Which entry threads wait for faults.
    pub(crate) entries: Entries,
    /// Pages whose access failed for now.
    pub(crate) marks: Lock<Marks>,
    /// Limits of the fault rate.
    pub(crate) pace: Pace,
    /// Detects streams and predicts the next faults.
    pub(crate) recogniser: Recogniser,
    /// The read-ahead engines; empty if there is no store or no window.
    pub(crate) readers: Box<[Lock<Ahead>]>,
    /// Pages of the widest window; below 2 there are no windows.
    pub(crate) widest: u32,
}

impl Pager {
    pub(crate) fn new(parts: Parts) -> Result<Self, crate::DomainError> {
        let contract = parts.frames.contract();
        let unit_pages = unit_pages(contract.x);
        // As many slots as units could be resident at once, up to a bound: a slot is an
        // address range and one mapping while it is in use.
        let slots = (contract.x as usize / unit_pages.min(64)).clamp(2, 256);
        let area = translation::reserve_staging(slots * unit_pages * PAGE)
            .map_err(crate::DomainError::Translation)?;
        let base = area.addr;
        let staging = Staging::new(base, slots, unit_pages).map_err(crate::DomainError::Memory)?;
        let cleaners = (0..cleaner_count())
            .map(|_| Cleaner::new(parts.store).map(PiLock::new))
            .collect::<Result<_, _>>()?;
        let mm = Mm::new(
            parts.capabilities,
            parts.userfault,
            parts.careful,
            unit_pages,
        )
        .map_err(crate::DomainError::Memory)?;
        let log = Arc::new(Log::new(parts.hooks, parts.counters));
        let frames = Arc::new(FrameSource::new(parts.frames, log.clone()));
        Ok(Self {
            hooks: parts.hooks,
            places: Places::new(parts.total_frames as usize).map_err(crate::DomainError::Memory)?,
            staging,
            order: Lock::new(ScanResistant::new(parts.total_frames as usize)),
            stager: PiLock::new(Stager::default()),
            cleaners,
            held_by_devices: PiLock::new(HeldByDevices::new(parts.total_frames as usize)),
            spare_mappings: SpareMappings::default(),
            pool: Pool::new(parts.store, parts.contexts)?,
            unallocated: AtomicPtr::default(),
            zeros: wired::WiredMemory::private(WIDEST as usize * PAGE)
                .map_err(crate::DomainError::Memory)?,
            scratches: OnceLock::new(),
            entries: Entries::default(),
            marks: Lock::new(Marks::new()),
            pace: Pace::new(parts.limits).map_err(crate::DomainError::Memory)?,
            recogniser: Recogniser::default(),
            readers: readers(parts.store, contract.x)?,
            log,
            mm: Arc::new(mm),
            frames,
            store: Arc::new(StoredPages::new(parts.store, parts.holder)),
            widest: widest(contract.x),
        })
    }

    /// What huge faults work with, once a stretch has asked for huge frames.
    pub(crate) fn scratches(&self) -> Option<&Scratches> {
        self.scratches.get().map(Box::as_ref)
    }

    /// Prepares for huge faults.
    pub(crate) fn prepare_huge(&self) -> Result<(), translation::ReserveError> {
        if self.scratches.get().is_none() {
            // If another thread was first, its scratches serve as well.
            let _ = self.scratches.set(huge::scratches()?);
        }
        Ok(())
    }

    /// The reader of a stream; None if another stream's thread has it.
    pub(crate) fn reader(&self, advice: &Advice) -> Option<Guard<'_, Ahead>> {
        let count = self.readers.len();
        let at = (advice.stream as usize).checked_rem(count)?;
        self.readers[at].try_lock()
    }

    /// Switches to the child process: its userfaultfd, its client, its holder.
    ///
    /// # Safety
    /// No other thread may be inside the pager: for the child of a fork.
    pub(crate) unsafe fn become_child(
        &self,
        userfault: Userfault,
        frames: DomainFrames<'static>,
        holder: HolderId,
        counters: Counters,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.mm.become_child(userfault);
            self.frames.become_child(frames);
            self.log.become_child(counters);
        }
        self.store.become_child(holder);
        self.entries.forget();
    }

    /// A handler for faults on addresses of no stretch.
    pub(crate) fn unallocated_handler(&self) -> Option<&'static Handler> {
        // SAFETY: a pointer stored here came from a leaked box.
        unsafe { self.unallocated.load(Ordering::Acquire).as_ref() }.map(|boxed| &**boxed)
    }

    pub(crate) fn set_unallocated_handler(&self, handler: Box<Handler>) {
        self.unallocated
            .store(Box::into_raw(Box::new(handler)), Ordering::Release);
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.spare_mappings.unmap();
        let len = self.staging.bytes();
        for addr in [Some(self.staging.address(0)), self.staging.sieve(0)]
            .into_iter()
            .flatten()
        {
            // SAFETY: the pager's own areas, and no thread evicts any more.
            let _ = unsafe { translation::unmap_staging(translation::Reservation { addr, len }) };
        }
    }
}

/// Pages that one sweep takes: all of a page table's where frames are many, an eighth of
/// the frames where they are few, so that a sweep never takes most of what is resident.
fn unit_pages(frames: u32) -> usize {
    let eighth = (frames as usize / 8).max(1);
    let power = 1 << eighth.ilog2();
    power.min(HUGE_RANGE_PAGES)
}

/// Pages of the widest window: a small part of the frames, so that the windows of several
/// streams do not take each other's frames.
fn widest(frames: u32) -> u32 {
    (frames / 64).min(WIDEST)
}

/// Makes the read-ahead engines. Their buffers are memory, too, so a lane's length is limited
/// to a small part of the frames.
fn readers(
    store: Option<&dyn Store>,
    frames: u32,
) -> Result<Box<[Lock<Ahead>]>, crate::DomainError> {
    let length = WINDOWS * widest(frames) as usize;
    let Some(store) = store.filter(|_| length > 1) else {
        return Ok(Box::default());
    };
    let reader = |_| Ahead::new(store, length).map(Lock::new);
    (0..READERS).map(reader).collect()
}

/// A cleaner for the background evictor, and one for each processor that could help.
fn cleaner_count() -> usize {
    // The library's own count reads the quota of the control group, too: that takes files.
    let processors = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
    (1 + processors).min(MOST_CLEANERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_never_takes_more_than_an_eighth_of_the_frames() {
        assert_eq!(unit_pages(4), 1);
        assert_eq!(unit_pages(16), 2);
        assert_eq!(unit_pages(1000), 64);
        assert_eq!(unit_pages(16_384), 512);
    }
}
