//! A domain of a linked program, and its stretches.
//!
//! The frames, the store and the threads are the domain's own; no other domain, of this
//! program or another, shares them.

mod builder;
mod error;
mod hints;
mod operation;
mod runtime;
mod stretch;
mod taken_frames;
#[cfg(test)]
mod tests;
mod translate;

pub use builder::{Builder, DirectIo};
pub use error::{DomainError, StretchError};
pub use stretch::{Pin, Stretch};
pub use translate::Trans;

use crate::counters::{Counter, Counters};
use crate::page_table::PageTable;
use crate::stretch::{Fault, Handled, StretchState};
use crate::vma_split;
use frames::{Contract, Frame};
use rate::{FaultLimits, SharedLimits};
use runtime::Runtime;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::SharedStore;
use translation::{Access, Feature, Reservation};
use wired::{HUGE_RANGE_PAGES, PAGE};

/// A domain: a contract, a store, stretches, and the entry that resolves their faults.
///
/// It exists as long as any of its stretches does. After `fork` a child has none of the
/// stretches' memory: an access to it is a SIGSEGV, never silent zeros. Operations on its parent's
/// domains and stretches fail there ([`StretchError::Forked`]) and dropping them has no effect; the
/// child can build domains of its own.
pub struct Domain {
    shared: Arc<Runtime>,
}

impl Domain {
    /// Starts the configuration of a domain.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A stretch of at least `bytes` bytes, at any free address.
    pub fn allocate(&self, bytes: usize) -> Result<Stretch, StretchError> {
        self.allocate_at(None, bytes)
    }

    /// A stretch of at least `bytes` bytes, beginning at `addr` exactly where one is
    /// asked for (Nemesis, section 6.1). Bound to nothing yet: an access fails.
    pub fn allocate_at(&self, addr: Option<usize>, bytes: usize) -> Result<Stretch, StretchError> {
        if bytes == 0 {
            return Err(StretchError::Empty);
        }
        self.shared.operate()?;
        let reservation = translation::reserve(addr, bytes, true)?;
        self.make_in(reservation)
    }

    /// A stretch over private memory that the caller has reserved, such as what
    /// [`Stretch::release`] returned: whole pages, which are readable, writable and the stretch's
    /// from now on. Where this fails they are unmapped.
    ///
    /// # Safety
    /// The reservation is the caller's, and no other code uses its addresses: their contents are
    /// lost, and they are unmapped with the stretch.
    pub unsafe fn allocate_in(&self, reservation: Reservation) -> Result<Stretch, StretchError> {
        let Reservation { addr, len } = reservation;
        if len == 0 {
            return Err(StretchError::Empty);
        }
        self.shared.operate()?;
        // SAFETY: the caller's promise.
        let opened = unsafe { translation::set_access(addr, len, Access::READ_WRITE) };
        if let Err(error) = opened {
            // SAFETY: as above.
            let _ = unsafe { translation::unmap_reservation(reservation) };
            return Err(error.into());
        }
        self.make_in(reservation)
    }

    /// As [`Domain::allocate`], with frames of 2 MiB: the stretch is aligned to them, faults
    /// and is evicted by them, and is split into small ones if that is better. For data that
    /// is accessed in order or by large parts.
    ///
    /// # Errors
    /// [`StretchError::NoHugeFrames`] where the contract is too small for frames of 2 MiB or
    /// the kernel cannot move them; else as for [`Domain::allocate`].
    pub fn allocate_huge(&self, bytes: usize) -> Result<Stretch, StretchError> {
        if bytes == 0 {
            return Err(StretchError::Empty);
        }
        let pager = self.shared.operate()?;
        let frames = pager.frames.client().contract().x;
        if pager.mm.unit_pages != HUGE_RANGE_PAGES {
            return Err(StretchError::NoHugeFrames(format!(
                "the contract allows {frames} frames, and 2 MiB at once take 512: at least {} are needed",
                8 * HUGE_RANGE_PAGES
            )));
        }
        if !pager.mm.capabilities.has(Feature::Move) {
            return Err(StretchError::NoHugeFrames(
                "this kernel has no UFFDIO_MOVE (Linux 6.8)".into(),
            ));
        }
        pager.faults.huge.prepare()?;
        let reservation = translation::reserve_aligned(bytes)?;
        // Otherwise each fault makes a page table first, and a huge page is split.
        let _ = translation::advise_huge(reservation.addr, reservation.len);
        let stretch = self.make_in(reservation)?;
        stretch.inner.set_huge();
        Ok(stretch)
    }

    /// Makes the stretch of a reservation; unmaps the reservation if that fails.
    fn make_in(&self, reservation: Reservation) -> Result<Stretch, StretchError> {
        let pager = self.shared.operate()?;
        // A child of a fork must not see zeros where the parent has data.
        let _ = forget_at_fork(reservation.addr, reservation.len);
        let Reservation { addr: base, len } = reservation;
        let pages = len / PAGE;
        let table = PageTable::new(base, pages, pager.mm.unit_pages).map_err(|errno| {
            // SAFETY: just reserved, and no other code refers to it.
            let _ = unsafe { translation::unmap_reservation(reservation) };
            StretchError::Table { pages, errno }
        })?;
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let inner = Box::into_raw(Box::new(StretchState::new(id, table)));
        // SAFETY: just made; freed by the stretch's drop, after it left the index.
        let inner: &'static StretchState = unsafe { &*inner };
        let fits = {
            let _control = pager.mm.control.lock();
            pager.mm.index.insert(inner)
        };
        pager.log.add(Counter::StretchBytes, len as u64);
        // From here on dropping the stretch unmaps the addresses.
        let stretch = Stretch {
            shared: self.shared.clone(),
            inner,
            keeps_addresses: false,
        };
        if !fits {
            return Err(StretchError::TooMany);
        }
        pager.mm.register(base, len)?;
        vma_split::divide(base, len);
        Ok(stretch)
    }

    #[cfg(test)]
    pub(crate) fn pager(&self) -> &crate::pager::Pager {
        self.shared.pager()
    }

    /// The stretch that holds `addr`, if any: its base and length.
    pub fn lookup(&self, addr: usize) -> Option<Range<usize>> {
        let pager = self.shared.operate().ok()?;
        let _inside = pager.mm.gate.enter(addr >> 12);
        pager
            .mm
            .index
            .find(addr)
            .map(|s| s.table().base()..s.table().end())
    }

    /// Sets a handler for faults on addresses of the process that are in no stretch of any of its
    /// domains. The handlers of several domains are called in turn, until one resolves the fault.
    pub fn on_unallocated(&self, handler: impl Fn(&Fault) -> Handled + Send + Sync + 'static) {
        self.shared
            .pager()
            .faults
            .set_unallocated_handler(Box::new(handler));
    }

    /// An unused frame of the domain's, to be mapped with [`Stretch::map`].
    pub fn take_frame(&self) -> Option<Frame> {
        let frame = self.shared.operate().ok()?.frames.client().take()?;
        self.shared.taken.insert(frame);
        Some(frame)
    }

    /// Releases a frame that was taken and not mapped.
    ///
    /// # Errors
    /// [`StretchError::NotYourFrame`] for any other frame.
    pub fn put_frame(&self, frame: Frame) -> Result<(), StretchError> {
        let pager = self.shared.operate()?;
        if !self.shared.taken.remove(frame) {
            return Err(StretchError::NotYourFrame(frame));
        }
        pager.frames.put(frame);
        Ok(())
    }

    /// Makes up to `k` frames unused, by cycling through the stretch drivers, and releases
    /// them: the inner half of a revocation. Returns how many.
    pub fn relinquish(&self, k: u32) -> u32 {
        let Ok(pager) = self.shared.operate() else {
            return 0;
        };
        let unused = pager.frames.client().unused();
        if unused < k {
            let mut cleaner = pager.evictor.some_cleaner();
            pager.evictor.reclaim(&mut cleaner, k - unused);
        }
        pager.frames.relinquish(k)
    }

    /// {g, x}.
    pub fn contract(&self) -> Contract {
        self.shared.pager().frames.client().contract()
    }

    /// Frames the domain has now: n.
    pub fn n(&self) -> u32 {
        self.shared.pager().frames.client().n()
    }

    /// Frames with something resident, staged or nailed in them.
    pub fn in_use(&self) -> u32 {
        let frames = self.shared.pager().frames.client();
        frames.n().saturating_sub(frames.unused())
    }

    /// Limits the rate of the domain's faults from now on: of each thread, and of all. A
    /// thread past a limit sleeps in its fault until the next period. The new limits apply to
    /// sleeping threads at once, and to what the current period has counted.
    pub fn set_fault_rate(&self, setting: FaultLimits) {
        let Ok(pager) = self.shared.operate() else {
            return;
        };
        let _one = pager.mm.control.lock();
        pager.faults.throttle.set_limits(setting);
    }

    /// The limits in force, the statistics, and the measured cost of faults.
    pub fn limits(&self) -> SharedLimits<'_> {
        self.shared.pager().faults.throttle.limits()
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        self.shared.pager().log.counters()
    }

    /// The store's usage, if there is a store.
    pub fn store_usage(&self) -> Option<store::Usage> {
        self.shared.pager().store.get().map(|s| s.usage())
    }

    /// The store, if there is one.
    pub fn store(&self) -> Option<&SharedStore> {
        // SAFETY: borrowed no longer than `self`.
        self.shared
            .store
            .as_ref()
            .map(|store| unsafe { store.get() })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.shared.is_same_process() {
            // The domain is the parent's to end.
            std::mem::forget(self.shared.clone());
        }
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
