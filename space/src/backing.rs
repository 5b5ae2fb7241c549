//! Private committed memory: stretches of a domain, and the domain's own free frames.
//!
//! A *run* is the stretch behind pages that were committed at once. A page that is decommitted or deallocated keeps its
//! frame where it is: the domain's own frames are used again in place, without zeroing, without faults. The kernel zeroes
//! a frame once, when it comes to the domain. A run that is wholly deallocated waits in a cache for a reservation of its
//! size; frames that are needed meanwhile are taken from it without a write. A domain without a store evicts nothing:
//! there the cache has what the other runs leave of the frames, and a page that is given up in a run that is used leaves
//! its frame at once.
//!
//! Several spaces may have one domain. What one of them deallocated is erased before another one
//! gets it, unless it was committed with `dealloc_no_erase` (2.1). Between domains the kernel
//! erases each frame that it gives out, always: there the flag saves nothing.

use crate::core::Core;
use crate::error::SpaceError;
use crate::page_bits::PageBits;
use crate::used_pages::UsedPages;
use selfpage::{
    Activation, CleanOutcome, Domain, FillOutcome, Paged, Rights, Stretch, StretchDriver,
    StretchError,
};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use translation::{Access, Reservation};
use wired::{Lock, PAGE};

/// What spaces did with the pages of their domain. Sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// Pages committed for the first time: the kernel zeroes each when it is first used.
    pub fresh_pages: u64,
    /// Pages committed that the domain had used before.
    pub reused_pages: u64,
    /// Of the latter, pages zeroed because their commit asked for it.
    pub zeroed_pages: u64,
    /// Of the latter, pages erased because another space had used them.
    pub erased_pages: u64,
}

#[derive(Default)]
pub(crate) struct CommitCounters {
    pub(crate) fresh: AtomicU64,
    pub(crate) reused: AtomicU64,
    pub(crate) zeroed: AtomicU64,
    pub(crate) erased: AtomicU64,
}

/// A domain for spaces, with the cache of its runs.
pub struct Backing {
    domain: Domain,
    paged: bool,
    cache: Mutex<Vec<Run>>,
    /// Pages that the cache holds at most; without a store, less those of the other runs.
    cache_pages: usize,
    /// Pages of the runs that spaces use.
    used_pages: Arc<AtomicUsize>,
    pub(crate) counters: CommitCounters,
}

impl Backing {
    /// For spaces whose private memory has frames, and if there is one the store, of this domain.
    /// Runs of as many pages as the contract has frames stay in the cache at most. Without a store their frames are
    /// not evicted for other stretches: [`Backing::trim`] frees them.
    pub fn new(domain: Domain) -> Arc<Self> {
        let frames = domain.contract().x as usize;
        let paged = domain.store().is_some();
        Arc::new(Self {
            paged,
            // The pager keeps a few frames spare, which only eviction would give.
            cache_pages: if paged { frames } else { frames - frames / 16 },
            used_pages: Arc::default(),
            domain,
            cache: Mutex::default(),
            counters: CommitCounters::default(),
        })
    }

    /// The domain.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// What its spaces did.
    pub fn stats(&self) -> CommitStats {
        let CommitCounters {
            fresh,
            reused,
            zeroed,
            erased,
        } = &self.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CommitStats {
            fresh_pages: load(fresh),
            reused_pages: load(reused),
            zeroed_pages: load(zeroed),
            erased_pages: load(erased),
        }
    }

    fn cache(&self) -> MutexGuard<'_, Vec<Run>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the cached runs' frames and addresses back.
    pub fn trim(&self) {
        let runs = std::mem::take(&mut *self.cache());
        drop(runs);
    }

    /// A cached run for `range` exactly, or of `len` bytes anywhere; one of this space's own before
    /// another's.
    pub(crate) fn take_cached(&self, at: Option<usize>, len: usize, space: u64) -> Option<Run> {
        let mut cache = self.cache();
        let fits =
            |run: &&Run| run.range().len() == len && at.is_none_or(|at| run.range().start == at);
        let own = cache
            .iter()
            .rposition(|run| fits(&run) && run.last_space == space);
        let index = own.or_else(|| cache.iter().rposition(|run| fits(&run)))?;
        let mut run = cache.swap_remove(index);
        run.used = Some(UsedPages::of(&self.used_pages, run.pages()));
        Some(run)
    }

    /// Drops the cached runs that overlap `range`.
    pub(crate) fn evict_cached(&self, range: &Range<usize>) {
        let overlaps = |run: &Run| run.range().start < range.end && range.start < run.range().end;
        let mut cache = self.cache();
        let all = std::mem::take(&mut *cache);
        let (dropped, kept) = all.into_iter().partition::<Vec<_>, _>(overlaps);
        *cache = kept;
        drop(cache);
        drop(dropped);
    }

    /// Keeps a run that no region uses, or drops the oldest ones.
    pub(crate) fn put_cached(&self, mut run: Run) {
        run.used = None;
        self.cache().push(run);
        self.limit_cache();
    }

    /// Drops the oldest cached runs beyond the limit.
    fn limit_cache(&self) {
        let used = match self.paged {
            true => 0,
            false => self.used_pages.load(Ordering::Relaxed),
        };
        let limit = self.cache_pages.saturating_sub(used);
        let mut cache = self.cache();
        let mut dropped = Vec::new();
        while cache.iter().map(Run::pages).sum::<usize>() > limit {
            dropped.push(cache.remove(0));
        }
        drop(cache);
        drop(dropped);
    }

    /// Ends a run and keeps its addresses reserved. No page of it is pinned.
    pub(crate) fn release(run: Run) {
        if let Some(stretch) = Arc::into_inner(run.stretch) {
            stretch.release();
        }
    }

    /// Makes a run of reserved addresses, which are unmapped where this fails.
    pub(crate) fn make(
        &self,
        core: &Arc<Core>,
        range: Range<usize>,
        space: u64,
    ) -> Result<Run, SpaceError> {
        let used = UsedPages::of(&self.used_pages, range.len() / PAGE);
        self.limit_cache();
        let (stretch, user) = self.make_stretch(core, range)?;
        Ok(Run {
            used: Some(used),
            written: PageBits::new(stretch.pages()),
            to_erase: PageBits::new(stretch.pages()),
            stretch: Arc::new(stretch),
            user,
            last_space: space,
        })
    }

    fn make_stretch(
        &self,
        core: &Arc<Core>,
        range: Range<usize>,
    ) -> Result<(Stretch, Arc<RunUser>), StretchError> {
        let (addr, len) = (range.start, range.len());
        // SAFETY: reserved by the space, and in no use.
        let stretch = unsafe { self.domain.allocate_in(Reservation { addr, len }) }?;
        let user = Arc::new(RunUser {
            base: addr,
            paged: self.paged,
            core: Lock::new(CorePtr(Arc::as_ptr(core))),
        });
        stretch.bind(Committed(user.clone()))?;
        // The rights are those of each page from here on.
        stretch.protect(Rights::META)?;
        Ok((stretch, user))
    }
}

/// The space that uses a run.
pub(crate) struct RunUser {
    base: usize,
    /// The domain has a store.
    paged: bool,
    core: Lock<CorePtr>,
}

/// Null while no space uses the run.
struct CorePtr(*const Core);

// SAFETY: a core is shared by threads; the pointer is used under the lock, which a space takes
// before its core ends.
unsafe impl Send for CorePtr {}

impl RunUser {
    fn set(&self, core: *const Core) {
        *self.core.lock() = CorePtr(core);
    }

    fn is_committed(&self, page: usize) -> bool {
        let core = self.core.lock();
        // SAFETY: not null while the core exists: see `CorePtr`.
        let region = unsafe { core.0.as_ref() }.and_then(|c| c.find(self.base + page * PAGE));
        region.is_some_and(|r| r.state() == crate::RegionState::Committed)
    }
}

/// The driver of runs: a paged one, for which a page that is not committed is as if never touched.
struct Committed(Arc<RunUser>);

impl StretchDriver for Committed {
    fn name(&self) -> &'static str {
        "committed"
    }

    fn evictable(&self) -> bool {
        self.0.paged
    }

    fn needs_store(&self) -> bool {
        self.0.paged
    }

    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        Paged.fault(fault)
    }

    fn clean(&self, page: usize, _contents: &[u8; PAGE]) -> CleanOutcome {
        if self.0.is_committed(page) {
            CleanOutcome::ToStore
        } else {
            CleanOutcome::Kept
        }
    }
}

/// A stretch behind committed pages.
pub(crate) struct Run {
    pub(crate) stretch: Arc<Stretch>,
    /// While a space uses it.
    used: Option<UsedPages>,
    user: Arc<RunUser>,
    /// Pages that were committed once: they may hold old contents.
    written: PageBits,
    /// Of these, pages committed without `dealloc_no_erase` since they were zeros: no other space
    /// may see their contents.
    to_erase: PageBits,
    last_space: u64,
}

impl Run {
    pub(crate) fn range(&self) -> Range<usize> {
        self.stretch.base()..self.stretch.base() + self.stretch.len()
    }

    fn pages(&self) -> usize {
        self.stretch.pages()
    }

    /// The run's page that is at `addr`.
    fn page(&self, addr: usize) -> usize {
        (addr - self.stretch.base()) / PAGE
    }

    /// No space uses it any more.
    pub(crate) fn leave(&mut self) {
        self.user.set(std::ptr::null());
    }

    /// A space uses it from now on.
    pub(crate) fn join(
        &mut self,
        core: &Arc<Core>,
        space: u64,
        counters: &CommitCounters,
    ) -> Result<(), SpaceError> {
        if self.last_space != space {
            let erased = self.zero(self.range(), |run, page| run.to_erase.contains(page))?;
            counters.erased.fetch_add(erased, Ordering::Relaxed);
        }
        self.last_space = space;
        self.user.set(Arc::as_ptr(core));
        Ok(())
    }

    /// Takes all access to pages of a run away that stays in use. Without a store, which evicts none,
    /// they leave their frames.
    pub(crate) fn give_up(&mut self, range: &Range<usize>) -> Result<(), SpaceError> {
        self.close(range)?;
        if !self.user.paged {
            let pages = self.page(range.start)..self.page(range.end);
            self.stretch.discard(pages.clone())?;
            pages.for_each(|page| {
                self.written.remove(page);
                self.to_erase.remove(page);
            });
        }
        Ok(())
    }

    /// Takes all access away.
    pub(crate) fn close(&self, range: &Range<usize>) -> Result<(), SpaceError> {
        // SAFETY: the region is the space's; accesses are exceptions from here on, as the operation
        // says.
        Ok(unsafe { translation::set_access(range.start, range.len(), Access::NONE) }?)
    }

    /// Opens the pages of `range` for a commit.
    pub(crate) fn open(
        &mut self,
        range: &Range<usize>,
        flags: &crate::CommitFlags,
        counters: &CommitCounters,
    ) -> Result<(), SpaceError> {
        let pages = self.page(range.start)..self.page(range.end);
        let written = |page: &usize| self.written.contains(*page);
        let used = pages.clone().filter(written).count() as u64;
        counters.reused.fetch_add(used, Ordering::Relaxed);
        counters
            .fresh
            .fetch_add(pages.len() as u64 - used, Ordering::Relaxed);
        if flags.zero && used > 0 {
            let zeroed = self.zero(range.clone(), |run, page| run.written.contains(page))?;
            counters.zeroed.fetch_add(zeroed, Ordering::Relaxed);
        }
        for page in pages {
            self.written.insert(page);
            if !flags.dealloc_no_erase {
                self.to_erase.insert(page);
            }
        }
        let access = crate::region::access(flags.rights);
        // SAFETY: the region is the space's.
        Ok(unsafe { translation::set_access(range.start, range.len(), access) }?)
    }

    /// Zeroes the pages of `range` that are to be zeroed, all of which are written: in place where
    /// they are resident, else by dropping their contents.
    fn zero(
        &mut self,
        range: Range<usize>,
        is_to_be_zeroed: impl Fn(&Self, usize) -> bool,
    ) -> Result<u64, SpaceError> {
        let pages = self.page(range.start)..self.page(range.end);
        // SAFETY: no page of the range is committed.
        unsafe { translation::set_access(range.start, range.len(), Access::READ_WRITE) }?;
        let mut zeroed = 0;
        for page in pages {
            if !is_to_be_zeroed(self, page) {
                continue;
            }
            if self.stretch.trans(page)?.frame.is_some() {
                // SAFETY: a page of the run that no program code uses; a fault brings it back.
                unsafe { self.stretch.as_ptr().add(page * PAGE).write_bytes(0, PAGE) };
                zeroed += 1;
            } else {
                self.stretch.discard(page..page + 1)?;
            }
            self.written.remove(page);
            self.to_erase.remove(page);
        }
        self.close(&range)?;
        Ok(zeroed)
    }

    /// Brings pages in: as many as half of the domain's frames at most, the others come by their faults.
    pub(crate) fn populate(&self, range: &Range<usize>, frames: usize) -> Result<(), SpaceError> {
        let first = range.start - self.stretch.base();
        let len = range.len().min(frames / 2 * PAGE);
        Ok(self.stretch.populate(first..first + len)?)
    }
}
