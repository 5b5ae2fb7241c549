//! A domain of a linked program, and its stretches.
//!
//! The frames, the store and the threads are the domain's own; nothing is shared with
//! another domain, of this program or another.

use crate::bring::{NotBrought, Wanted};
use crate::counters::{Counter, Counters};
use crate::directory::MOST_STRETCHES;
use crate::driver::StretchDriver;
use crate::entry::thread::Entry;
use crate::entry::{Attempt, mask, upcall};
use crate::fill::{Failure, Outcome};
use crate::mappings;
use crate::page::State;
use crate::page_set::PageSet;
use crate::pager::{FEWEST_FRAMES, Pager, Parts, StandardError};
use crate::prefetch::{Log, Prefetcher};
use crate::rights::{Denied, Rights};
use crate::stretch::{Fault, FaultKind, Handled, Handler, Inner};
use crate::table::Table;
use frames::{Contract, Frame, Ledger};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{SetupError, SharedStore, Store, StoreConfig, StoreError};
use translation::{Access, Capabilities, EntryKind, Feature, TranslationError, Userfault};
use wired::{PAGE, RANGE_PAGES};

/// Why there is no domain.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// Frames asked for that cannot work.
    #[error(
        "{asked} frames are asked for (guaranteed {guaranteed}); a domain needs at least {FEWEST_FRAMES}: two for an instruction across two pages, one for a page on its way out, one for a page on its way in"
    )]
    TooFewFrames {
        /// The limit asked for.
        asked: u32,
        /// The guarantee asked for.
        guaranteed: u32,
    },
    /// The kernel or the permissions do not allow userfaultfd.
    #[error(transparent)]
    Userfault(#[from] translation::OpenError),
    /// No address space.
    #[error(transparent)]
    Translation(#[from] translation::ReserveError),
    /// A stretch could not be registered.
    #[error(transparent)]
    Register(#[from] TranslationError),
    /// No memory for tables.
    #[error("no memory for the domain's tables: {0}")]
    Memory(rustix::io::Errno),
    /// The frames' ledger.
    #[error(transparent)]
    Ledger(#[from] frames::LedgerError),
    /// The contract was refused.
    #[error(transparent)]
    Refused(#[from] frames::Refusal),
    /// The store could not be made.
    #[error(transparent)]
    Store(#[from] SetupError),
    /// A channel to the store could not be made.
    #[error("no channel to the store: {0}")]
    Channel(#[from] StoreError),
    /// Signal handlers or threads.
    #[error("the entry could not be started: {0}")]
    Entry(#[from] std::io::Error),
    /// Too many domains.
    #[error(
        "the process has {} domains with upcalls already, the most there can be",
        upcall::MOST_DOMAINS
    )]
    TooManyDomains,
}

/// Why a stretch cannot be had or changed.
#[derive(Debug, thiserror::Error)]
pub enum StretchError {
    /// A size of nothing.
    #[error("a stretch of no bytes was asked for")]
    Empty,
    /// No address space.
    #[error(transparent)]
    Reserve(#[from] translation::ReserveError),
    /// Too many stretches.
    #[error("the domain has {MOST_STRETCHES} stretches, the most there can be")]
    TooMany,
    /// No memory for the page table.
    #[error("no memory for the page table of a stretch of {pages} pages: {errno}")]
    Table {
        /// Pages it was for.
        pages: usize,
        /// What the kernel said.
        errno: rustix::io::Errno,
    },
    /// The kernel refused.
    #[error(transparent)]
    Translation(#[from] TranslationError),
    /// Bound already.
    #[error("the stretch is bound to a stretch driver already, and a binding is for life")]
    Bound,
    /// A paged driver without a store.
    #[error(
        "the {driver} driver puts pages in the domain's store, and the domain has none: build it with one"
    )]
    NoStore {
        /// The driver asked for.
        driver: &'static str,
    },
    /// Not enough frames to nail.
    #[error(
        "{pages} pages are to stay resident, and only {had} could be given frames of the {limit} the contract allows"
    )]
    Frames {
        /// Pages to nail.
        pages: usize,
        /// Pages nailed before frames ran out.
        had: usize,
        /// The contract's limit.
        limit: u32,
    },
    /// No frames of 2 MiB.
    #[error("frames of 2 MiB are not to be had: {0}")]
    NoHugeFrames(String),
    /// Recorded already.
    #[error("the stretch's faults are being recorded already; end that first")]
    Recording,
    /// A thread of the domain could not be started.
    #[error("the domain's prefetching thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The caller may not.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Not the domain's frame, or not unused.
    #[error("frame {0:?} is not an unused frame of this domain")]
    NotYourFrame(Frame),
    /// Outside the stretch.
    #[error("page {page} is asked for of a stretch of {pages} pages")]
    Outside {
        /// The page asked for.
        page: usize,
        /// Pages there are.
        pages: usize,
    },
    /// The page is mapped, or is not.
    #[error("page {page} is {state:?}: {wanted}")]
    State {
        /// The page.
        page: usize,
        /// What it is.
        state: State,
        /// What was wanted of it.
        wanted: &'static str,
    },
    /// A page could not be brought in or written back.
    #[error("page {page}: {why}")]
    Page {
        /// The page.
        page: usize,
        /// Why.
        why: Failure,
    },
}

/// Whether devices may reach the program's stretches behind the processor's back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// At any time: every page is checked before it leaves that no device holds it. Needs
    /// `UFFDIO_MOVE` (Linux 6.8); without it nothing is evicted any more, which the first
    /// fault that finds no frame says.
    #[default]
    Anytime,
    /// Only into memory that the program has pinned with [`Stretch::pin`] for as long as
    /// the device may reach it: a promise, and the faster way.
    PinnedOnly,
}

/// How a domain is to be.
pub struct Builder {
    contract: Contract,
    store: Option<StoreConfig>,
    entry: EntryKind,
    direct_io: DirectIo,
    capabilities: Option<Capabilities>,
    concurrent_faults: usize,
    track_dirty: bool,
}

impl Builder {
    /// The contract {g, x}, in frames of 4 KiB. 16,384 of each by default.
    pub fn frames(mut self, contract: Contract) -> Self {
        self.contract = contract;
        self
    }

    /// Where pages go that are taken. None by default: then only nailed, physical and
    /// mapped stretches can be had.
    pub fn store(mut self, store: StoreConfig) -> Self {
        self.store = Some(store);
        self
    }

    /// How faults arrive: as upcalls by default, without privilege. With entry threads
    /// system calls, too, may be given memory that is paged out.
    pub fn entry(mut self, entry: EntryKind) -> Self {
        self.entry = entry;
        self
    }

    /// What the program says of direct input and output.
    pub fn direct_io(mut self, direct_io: DirectIo) -> Self {
        self.direct_io = direct_io;
        self
    }

    /// What to use of the kernel; all it gives by default.
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = Some(capabilities);
        self
    }

    /// Faults by upcall that are resolved at once, 32 by default; more wait their turn.
    pub fn concurrent_faults(mut self, count: usize) -> Self {
        self.concurrent_faults = count.max(1);
        self
    }

    /// Whether [`Stretch::trans`] can say that a page is dirty. Costs each first write to
    /// a page that was marked clean a fault inside the kernel (0.8 us).
    pub fn track_dirty(mut self, on: bool) -> Self {
        self.track_dirty = on;
        self
    }

    /// Makes the domain.
    ///
    /// # Errors
    /// [`DomainError`] says which part could not be had and what to do.
    pub fn build(self) -> Result<Domain, DomainError> {
        let Contract { g, x } = self.contract;
        if x < FEWEST_FRAMES || g > x {
            return Err(DomainError::TooFewFrames {
                asked: x,
                guaranteed: g,
            });
        }
        let capabilities = self.capabilities.unwrap_or_else(|| match self.track_dirty {
            true => Capabilities::probe().capabilities,
            false => Capabilities::probe_fast(),
        });
        let options = translation::Options {
            user_mode_only: self.entry == EntryKind::Upcall,
            async_write_protect: self.track_dirty,
        };
        let userfault = Userfault::open_with(self.entry, &capabilities, options)?;
        let (ledger, _descriptor) = Ledger::create(x, 1)?;
        let ledger = Owned::new(ledger);
        let me = frames::Process {
            pid: std::process::id(),
            start: 0,
        };
        // SAFETY: the ledger is dropped after the pager, which alone uses these.
        let (books, words) = unsafe { (ledger.get(), &*words()?.as_ptr()) };
        let client = books.adopt(books.admit(self.contract, me)?, me)?;
        let holder = client.id().slot() as store::Holder;
        let store = match &self.store {
            None => None,
            Some(config) => {
                let (store, _descriptors) = SharedStore::create(config, holder + 1)?;
                store.set_holder(holder)?;
                Some(Owned::new(store))
            }
        };
        let careful = Owned::new(AtomicU32::new(u32::from(
            self.direct_io == DirectIo::Anytime,
        )));
        let contexts = match self.entry {
            EntryKind::Upcall => self.concurrent_faults,
            EntryKind::Thread => 1,
        };
        // SAFETY: what the pager refers to is dropped after it.
        let (store_of_pager, careful_of_pager) = unsafe {
            (
                store.as_ref().map(|s| s.get() as &'static dyn Store),
                careful.get(),
            )
        };
        let pager = Owned::new(Pager::new(Parts {
            capabilities,
            userfault,
            frames: client,
            total_frames: x,
            store: store_of_pager,
            holder,
            counters: Counters::new(words),
            careful: careful_of_pager,
            hooks: &StandardError,
            contexts,
        })?);
        let stop = Arc::new(Stop {
            flag: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?,
        });
        let mut shared = Shared {
            prefetch: Arc::default(),
            prefetching: Mutex::new(None),
            threads: Vec::new(),
            stop,
            next_id: AtomicU32::new(1),
            pager,
            store,
            _careful: careful,
            _ledger: ledger,
        };
        shared.start(self.entry)?;
        Ok(Domain {
            shared: Arc::new(shared),
        })
    }
}

/// Words for the domain's figures, which outlive it: handles to them may be kept.
fn words() -> Result<std::ptr::NonNull<[AtomicU64]>, DomainError> {
    let words: Box<[AtomicU64]> = Counter::ALL.iter().map(|_| AtomicU64::new(0)).collect();
    Ok(std::ptr::NonNull::from(Box::leak(words)))
}

/// Starts a thread of the pager's, which no signal of the program's ever interrupts.
fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            mask::block_all_here();
            work();
        })
}

fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return vec![0];
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

fn pin_to(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // Unpinned it works too, only slower: a cpuset may have changed meanwhile.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Something on the heap to which others keep plain references, dropped by hand order:
/// the fields of [`Shared`] are dropped in the order they stand, the pager before what it
/// refers to.
struct Owned<T: 'static>(std::ptr::NonNull<T>);

// SAFETY: owns its value.
unsafe impl<T: Send> Send for Owned<T> {}
// SAFETY: hands out shared references only.
unsafe impl<T: Sync> Sync for Owned<T> {}

impl<T> Owned<T> {
    fn new(value: T) -> Self {
        Self(std::ptr::NonNull::from(Box::leak(Box::new(value))))
    }

    /// # Safety
    /// The reference must not be used after this is dropped.
    unsafe fn get(&self) -> &'static T {
        // SAFETY: allocated by `new`; for how long is the caller's promise.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, dropped once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Tells the domain's threads to end.
struct Stop {
    flag: AtomicBool,
    event: OwnedFd,
}

/// What a domain and its stretches share; the last of them ends it.
struct Shared {
    prefetch: Arc<Prefetcher>,
    /// The thread for it, once there was a hint.
    prefetching: Mutex<Option<std::thread::JoinHandle<()>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
    stop: Arc<Stop>,
    next_id: AtomicU32,
    pager: Owned<Pager>,
    store: Option<Owned<SharedStore>>,
    _careful: Owned<AtomicU32>,
    _ledger: Owned<Ledger>,
}

impl Shared {
    fn pager(&self) -> &Pager {
        // SAFETY: for as long as this is borrowed.
        unsafe { self.pager.get() }
    }

    /// The prefetcher, with its thread running.
    fn prefetcher(&self) -> std::io::Result<&Prefetcher> {
        let mut thread = self
            .prefetching
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            // SAFETY: the thread is joined before the pager goes.
            let pager = unsafe { self.pager.get() };
            let prefetch = self.prefetch.clone();
            *thread = Some(spawn("selfpage-fetch", move || prefetch.serve(pager))?);
        }
        Ok(&self.prefetch)
    }

    fn start(&mut self, entry: EntryKind) -> Result<(), DomainError> {
        // SAFETY: the threads are joined, and the handlers let go, before the pager goes.
        let pager = unsafe { self.pager.get() };
        let stop = self.stop.clone();
        self.threads.push(spawn("selfpage-evict", move || {
            evict_in_background(pager, &stop)
        })?);
        if entry == EntryKind::Upcall {
            // SAFETY: as above.
            return match unsafe { upcall::attach(pager) }? {
                true => Ok(()),
                false => Err(DomainError::TooManyDomains),
            };
        }
        for cpu in allowed_cpus() {
            let mut entry = Entry::new(pager, cpu)?;
            let stop = self.stop.clone();
            self.threads.push(spawn("selfpage-entry", move || {
                pin_to(cpu);
                entry.serve(pager, Some(stop.event.as_fd()), &mut || {
                    stop.flag.load(Ordering::Acquire)
                });
            })?);
        }
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.prefetch.stop();
        let prefetching = self.prefetching.get_mut();
        if let Some(thread) = prefetching.unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
        self.stop.flag.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.stop.event, &1u64.to_ne_bytes());
        upcall::detach(self.pager());
        self.pager().ring_evictor();
        for thread in self.threads.drain(..) {
            // A pager thread that panicked has ended the process already.
            let _ = thread.join();
        }
    }
}

fn evict_in_background(pager: &Pager, stop: &Stop) {
    while !stop.flag.load(Ordering::Acquire) {
        let seq = pager.frames().bell_seq();
        pager.keep_spare();
        pager
            .frames()
            .wait_bell(seq, Some(Duration::from_millis(50)));
    }
}

/// A domain: a contract, a store, stretches, and the entry that deals with their faults.
///
/// It lives on while any of its stretches does. After `fork` a child has none of the stretches' memory:
/// an access to it is a SIGSEGV, never silent zeros.
pub struct Domain {
    shared: Arc<Shared>,
}

impl Domain {
    /// A domain to be described.
    pub fn builder() -> Builder {
        Builder {
            contract: Contract {
                g: 16_384,
                x: 16_384,
            },
            store: None,
            entry: EntryKind::Upcall,
            direct_io: DirectIo::default(),
            capabilities: None,
            concurrent_faults: 32,
            track_dirty: false,
        }
    }

    /// A stretch of at least `bytes` bytes, wherever there is room.
    pub fn allocate(&self, bytes: usize) -> Result<Stretch, StretchError> {
        self.allocate_at(None, bytes)
    }

    /// A stretch of at least `bytes` bytes, beginning at `addr` exactly where one is
    /// asked for (Nemesis, section 6.1). Bound to nothing yet: an access fails.
    pub fn allocate_at(&self, addr: Option<usize>, bytes: usize) -> Result<Stretch, StretchError> {
        if bytes == 0 {
            return Err(StretchError::Empty);
        }
        let reservation = translation::reserve(addr, bytes, true)?;
        // A child of a fork must not see zeros where the parent has data.
        let _ = forget_at_fork(reservation.addr, reservation.len);
        let made = self.make(reservation.addr, reservation.len);
        if made.is_err() {
            // SAFETY: reserved above, and nobody knows of it.
            let _ = unsafe { translation::unmap_reservation(reservation) };
        }
        made
    }

    /// As [`Domain::allocate`], of frames of 2 MiB: the stretch is aligned to them, faults
    /// and is evicted by them, and is split into small ones where that is better. For data
    /// that is gone through in order or used by large parts.
    ///
    /// # Errors
    /// [`StretchError::NoHugeFrames`] where the contract is too small for frames of 2 MiB or
    /// the kernel cannot move them; else as for [`Domain::allocate`].
    pub fn allocate_huge(&self, bytes: usize) -> Result<Stretch, StretchError> {
        if bytes == 0 {
            return Err(StretchError::Empty);
        }
        let pager = self.shared.pager();
        let frames = pager.frames().contract().x;
        if pager.unit_pages != RANGE_PAGES {
            return Err(StretchError::NoHugeFrames(format!(
                "the contract allows {frames} frames, and 2 MiB at once take 512: at least {} are needed",
                8 * RANGE_PAGES
            )));
        }
        if !pager.capabilities.has(Feature::Move) {
            return Err(StretchError::NoHugeFrames(
                "this kernel has no UFFDIO_MOVE (Linux 6.8)".into(),
            ));
        }
        pager.prepare_huge()?;
        let reservation = translation::reserve_aligned(bytes)?;
        // Else each fault makes a page table first, and a huge page is split.
        let _ = translation::advise_huge(reservation.addr, reservation.len);
        // A child of a fork must not see zeros where the parent has data.
        let _ = forget_at_fork(reservation.addr, reservation.len);
        let made = self.make(reservation.addr, reservation.len);
        match &made {
            Ok(stretch) => stretch.inner.set_huge(),
            // SAFETY: reserved above, and nobody knows of it.
            Err(_) => _ = unsafe { translation::unmap_reservation(reservation) },
        }
        made
    }

    fn make(&self, base: usize, len: usize) -> Result<Stretch, StretchError> {
        let pager = self.shared.pager();
        let pages = len / PAGE;
        let table = Table::new(base, pages, pager.unit_pages)
            .map_err(|errno| StretchError::Table { pages, errno })?;
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let inner = Box::into_raw(Box::new(Inner::new(id, table)));
        // SAFETY: just made; freed by the stretch's drop, after it left the directory.
        let inner: &'static Inner = unsafe { &*inner };
        let fits = {
            let _control = pager.control.lock();
            pager.directory.insert(inner)
        };
        let stretch = Stretch {
            shared: self.shared.clone(),
            inner,
        };
        if !fits {
            return Err(StretchError::TooMany);
        }
        pager.register(base, len)?;
        mappings::divide(base, len);
        pager.counters().add(Counter::stretch_bytes, len as u64);
        Ok(stretch)
    }

    /// The stretch that holds `addr`, if any: its base and length.
    pub fn lookup(&self, addr: usize) -> Option<Range<usize>> {
        let pager = self.shared.pager();
        let _inside = pager.gate.enter(addr >> 12);
        pager
            .directory
            .find(addr)
            .map(|s| s.table().base()..s.table().end())
    }

    /// A handler for faults on addresses near the domain's stretches that belong to none.
    pub fn on_unallocated(&self, handler: impl Fn(&Fault) -> Handled + Send + Sync + 'static) {
        self.shared
            .pager()
            .set_unallocated_handler(Box::new(handler));
    }

    /// An unused frame of the domain's, to be mapped with [`Stretch::map`].
    pub fn take_frame(&self) -> Option<Frame> {
        self.shared.pager().frames().take()
    }

    /// Puts a frame back that was taken and not mapped.
    pub fn put_frame(&self, frame: Frame) {
        self.shared.pager().put(frame);
    }

    /// Arranges for up to `k` frames to be unused, by cycling through the stretch drivers,
    /// and gives them back: the inner half of a revocation. How many it were.
    pub fn relinquish(&self, k: u32) -> u32 {
        let pager = self.shared.pager();
        let unused = pager.frames().unused();
        if unused < k {
            pager.evict(&mut pager.some_cleaner(), k - unused);
        }
        let given = pager.frames().give_back(k);
        pager
            .counters()
            .add(Counter::relinquished, u64::from(given));
        given
    }

    /// {g, x}.
    pub fn contract(&self) -> Contract {
        self.shared.pager().frames().contract()
    }

    /// Frames the domain has now: n.
    pub fn n(&self) -> u32 {
        self.shared.pager().frames().n()
    }

    /// Frames with something resident, staged or nailed in them.
    pub fn in_use(&self) -> u32 {
        let frames = self.shared.pager().frames();
        frames.n().saturating_sub(frames.unused())
    }

    /// The figures.
    pub fn counters(&self) -> Counters {
        self.shared.pager().counters()
    }

    /// What the store holds, where there is one.
    pub fn store_usage(&self) -> Option<store::Usage> {
        self.shared.pager().store.map(|s| s.usage())
    }

    /// The store, where there is one.
    pub fn store(&self) -> Option<&SharedStore> {
        // SAFETY: for as long as this is borrowed.
        self.shared
            .store
            .as_ref()
            .map(|store| unsafe { store.get() })
    }
}

fn forget_at_fork(addr: usize, len: usize) -> rustix::io::Result<()> {
    // SAFETY: changes what a fork copies, nothing else.
    unsafe {
        rustix::mm::madvise(
            std::ptr::with_exposed_provenance_mut(addr),
            len,
            rustix::mm::Advice::LinuxDontFork,
        )
    }
}

/// What translation knows of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trans {
    /// The frame, where the page is resident.
    pub frame: Option<Frame>,
    /// Whether the program wrote the page since it came in or was marked clean
    /// ([`Stretch::mark_clean`]), where the domain tracks that ([`Builder::track_dirty`]).
    /// A hint for the program: eviction compares checksums and does not rely on it.
    pub dirty: Option<bool>,
}

/// A stretch. Dropping it frees its addresses and drops its contents (a mapped one's
/// changes are written to their file first).
pub struct Stretch {
    shared: Arc<Shared>,
    inner: &'static Inner,
}

impl Stretch {
    /// The first address.
    pub fn base(&self) -> usize {
        self.inner.table().base()
    }

    /// Bytes, a multiple of the page size.
    pub fn len(&self) -> usize {
        self.inner.table().pages() * PAGE
    }

    /// Whether it has no bytes: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Pages.
    pub fn pages(&self) -> usize {
        self.inner.table().pages()
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base())
    }

    /// The stretch's bytes.
    ///
    /// # Safety
    /// Nobody may write them meanwhile, and an access that cannot be satisfied is a
    /// SIGBUS.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for the stretch's life; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The stretch's bytes, to be written.
    ///
    /// # Safety
    /// Nobody else may use them meanwhile, and an access that cannot be satisfied is a
    /// SIGBUS.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: mapped for the stretch's life; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Binds the stretch to a driver, for life.
    pub fn bind(&self, driver: impl StretchDriver + 'static) -> Result<(), StretchError> {
        let pager = self.shared.pager();
        if driver.needs_store() && pager.store.is_none() {
            return Err(StretchError::NoStore {
                driver: driver.name(),
            });
        }
        let fill = driver.fills_at_bind();
        if !self.inner.set_driver(Box::new(driver)) {
            return Err(StretchError::Bound);
        }
        if fill {
            self.bring_in(0..self.pages(), true)?;
        }
        Ok(())
    }

    /// Brings pages in, and nails them if so asked. All or nothing.
    fn bring_in(&self, pages: Range<usize>, nail: bool) -> Result<(), StretchError> {
        let pager = self.shared.pager();
        let limit = pager.frames().contract().x;
        // What can never be is refused at once, not after waiting for frames.
        if nail && pages.len() > limit as usize {
            return Err(StretchError::Frames {
                pages: pages.len(),
                had: 0,
                limit,
            });
        }
        let mut had = 0;
        let caller = upcall::thread_hint() as u32;
        for page in pages.clone() {
            let wanted = Wanted {
                page,
                nail,
                window: pages.end - page,
                caller,
            };
            let why = match pager.bring(&|| Some(self.inner), wanted) {
                Ok(()) => None,
                Err(NotBrought::Gone) => Some(Failure::Unbound),
                Err(NotBrought::Failed(why)) => Some(why),
            };
            match why {
                None => had += 1,
                Some(why) => {
                    if nail {
                        let table = self.inner.table();
                        let _inside = pager.gate.enter(page);
                        pager.unnail(table.address(pages.start)..table.address(pages.start + had));
                    }
                    return Err(match why {
                        Failure::AllNailed | Failure::NoSoundEviction | Failure::NoFrame(_) => {
                            StretchError::Frames {
                                pages: pages.len(),
                                had,
                                limit,
                            }
                        }
                        why => StretchError::Page { page, why },
                    });
                }
            }
        }
        Ok(())
    }

    /// Makes a range of bytes resident and keeps it so until the pin is dropped: for
    /// buffers given to system calls (which fail with `EFAULT` on missing pages where
    /// faults are upcalls) and to devices.
    pub fn pin(&self, bytes: Range<usize>) -> Result<Pin<'_>, StretchError> {
        let pages = self.page_range(bytes)?;
        self.bring_in(pages.clone(), true)?;
        Ok(Pin {
            stretch: self,
            pages,
        })
    }

    /// Brings a range of bytes in, as far as frames allow, without keeping it.
    pub fn populate(&self, bytes: Range<usize>) -> Result<(), StretchError> {
        self.bring_in(self.page_range(bytes)?, false)
    }

    /// Says that a range of bytes will be used soon: it is brought in while the program goes
    /// on, as far as three quarters of the frames go. A hint: what cannot be had is not.
    ///
    /// # Errors
    /// [`StretchError::Outside`], or the domain's thread for this could not be started.
    pub fn prefetch(&self, bytes: Range<usize>) -> Result<(), StretchError> {
        let pages = self.page_range(bytes)?;
        self.ask(vec![pages])
    }

    /// As [`Stretch::prefetch`], of a set that was recorded, in its order. Pages beyond the
    /// stretch are passed over.
    ///
    /// # Errors
    /// The domain's thread for this could not be started.
    pub fn replay(&self, set: &PageSet) -> Result<(), StretchError> {
        self.ask(set.runs().collect())
    }

    fn ask(&self, runs: Vec<Range<usize>>) -> Result<(), StretchError> {
        self.shared.prefetcher()?.ask(self.inner.id(), runs);
        Ok(())
    }

    /// Waits until everything that was asked for by [`Stretch::prefetch`] and
    /// [`Stretch::replay`] in this domain is there, or cannot be.
    pub fn await_prefetch(&self) {
        self.shared.prefetch.settle();
    }

    /// Notes from now on which pages come in, in order; until [`Stretch::recorded`].
    ///
    /// # Errors
    /// [`StretchError::Recording`] where they are noted already, or no memory.
    pub fn record(&self) -> Result<(), StretchError> {
        let room = self.pages().clamp(1024, 1 << 22);
        let log = Log::new(room).map_err(|errno| StretchError::Table {
            pages: self.pages(),
            errno,
        })?;
        match self.inner.log().start(log) {
            true => Ok(()),
            false => Err(StretchError::Recording),
        }
    }

    /// Ends a recording: what came in since, each page where it came first.
    pub fn recorded(&self) -> Option<PageSet> {
        let pager = self.shared.pager();
        self.inner.log().finish(|| {
            let _control = pager.control.lock();
            pager.gate.close();
            pager.gate.open();
        })
    }

    fn page_range(&self, bytes: Range<usize>) -> Result<Range<usize>, StretchError> {
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        if pages.end > self.pages() || pages.start > pages.end {
            return Err(StretchError::Outside {
                page: pages.end,
                pages: self.pages(),
            });
        }
        Ok(pages)
    }

    /// Drops the contents of a range of pages: they are zeros (or the file's) again.
    pub fn discard(&self, pages: Range<usize>) -> Result<(), StretchError> {
        self.check(pages.end.saturating_sub(1))?;
        let table = self.inner.table();
        let pager = self.shared.pager();
        let _inside = pager.gate.enter(pages.start);
        pager.discard(table.address(pages.start)..table.address(pages.start) + pages.len() * PAGE);
        Ok(())
    }

    /// Writes changed pages of a mapped stretch to its file. Resident pages stay.
    pub fn flush(&self) -> Result<(), StretchError> {
        let pager = self.shared.pager();
        let table = self.inner.table();
        let mut failed = None;
        for unit in (0..table.unit_count()).filter(|u| table.touched(*u)) {
            // What is written is what no store can change meanwhile: staged.
            let error = pager.flush_unit(self.inner, unit);
            failed = failed.or(error.map(|why| (table.unit_pages(unit).start, why)));
        }
        match failed {
            None => Ok(()),
            Some((page, error)) => Err(StretchError::Page {
                page,
                why: Failure::Unreadable(error),
            }),
        }
    }

    fn check(&self, page: usize) -> Result<(), StretchError> {
        if page >= self.pages() {
            return Err(StretchError::Outside {
                page,
                pages: self.pages(),
            });
        }
        Ok(())
    }

    fn check_meta(&self) -> Result<(), StretchError> {
        let (held, stretch) = (self.rights(), self.inner.id());
        match held.contains(Rights::META) {
            true => Ok(()),
            false => Err(Denied {
                stretch,
                needed: Rights::META,
                held,
            }
            .into()),
        }
    }

    /// Maps an unused frame of the domain at a page that is not resident (Nemesis,
    /// section 6.3): with the page's contents, or zeros.
    pub fn map(&self, page: usize, frame: Frame) -> Result<(), StretchError> {
        self.check(page)?;
        self.check_meta()?;
        let pager = self.shared.pager();
        if pager.frames().state(frame) != Some(frames::State::Mapped) {
            return Err(StretchError::NotYourFrame(frame));
        }
        let seen = self.inner.table().word(page).load().state();
        if seen == State::Resident {
            return Err(StretchError::State {
                page,
                state: seen,
                wanted: "it must not be mapped",
            });
        }
        let mut held = Some(frame);
        let _inside = pager.gate.enter(page);
        let mut context = pager.pool.borrow(page);
        let addr = self.inner.table().address(page);
        let attempt = Attempt {
            addr,
            write: true,
            detached: false,
            advice: None,
            whole: false,
            in_order: false,
        };
        match pager.attempt(self.inner, attempt, &mut held, &mut context) {
            Outcome::Failure(why) => Err(StretchError::Page { page, why }),
            _ => Ok(()),
        }
    }

    /// Removes the mappings of a range of pages. Their contents are kept, on the standby
    /// list; the next access faults.
    pub fn unmap(&self, pages: Range<usize>) -> Result<(), StretchError> {
        self.check(pages.end.saturating_sub(1))?;
        self.check_meta()?;
        self.shared.pager().stage_pages(self.inner, pages);
        Ok(())
    }

    /// The mapping of a page.
    pub fn trans(&self, page: usize) -> Result<Trans, StretchError> {
        self.check(page)?;
        let seen = self.inner.table().word(page).load();
        let frame = (seen.state() == State::Resident).then(|| Frame(seen.frame()));
        let pager = self.shared.pager();
        let dirty = match (frame, pager.pagemap()) {
            (Some(_), Some(pagemap)) if pager.tracks_dirty() => pagemap
                .trans(self.inner.table().address(page))
                .ok()
                .and_then(|t| t.dirty),
            _ => None,
        };
        Ok(Trans { frame, dirty })
    }

    /// What the process may do with the stretch: read, write and execute are enforced by
    /// the kernel, for all threads of the process alike; meta by this library, among those
    /// who use the stretch through it.
    pub fn rights(&self) -> Rights {
        self.inner.rights()
    }

    /// Changes what the process may do with the stretch. Needs the meta right; giving it
    /// up is for good. May be called from a handler of the program's own.
    pub fn protect(&self, rights: Rights) -> Result<(), StretchError> {
        self.check_meta()?;
        if rights == self.rights() {
            return Ok(());
        }
        let access = Access {
            read: rights.contains(Rights::READ),
            write: rights.contains(Rights::WRITE),
            execute: rights.contains(Rights::EXECUTE),
        };
        if access != Access::READ_WRITE {
            self.inner.set_odd_access();
        }
        // SAFETY: the stretch is this object's, and what it may be used for is what is
        // asked to change.
        unsafe { translation::set_access(self.base(), self.len(), access) }?;
        self.inner.set_rights(rights);
        Ok(())
    }

    /// From now on writes to pages of `pages` that are resident are noticed: they are not
    /// dirty until written. Needs a domain built with [`Builder::track_dirty`].
    pub fn mark_clean(&self, pages: Range<usize>) -> Result<(), StretchError> {
        self.check(pages.end.saturating_sub(1))?;
        let table = self.inner.table();
        let (addr, len) = (table.address(pages.start), pages.len() * PAGE);
        Ok(self
            .shared
            .pager()
            .userfault()
            .write_protect(addr, len, true)?)
    }

    /// The program answers faults of this kind on this stretch itself: its handler runs
    /// on the faulting thread, as a signal handler does (entry thread: on the entry's, for
    /// page faults). None gives them back to the driver.
    pub fn override_fault(&self, kind: FaultKind, handler: Option<Box<Handler>>) {
        self.inner.set_handler(kind, handler);
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        self.shared.prefetch.forget(self.inner.id());
        let pager = self.shared.pager();
        let table = self.inner.table();
        if self.inner.driver().is_some_and(|d| !d.zero_is_empty())
            && let Err(error) = self.flush()
        {
            pager.complain(format_args!(
                "a mapped stretch ends with changes that could not be written: {error}"
            ));
        }
        {
            let _inside = pager.gate.enter(self.base());
            pager.discard(table.base()..table.end());
        }
        pager.drain();
        {
            let _control = pager.control.lock();
            pager.remove(self.inner);
        }
        // SAFETY: nobody finds the stretch any more; its memory is this object's.
        let _ = unsafe {
            translation::unmap_reservation(translation::Reservation {
                addr: self.base(),
                len: self.len(),
            })
        };
        pager
            .counters()
            .sub(Counter::stretch_bytes, self.len() as u64);
        // SAFETY: out of the directory, and whoever found it before has left the gate.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self.inner).cast_mut()) });
    }
}

/// Pages that stay resident while this lives.
pub struct Pin<'a> {
    stretch: &'a Stretch,
    pages: Range<usize>,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let table = self.stretch.inner.table();
        let pager = self.stretch.shared.pager();
        let _inside = pager.gate.enter(self.pages.start);
        let start = table.address(self.pages.start);
        pager.unnail(start..start + self.pages.len() * PAGE);
    }
}
