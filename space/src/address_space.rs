//! An address space: the interface of Figure 1.

use crate::backing::{Backing, Run};
use crate::client_view::ClientView;
use crate::core::{Core, LockTimes};
use crate::error::SpaceError;
use crate::object::{MemoryObject, aligned};
use crate::page_limit::PageLimit;
use crate::pin::PinnedRange;
use crate::region::{Kind, Region, RegionInfo, RegionState};
use crate::registry::{self, Registration};
use crate::revocation::RevocationThread;
use crate::space_protocol::RemoteSpaceError;
use crate::state::SpaceState;
use crate::vtlb::{MOST_PAGES, Vtlb};
use crate::vtlb_budget::{GUARANTEED, VtlbBound};
use crate::vtlb_stats::VtlbStats;
use selfpage::Rights;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wired::PAGE;

/// One past the last address of user memory.
const ADDRESSES: usize = 1 << 47;

/// An address space: a part of this process's addresses, described by a tree.
///
/// Threads may share it. Accesses to its memory are pointers of the caller's own; handlers of
/// asynchronous signals must not make them, since the thread that they interrupt may hold a lock
/// that the fault needs. A child of `fork` may not use the space: its operations fail, queries and
/// statistics are empty, since a thread of the parent's may have had their lock, and an access is an
/// exception where the memory is committed, or mapped and not entered at the time of the fork.
pub struct AddressSpace {
    // First, so that no fault is inside when the rest goes.
    registration: Option<Registration>,
    /// Answers the other spaces of a shared budget.
    pub(crate) revocation: Option<RevocationThread>,
    pub(crate) core: Arc<Core>,
    pub(crate) backing: Option<Arc<Backing>>,
    pub(crate) number: u64,
    state: Mutex<SpaceState>,
}

/// The unit of addresses and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationInformation {
    /// Bytes of a page.
    pub page_size: usize,
    /// What addresses and object offsets are multiples of.
    pub alignment: usize,
}

/// Memory of the domain and of the space, in bytes (GlobalMemoryStatus).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// The contract's frames.
    pub total_physical: u64,
    /// Those with nothing in them.
    pub available_physical: u64,
    /// Reserved addresses, committed and mapped ones too.
    pub reserved: u64,
    /// Committed private memory.
    pub committed: u64,
    /// Mapped memory objects.
    pub mapped: u64,
}

impl AddressSpace {
    /// A space with private memory of `backing`'s domain, whose mappings of memory objects have
    /// `vtlb` page-table pages at most: a number (6 to 4096), or a
    /// [`VtlbBudget`](crate::VtlbBudget) of several spaces.
    ///
    /// # Errors
    /// [`SpaceError::Budget`] for another number, [`SpaceError::TooMany`], [`SpaceError::HandlerTaken`],
    /// [`SpaceError::BudgetFull`], or the kernel's error.
    pub fn new(backing: Arc<Backing>, vtlb: impl Into<VtlbBound>) -> Result<Self, SpaceError> {
        Self::make(Some(backing), vtlb.into())
    }

    /// A space for memory objects alone: it commits shareable memory only, and needs no userfaultfd.
    pub fn without_domain(vtlb: impl Into<VtlbBound>) -> Result<Self, SpaceError> {
        Self::make(None, vtlb.into())
    }

    fn make(backing: Option<Arc<Backing>>, vtlb: VtlbBound) -> Result<Self, SpaceError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let (limit, mut revocation) = match vtlb {
            VtlbBound::Pages(pages) if (GUARANTEED..=MOST_PAGES).contains(&pages) => {
                (PageLimit::Own(pages), None)
            }
            VtlbBound::Pages(pages) => return Err(SpaceError::Budget { pages, spaces: 1 }),
            VtlbBound::Budget(budget) => {
                let (thread, member) = RevocationThread::start(&budget)?;
                (PageLimit::Shared(member), Some(thread))
            }
        };
        let core = Arc::new(Core::new(Vtlb::new(limit)?)?);
        let registration = Some(registry::register(core.clone())?);
        if let Some(thread) = &mut revocation {
            thread.serve(&core);
        }
        Ok(Self {
            registration,
            revocation,
            core,
            backing,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
        })
    }

    /// Begins an operation. In the child of a fork a thread of the parent's may have the mutex.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, SpaceState>, SpaceError> {
        match self.core.other_owner() {
            Some(owner) => Err(SpaceError::Forked { owner }),
            None => Ok(self.lock_state()),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, SpaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The domain's part, where there is one.
    pub fn backing(&self) -> Option<&Arc<Backing>> {
        self.backing.as_ref()
    }

    /// Page size and alignment.
    pub fn allocation_information(&self) -> AllocationInformation {
        AllocationInformation {
            page_size: PAGE,
            alignment: PAGE,
        }
    }

    /// What the space has at `addr`.
    pub fn query(&self, addr: usize) -> Option<RegionInfo> {
        match self.core.other_owner() {
            Some(_) => None,
            None => self.core.find(addr).map(RegionInfo::from),
        }
    }

    /// Memory in use.
    pub fn memory_status(&self) -> MemoryStatus {
        let mut status = MemoryStatus::default();
        let Ok(_operation) = self.state() else {
            return status;
        };
        if let Some(backing) = &self.backing {
            let domain = backing.domain();
            status.total_physical = u64::from(domain.contract().x) * PAGE as u64;
            let used = u64::from(domain.in_use()) * PAGE as u64;
            status.available_physical = status.total_physical.saturating_sub(used);
        }
        let mut at = 0;
        while let Some(region) = self.core.first_after(at) {
            let bytes = region.range().len() as u64;
            status.reserved += bytes;
            match region.state() {
                RegionState::Reserved => {}
                RegionState::Committed => status.committed += bytes,
                RegionState::Mapped => status.mapped += bytes,
            }
            at = region.end;
        }
        status
    }

    /// What the VTLB did and has.
    pub fn vtlb_stats(&self) -> VtlbStats {
        match self.core.other_owner() {
            Some(_) => VtlbStats::default(),
            None => self.core.with_vtlb(|vtlb| vtlb.stats()),
        }
    }

    /// How long the exclusive sections were held.
    pub fn lock_times(&self) -> LockTimes {
        self.core.times()
    }

    /// A memory object of shareable memory: `size` bytes at `addr`, all of one `commit` or `map`,
    /// with its rights. The object of an object that is mapped is a view of that.
    ///
    /// # Errors
    /// [`SpaceError::NotShareable`] for private memory, [`SpaceError::NotReserved`].
    pub fn memory_object(&self, addr: usize, size: usize) -> Result<MemoryObject, SpaceError> {
        let state = self.state()?;
        let range = self.range(addr, size)?;
        let region = self
            .core
            .find(addr)
            .ok_or(SpaceError::NotReserved { addr })?;
        let Kind::Mapped(mapping) = region.kind else {
            return Err(SpaceError::NotShareable { range });
        };
        let inside = range.end <= region.end && mapping.copies.is_none();
        let Some(mapped) = state.mappings.get(&mapping.id).filter(|_| inside) else {
            return Err(SpaceError::NotShareable { range });
        };
        let offset = mapping.offset + (addr - region.start) as u64 - mapped.object.offset();
        mapped
            .object
            .restricted_access(offset, range.len() as u64, mapped.object.rights())
    }

    /// Brings committed or mapped pages in and pins them.
    ///
    /// # Errors
    /// [`SpaceError::State`] for reserved pages, [`SpaceError::Stretch`] where the domain has too
    /// few frames, [`SpaceError::VtlbFull`], [`SpaceError::PinsFull`], [`SpaceError::Translation`]
    /// for an object without memory there. Nothing is pinned then.
    pub fn pin(&self, addr: usize, size: usize) -> Result<PinnedRange<'_>, SpaceError> {
        PinnedRange::new(self, addr, size)
    }

    /// Maps the memory of a client with `rights`, without exceptions.
    ///
    /// # Errors
    /// As for [`AddressSpace::map`]; [`SpaceError::Foreign`] for an object of no bytes, [`SpaceError::ServedFile`] for
    /// a file of no local file system: the end of its mapping waits for its server, and that may be the client.
    pub fn client_view(
        &self,
        object: &MemoryObject,
        rights: Rights,
    ) -> Result<ClientView<'_>, SpaceError> {
        ClientView::new(self, object, rights)
    }

    /// Serves the space to the process at the other end of a Unix socket of whole messages
    /// (`SOCK_SEQPACKET`) until that closes it: see [`RemoteSpace`](crate::RemoteSpace).
    ///
    /// # Errors
    /// [`RemoteSpaceError::Protocol`] for a message of another kind; the socket's error.
    pub fn serve(&self, socket: &OwnedFd) -> Result<(), RemoteSpaceError> {
        crate::space_server::serve(self, socket)
    }

    /// The range of an operation: whole pages, or a section where the size is zero.
    pub(crate) fn range(&self, addr: usize, size: usize) -> Result<Range<usize>, SpaceError> {
        aligned("address", addr as u64)?;
        aligned("size", size as u64)?;
        if size == 0 {
            let section = self.core.find(addr).and_then(|region| region.section);
            return match section {
                Some((start, end)) if start == addr => Ok(start..end),
                _ => Err(SpaceError::Empty { addr }),
            };
        }
        let end = addr.checked_add(size).filter(|end| *end <= ADDRESSES);
        end.map(|end| addr..end).ok_or(SpaceError::Overflow {
            start: addr as u64,
            size: size as u64,
            limit: ADDRESSES as u64,
        })
    }

    /// Calls `each` with the regions of `range` and their parts in it, in order. Ends at an address
    /// that is in no region, or with the first error: earlier parts are done.
    pub(crate) fn for_each_region(
        &self,
        range: &Range<usize>,
        mut each: impl FnMut(&Region, Range<usize>) -> Result<(), SpaceError>,
    ) -> Result<(), SpaceError> {
        let mut at = range.start;
        while at < range.end {
            let region = self
                .core
                .find(at)
                .ok_or(SpaceError::NotReserved { addr: at })?;
            let part = region.part(&(at..range.end)).range();
            at = part.end;
            each(&region, part)?;
        }
        Ok(())
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        if self.core.other_owner().is_some() {
            // A child's copy: objects, stretches and threads are the parent's.
            std::mem::forget(self.registration.take());
            std::mem::forget(self.revocation.take());
            std::mem::forget(self.backing.take());
            return;
        }
        // A view that is left was never dropped, and has no call any more.
        self.lock_state().views.clear();
        let mut at = 0;
        while let Some(region) = self.core.first_after(at) {
            at = region.end;
            let whole = region
                .section
                .map_or(region.range(), |(start, end)| start..end);
            at = at.max(whole.end);
            if let Err(error) = self.deallocate(whole.start, whole.len()) {
                eprintln!("selfpage: an address space ends and cannot release its memory: {error}");
            }
        }
        self.registration = None;
        // It has no entries to give back any more.
        self.revocation = None;
        // None is left, unless the kernel refused above: a run looks pages up in the tree, which
        // goes first.
        let mut state = self.lock_state();
        state.runs.values_mut().for_each(Run::leave);
    }
}
