//! The translation system of a stretch: map, unmap, trans, protect (Nemesis, section 6.3).

use super::{Stretch, StretchError};
use crate::fault_outcome::FillOutcome;
use crate::page::State;
use crate::resolve::PageFault;
use crate::rights::Rights;
use frames::Frame;
use std::ops::Range;
use translation::Access;
use wired::PAGE;

/// What translation knows of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trans {
    /// The frame, where the page is resident.
    pub frame: Option<Frame>,
    /// Whether the program wrote the page since it came in or was marked clean
    /// ([`Stretch::mark_clean`]), where the domain tracks that ([`Builder::track_dirty`](crate::Builder::track_dirty)).
    /// A hint for the program: eviction compares checksums and does not rely on it.
    pub dirty: Option<bool>,
}

impl Stretch {
    /// Maps an unused frame of the domain at a page that is not resident (Nemesis,
    /// section 6.3): with the page's contents, or zeros.
    ///
    /// # Errors
    /// The frame is put back where an attempt was made and failed ([`StretchError::Page`],
    /// [`StretchError::InOthersHands`]); else it is the caller's still.
    pub fn map(&self, page: usize, frame: Frame) -> Result<(), StretchError> {
        self.check(page)?;
        self.check_meta()?;
        let pager = self.shared.operate()?;
        let seen = self.inner.table().word(page).load().state();
        if seen == State::Resident {
            return Err(StretchError::State {
                page,
                state: seen,
                wanted: "it must not be mapped",
            });
        }
        if !self.shared.taken.remove(frame) {
            return Err(StretchError::NotYourFrame(frame));
        }
        let _inside = pager.mm.gate.enter(page);
        let mut context = pager.faults.contexts.borrow(page);
        let mut fault = PageFault {
            addr: self.inner.table().address(page),
            write: true,
            held: Some(frame),
            ..PageFault::default()
        };
        match fault.attempt(&pager, self.inner, &mut context) {
            FillOutcome::Success => Ok(()),
            FillOutcome::Failure(why) => Err(StretchError::Page { page, why }),
            FillOutcome::Busy | FillOutcome::Retry | FillOutcome::Pending => {
                Err(StretchError::InOthersHands { page })
            }
        }
    }

    /// Removes the mappings of a range of pages. Their contents are kept, on the standby
    /// list; the next access faults.
    pub fn unmap(&self, pages: Range<usize>) -> Result<(), StretchError> {
        self.check(pages.end.saturating_sub(1))?;
        self.check_meta()?;
        self.shared
            .operate()?
            .evictor
            .stage_pages(self.inner, pages);
        Ok(())
    }

    /// The mapping of a page.
    pub fn trans(&self, page: usize) -> Result<Trans, StretchError> {
        self.check(page)?;
        let seen = self.inner.table().word(page).load();
        let frame = (seen.state() == State::Resident).then(|| Frame(seen.frame()));
        let pager = self.shared.own_pager()?;
        let dirty = match (frame, pager.mm.pagemap()) {
            (Some(_), Some(pagemap)) if pager.mm.tracks_dirty() => pagemap
                .trans(self.inner.table().address(page))
                .ok()
                .and_then(|t| t.dirty),
            _ => None,
        };
        Ok(Trans { frame, dirty })
    }

    /// What the process may do with the stretch. The kernel enforces read, write and execute
    /// for all threads of the process alike; this library enforces meta for code that uses the
    /// stretch through it.
    pub fn rights(&self) -> Rights {
        self.inner.rights()
    }

    /// Changes what the process may do with the stretch. Requires the meta right; dropping
    /// that right is permanent. May be called from a handler of the program's own.
    pub fn protect(&self, rights: Rights) -> Result<(), StretchError> {
        self.check_meta()?;
        self.shared.own_pager()?;
        if rights == self.rights() {
            return Ok(());
        }
        match self.inner.driver() {
            Some(driver) if rights.contains(Rights::WRITE) && !driver.writeable() => {
                Err(StretchError::ReadOnly {
                    driver: driver.name(),
                })
            }
            _ => self.set_rights(rights),
        }
    }

    pub(super) fn set_rights(&self, rights: Rights) -> Result<(), StretchError> {
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

    /// Tracks writes to the resident pages among `pages` from now on: they are not dirty until
    /// written. Needs a domain built with
    /// [`Builder::track_dirty`](crate::Builder::track_dirty).
    pub fn mark_clean(&self, pages: Range<usize>) -> Result<(), StretchError> {
        self.check(pages.end.saturating_sub(1))?;
        let table = self.inner.table();
        let (addr, len) = (table.address(pages.start), pages.len() * PAGE);
        Ok(self
            .shared
            .operate()?
            .mm
            .userfault()
            .write_protect(addr, len, true)?)
    }
}
