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
//!   handler thread that has reads under way only tries the first two.

use crate::counters::{Counter, Counters};
use crate::entry::crowd::CrowdTurn;
use crate::entry::failed_pages::FailedPages;
use crate::entry::idle::HandlerSet;
use crate::evict::Evictor;
use crate::fault_context::ContextPool;
use crate::fault_outcome::FaultError;
use crate::frame_source::{FrameSource, sweep_pages};
use crate::huge::HugeBuffers;
use crate::log::Log;
use crate::mm::Mm;
use crate::standby::StandbyList;
use crate::stored_pages::StoredPages;
use crate::stream_detector::WIDEST;
use crate::streams::{Streams, widest_window};
use crate::stretch::{Handler, StretchState};
use crate::throttle::FaultThrottle;
use frames::DomainFrames;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use store::{HolderId, Store};
use translation::{Capabilities, Feature, Userfault};
use wired::{LogLine, PAGE, WiredMemory};

/// Frames below which a domain cannot run: two for an instruction that straddles two
/// pages, one for the page that it moves from, one to move through.
pub const FEWEST_FRAMES: u32 = 4;

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

    /// A thread of the program has waited for the pager's threads for seconds: the hook ends the process if these are
    /// gone.
    fn check_pager(&self) {}

    /// Reports what was lost and why, for the operator. On the page path.
    fn notice(&self, text: &str);
}

/// Hooks of a linked program: messages go to standard error.
pub struct StderrLog;

impl Hooks for StderrLog {
    fn notice(&self, text: &str) {
        // SAFETY: descriptor 2 is borrowed for one write; a closed one is an error.
        let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
        let line = LogLine::new(format_args!("selfpage: {text}\n"));
        let _ = rustix::io::write(stderr, line.as_str().as_bytes());
    }
}

/// What a pager is made of.
pub(crate) struct PagerConfig {
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
    /// Pages on their way out.
    pub(crate) standby: Arc<StandbyList>,
    pub(crate) evictor: Evictor,
    pub(crate) faults: FaultPath,
}

impl Pager {
    pub(crate) fn new(config: PagerConfig) -> Result<Self, crate::DomainError> {
        if !config.capabilities.has(Feature::Stage) {
            return Err(translation::OpenError::Lacks(Feature::Stage).into());
        }
        let contract = config.frames.contract();
        let unit_pages = sweep_pages(contract.x);
        let memory = crate::DomainError::Memory;
        let mm = Mm::new(
            config.capabilities,
            config.userfault,
            config.careful,
            unit_pages,
        );
        let mm = Arc::new(mm.map_err(memory)?);
        let log = Arc::new(Log::new(config.hooks, config.counters));
        let frames = Arc::new(FrameSource::new(
            config.frames,
            log.clone(),
            config.store.is_some(),
        ));
        let store = Arc::new(StoredPages::new(config.store, config.holder));
        let faults = FaultPath {
            throttle: FaultThrottle::new(config.limits, log.clone()).map_err(memory)?,
            contexts: ContextPool::new(config.store, config.contexts)?,
            streams: Streams::new(config.store, contract.x)?,
            huge: Arc::default(),
            handlers: Arc::default(),
            crowd: CrowdTurn::default(),
            failed: FailedPages::new(mm.clone(), log.clone()),
            zeros: WiredMemory::private(WIDEST as usize * PAGE).map_err(memory)?,
            unallocated: AtomicPtr::default(),
        };
        let standby = Arc::new(StandbyList::new(
            mm.clone(),
            frames.clone(),
            store.clone(),
            log.clone(),
            config.total_frames as usize,
        )?);
        Ok(Self {
            hooks: config.hooks,
            log,
            mm,
            frames,
            store,
            evictor: Evictor::new(standby.clone(), &faults.huge, faults.handlers.clone())?,
            standby,
            faults,
        })
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
        self.faults.handlers.clear();
    }

    /// Removes a stretch. The caller holds the control lock.
    pub(crate) fn remove(&self, stretch: &StretchState) {
        stretch.set_closing();
        // Two steps, since a fault inside the gate may be waiting for an eviction: first no
        // evicting thread refers to it any more, then no thread is inside.
        let quiesced = self.evictor.quiesce();
        self.mm.index.remove(stretch);
        drop(quiesced);
        self.mm.gate.close();
        self.mm.gate.open();
        let _inside = self.mm.gate.enter(stretch.table().base());
        self.give_up_removed(stretch);
    }

    /// Logs an access that cannot be satisfied, if its stretch still exists. The caller is
    /// inside the domain's gate.
    pub(crate) fn log_failure(&self, addr: usize, failure: &FaultError) {
        let Some(stretch) = self.mm.index.find(addr) else {
            return;
        };
        self.log.add(Counter::UnreadablePages, 1);
        let store = self.store.name();
        self.log.write(format_args!(
            "page {:#x} ({} stretch at {:#x}, store {store}): {failure}",
            page_base(addr),
            stretch.driver().map_or("unbound", |d| d.name()),
            stretch.table().base(),
        ));
    }

    /// Pages of the widest window, by the frames that the domain can own for now.
    pub(crate) fn widest_window(&self) -> u32 {
        widest_window(self.frames.client().resident_limit())
    }

    /// The background evictor's work, once.
    pub(crate) fn maintain_watermark(&self) {
        if let Some(stager) = self.evictor.stager.try_lock() {
            self.faults.failed.unmark_due(&stager);
            self.faults.streams.release_idle(&stager);
        }
        let swapper = self.faults.throttle.swapper_called();
        self.evictor.maintain_watermark(swapper);
    }
}

/// The parts of the pager that only faults use.
pub(crate) struct FaultPath {
    /// Limits of the fault rate.
    pub(crate) throttle: FaultThrottle,
    /// Contexts of faults on threads of the program.
    pub(crate) contexts: ContextPool,
    pub(crate) streams: Streams,
    /// Where huge frames are made.
    pub(crate) huge: Arc<HugeBuffers>,
    /// Which handler threads wait for faults.
    pub(crate) handlers: Arc<HandlerSet>,
    /// Which of them puts wakes off.
    pub(crate) crowd: CrowdTurn,
    /// Pages whose access failed for now.
    pub(crate) failed: FailedPages,
    /// As many pages of zeros as the widest window has. Never written, so that all are one
    /// page of the kernel's.
    pub(crate) zeros: WiredMemory,
    /// For faults on addresses of no stretch.
    pub(crate) unallocated: AtomicPtr<Box<Handler>>,
}

impl FaultPath {
    /// The handler for faults on addresses of no stretch.
    pub(crate) fn unallocated_handler(&self) -> Option<&'static Handler> {
        // SAFETY: a pointer stored here came from a leaked box.
        unsafe { self.unallocated.load(Ordering::Acquire).as_ref() }.map(|boxed| &**boxed)
    }

    pub(crate) fn set_unallocated_handler(&self, handler: Box<Handler>) {
        self.unallocated
            .store(Box::into_raw(Box::new(handler)), Ordering::Release);
    }
}

/// The address of the page that holds `addr`.
pub(crate) fn page_base(addr: usize) -> usize {
    addr & !(PAGE - 1)
}
