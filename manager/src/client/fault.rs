//! A fault: from the page's state to contents in its place.

use super::Outcome;
use super::pager::{ClientPager, unit_of};
use super::saving::Saving;
use crate::client_memory::ClientMemory;
use crate::memory_object::{DataReply, MemoryObject, PageName};
use crate::page_table::PageState;
use crate::snapshot::Readiness;
use selfpage::Replacement;
use std::time::{Duration, Instant};
use store::StoreError;
use translation::{Fault, MapError};
use wired::PAGE;

/// How long a fault waits where no huge page is free.
const HUGE_PAGE_RETRY: Duration = Duration::from_millis(10);

impl ClientPager {
    pub(super) fn answer(&mut self, fault: Fault) -> Outcome {
        let Some(page) = self.table.page_at(fault.addr) else {
            if !std::mem::replace(&mut self.has_warned, true) {
                tracing::error!(
                    "a fault at {:#x}, which no mapping of the hand-off has, waits for ever",
                    fault.addr
                );
            }
            return Outcome::Answered;
        };
        if self.lacks_huge_page() {
            return Outcome::Deferred;
        }
        let state = self.table.get(page);
        if fault.write_protected && state.is_resident() {
            return self.permit_store(page);
        }
        if fault.minor && state.is_resident() && self.memory.can_evict() {
            return self.map_present(page);
        }
        match state {
            PageState::Lost => self.poison(page, None),
            PageState::ResidentOrigin if matches!(self.memory, ClientMemory::Cache(..)) => {
                self.bring_in(page, PageState::Origin)
            }
            // The client punched a hole, or discarded the page while its event was read.
            _ if state.is_resident() => {
                self.table.set(page, PageState::Resident);
                self.release(state);
                self.place(page, DataReply::Unavailable, PageState::Resident)
            }
            _ => self.bring_in(page, state),
        }
    }

    /// A store to a page that is write-protected, for a save or for an eviction that did not take place.
    fn permit_store(&mut self, page: usize) -> Outcome {
        self.counters.protect_faults.add(1);
        Saving::before_change(self, page);
        let (addr, len) = (self.table.addr(page), self.table.page_size());
        match self.uffd.write_protect(addr, len, false) {
            Ok(()) => Outcome::Answered,
            Err(why) => Self::refused(why.errno),
        }
    }

    /// A page that the memfd has and the client's page table has not. The client asked for such faults itself.
    fn map_present(&mut self, page: usize) -> Outcome {
        // It is not protected any more.
        Saving::before_change(self, page);
        let (addr, len) = (self.table.addr(page), self.table.page_size());
        match self.uffd.map_cached(addr, len) {
            Ok(()) => Outcome::Answered,
            Err(MapError::Again { .. } | MapError::NoMemory) => Outcome::Deferred,
            Err(MapError::Gone) => self.gone(addr),
            // Another thread has mapped it, or has punched a hole: then the next fault is of another kind.
            Err(_) => self.wake(addr),
        }
    }

    /// Brings a page in whose contents are where `state` says.
    fn bring_in(&mut self, page: usize, state: PageState) -> Outcome {
        if let (PageState::Origin, Some(origin)) = (state, &self.origin) {
            match origin.request(self.table.offset(page), self.table.page_size()) {
                Readiness::Ready => {}
                Readiness::Pending => return Outcome::Awaited,
                Readiness::Failed => return self.poison(page, None),
            }
        }
        if !self.make_room(1) {
            return Outcome::Deferred;
        }
        Saving::before_change(self, page);
        self.table.begin_move(page);
        let counters = self.counters.clone();
        let standby = self.contract.as_mut().and_then(|it| it.standby.take(page));
        if let (Some(contents), false) = (standby, state == PageState::Zero) {
            counters.standby_pages.add(1);
            if let Some(contract) = &mut self.contract {
                contract.order.refaulted(unit_of(page));
            }
            return self.place(page, DataReply::Provided(contents), resident(state));
        }
        let name = PageName {
            offset: self.table.offset(page),
            copy: state.handle(),
        };
        let len = self.table.page_size();
        let reply = match (state, &mut self.contract, &mut self.origin) {
            (PageState::Stored(_), Some(contract), _) => {
                counters.stored_pages.add(1);
                contract.paging.data_request(name, len)
            }
            (PageState::Origin, _, Some(origin)) => {
                counters.demand_pages.add(1);
                if let Some(recording) = &mut self.recording {
                    recording.push(name.offset);
                }
                origin.data_request(name, len)
            }
            _ => DataReply::Unavailable,
        };
        match reply {
            DataReply::Error(why)
                if !why.is_final() && self.unreadable.on_failed(page, Instant::now()) =>
            {
                self.table.end_move(page);
                Outcome::Deferred
            }
            DataReply::Error(why) => self.poison(page, Some(why)),
            reply => {
                self.unreadable.forget(page);
                self.place(page, reply, resident(state))
            }
        }
    }

    /// Puts contents in their place; the page is `then` from now on.
    pub(super) fn place(&mut self, page: usize, contents: DataReply, then: PageState) -> Outcome {
        let addr = self.table.addr(page);
        let offset = (then == PageState::ResidentOrigin).then(|| self.table.offset(page));
        let place = |it: &Self| it.memory.place(&it.uffd, addr, contents, offset, &it.zeros);
        let mut placed = place(self);
        if matches!(placed, Err(MapError::Exists { .. })) && self.remove_marker(page) {
            placed = place(self);
        }
        match placed {
            Ok(()) => {
                if contents == DataReply::Unavailable {
                    self.counters.zero_pages.add(1);
                }
                self.set_resident(page, then);
                Outcome::Answered
            }
            // The pool of huge pages may be empty, which has the same error: then the thread faults again.
            Err(MapError::Exists { .. })
                if self.table.page_size() > PAGE && !self.table.get(page).is_resident() =>
            {
                self.table.end_move(page);
                self.refused_huge_page = Some(Instant::now());
                self.wake(addr)
            }
            // Answered before: the kernel delivered the fault twice.
            Err(MapError::Exists { .. }) => {
                self.set_resident(page, then);
                self.wake(addr)
            }
            Err(MapError::Again { .. } | MapError::NoMemory) => {
                self.table.end_move(page);
                Outcome::Deferred
            }
            Err(MapError::Gone) => {
                self.table.end_move(page);
                self.gone(addr)
            }
            Err(why) => {
                let of = match offset {
                    Some(_) => ": its snapshot's file has become shorter, or cannot be read",
                    None => "",
                };
                tracing::error!("the page at {addr:#x} of the client is lost{of}: {why}");
                self.poison(page, None)
            }
        }
    }

    /// Returns true if a huge page was refused a moment ago, and the thread that was woken has faulted on it again.
    fn lacks_huge_page(&mut self) -> bool {
        // The pool is one for all pages.
        let is_recent = self
            .refused_huge_page
            .is_some_and(|since| since.elapsed() < HUGE_PAGE_RETRY);
        if is_recent && !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "faults of the client wait for a huge page, of which none is free: raise vm.nr_hugepages"
            );
        }
        is_recent
    }

    /// The write protection of a save leaves a marker where nothing is mapped, which the kernel may take for contents. Returns true
    /// if there is none any more.
    fn remove_marker(&mut self, page: usize) -> bool {
        if self.memory.can_evict() {
            return false;
        }
        // The page may be there.
        Saving::before_change(self, page);
        let (addr, len) = (self.table.addr(page), self.table.page_size());
        self.uffd.write_protect(addr, len, false).is_ok()
    }

    pub(super) fn set_resident(&mut self, page: usize, state: PageState) {
        self.table.set(page, state);
        if let Some(contract) = &mut self.contract {
            contract.order.filled(unit_of(page));
        }
    }

    /// Data error: accesses to the page fail from now on.
    fn poison(&mut self, page: usize, why: Option<StoreError>) -> Outcome {
        let (addr, len) = (self.table.addr(page), self.table.page_size());
        if self.table.get(page) != PageState::Lost {
            if let Some(why) = why {
                tracing::error!("the page at {addr:#x} of the client is lost: {why}");
            }
            self.counters.lost_pages.add(1);
            self.unreadable.forget(page);
            self.release(self.table.get(page));
            self.table.set(page, PageState::Lost);
        }
        // An eviction leaves a marker of its write protection, which the kernel takes for contents.
        let outcome = match self.uffd.poison(addr, len) {
            Err(MapError::Exists { .. }) if self.uffd.write_protect(addr, len, false).is_ok() => {
                self.uffd.poison(addr, len)
            }
            other => other,
        };
        match outcome {
            Ok(()) | Err(MapError::Exists { .. }) => self.wake(addr),
            Err(MapError::Again { .. }) => Outcome::Deferred,
            Err(MapError::Gone) => self.gone(addr),
            Err(why) => {
                tracing::error!("accesses to {addr:#x} wait for ever: {why}");
                Outcome::Answered
            }
        }
    }

    fn wake(&self, addr: usize) -> Outcome {
        match self.uffd.wake(addr, self.table.page_size()) {
            Ok(()) => Outcome::Answered,
            Err(why) => Self::refused(why.errno),
        }
    }

    /// The memory at `addr` is not mapped any more, or nothing is.
    fn gone(&self, addr: usize) -> Outcome {
        if self.uffd.is_owner_alive() {
            tracing::debug!("the client has no memory at {addr:#x} any more");
            Outcome::Answered
        } else {
            Outcome::Ended
        }
    }

    fn refused(errno: translation::Errno) -> Outcome {
        match errno {
            translation::Errno::AGAIN => Outcome::Deferred,
            translation::Errno::SRCH => Outcome::Ended,
            errno => {
                tracing::debug!("an answer to a fault was refused: {errno}");
                Outcome::Answered
            }
        }
    }
}

/// The state of a page that was brought in.
fn resident(from: PageState) -> PageState {
    match from {
        PageState::Origin => PageState::ResidentOrigin,
        PageState::Stored(copy) => PageState::ResidentStored(copy),
        _ => PageState::Resident,
    }
}
