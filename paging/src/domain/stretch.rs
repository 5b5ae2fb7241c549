//! A stretch as the program uses it.

use super::StretchError;
use super::runtime::Runtime;
use crate::counters::Counter;
use crate::driver::StretchDriver;
use crate::entry::upcall;
use crate::fault_outcome::FaultError;
use crate::page::State;
use crate::page_table::PageTable;
use crate::populate::{PopulateError, PopulateTarget};
use crate::rights::{Denied, Rights};
use crate::stretch::{FaultKind, Handler, StretchState};
use std::ops::Range;
use std::sync::Arc;
use translation::{Access, Reservation};
use wired::PAGE;

/// A stretch. Dropping it frees its addresses and drops its contents (a mapped one's
/// changes are written to their file first).
pub struct Stretch {
    pub(super) shared: Arc<Runtime>,
    pub(super) inner: &'static StretchState,
    /// Set if its addresses stay reserved when it ends.
    pub(super) keeps_addresses: bool,
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
    /// No thread may write them meanwhile, and an access that cannot be satisfied is a SIGBUS.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for the stretch's life; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The stretch's bytes, to be written.
    ///
    /// # Safety
    /// No other code may use them meanwhile, and an access that cannot be satisfied is a
    /// SIGBUS.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: mapped for the stretch's life; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Ends the stretch as dropping it does, and keeps its addresses reserved: they are the
    /// caller's, and an access to them fails.
    pub fn release(mut self) -> Reservation {
        self.keeps_addresses = true;
        Reservation {
            addr: self.base(),
            len: self.len(),
        }
    }

    /// Binds the stretch to a driver, for life. Where frames for a nailed one are lacking it has none of them.
    pub fn bind(&self, driver: impl StretchDriver + 'static) -> Result<(), StretchError> {
        let pager = self.shared.operate()?;
        if driver.needs_store() && pager.store.get().is_none() {
            return Err(StretchError::NoStore {
                driver: driver.name(),
            });
        }
        if let Some(backed) = driver.pages()
            && backed < self.pages()
        {
            return Err(StretchError::TooLong {
                driver: driver.name(),
                backed,
                pages: self.pages(),
            });
        }
        let (fill, writeable) = (driver.fills_at_bind(), driver.writeable());
        if !self.inner.set_driver(Box::new(driver)) {
            return Err(StretchError::Bound);
        }
        if !writeable {
            self.set_rights(self.rights() & (Rights::READ | Rights::META))?;
        }
        let filled = match fill {
            true => self.populate_pages(0..self.pages(), true),
            false => Ok(()),
        };
        if filled.is_err() {
            // No driver would ever evict them.
            let table = self.inner.table();
            let _inside = pager.mm.gate.enter(table.base());
            pager.discard(table.base()..table.end());
        }
        filled
    }

    /// Brings pages in, and nails them on request. All or nothing.
    fn populate_pages(&self, pages: Range<usize>, nail: bool) -> Result<(), StretchError> {
        let pager = self.shared.operate()?;
        let limit = pager.frames.client().contract().x;
        let too_few = |had| StretchError::Frames {
            pages: pages.len(),
            had,
            limit,
        };
        // An impossible request is refused at once, not after waiting for frames.
        if nail && pages.len() > limit as usize {
            return Err(too_few(0));
        }
        let table = self.inner.table();
        let caller = upcall::thread_hint() as u32;
        for (had, page) in pages.clone().enumerate() {
            // A window has brought it already.
            if !nail && table.word(page).load().state() == State::Resident {
                continue;
            }
            let target = PopulateTarget {
                page,
                nail,
                window: pages.end - page,
                caller,
                task: None,
            };
            let why = match target.populate(&pager, &|| Some(self.inner)) {
                Ok(()) => continue,
                Err(PopulateError::Gone) => FaultError::Unbound,
                Err(PopulateError::Failed(why)) => why,
            };
            if nail {
                let _inside = pager.mm.gate.enter(page);
                pager.unnail(table.address(pages.start)..table.address(page));
            }
            return Err(match why {
                why if why.is_for_lack_of_frames() => too_few(had),
                why => StretchError::Page { page, why },
            });
        }
        Ok(())
    }

    /// Makes a range of bytes resident and keeps it so until the pin is dropped: for buffers
    /// given to system calls (which fail with `EFAULT` on missing pages if faults are upcalls)
    /// and to devices. A page can be pinned 7 times at once.
    pub fn pin(&self, bytes: Range<usize>) -> Result<Pin<'_>, StretchError> {
        let pages = self.page_range(bytes)?;
        self.populate_pages(pages.clone(), true)?;
        Ok(Pin {
            stretch: self,
            pages,
        })
    }

    /// Brings a range of bytes in, as far as frames allow, without keeping it.
    pub fn populate(&self, bytes: Range<usize>) -> Result<(), StretchError> {
        self.populate_pages(self.page_range(bytes)?, false)
    }

    pub(super) fn page_range(&self, bytes: Range<usize>) -> Result<Range<usize>, StretchError> {
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
    ///
    /// # Errors
    /// [`StretchError::Pinned`] if pages of the range are pinned, or the stretch is nailed: these
    /// keep their contents, the others are dropped.
    pub fn discard(&self, pages: Range<usize>) -> Result<(), StretchError> {
        self.check(pages.end.saturating_sub(1))?;
        let table = self.inner.table();
        let pager = self.shared.operate()?;
        // A flush nails the page that it copies.
        let _one = self.inner.flushing.lock();
        let _inside = pager.mm.gate.enter(pages.start);
        let start = table.address(pages.start);
        match pager.discard_unless_nailed(start..start + pages.len() * PAGE) {
            None => Ok(()),
            Some(kept) => Err(StretchError::Pinned {
                page: table.index(kept),
            }),
        }
    }

    /// Writes changed pages of a mapped stretch to its file, including pages that are pinned
    /// or held by a device. Resident pages stay. Concurrent writes of other threads may reach
    /// the file wholly, in part, or not at all.
    ///
    /// # Errors
    /// [`StretchError::Denied`] where the process may not read the stretch;
    /// [`StretchError::Page`] with the first page of a part that could not be written whole.
    pub fn flush(&self) -> Result<(), StretchError> {
        self.check_right(Rights::READ)?;
        let pager = self.shared.operate()?;
        let table = self.inner.table();
        let mut failed = None;
        for unit in (0..table.unit_count()).filter(|u| table.touched(*u)) {
            let _one = self.inner.flushing.lock();
            let error = pager.flush_unit(self.inner, unit);
            failed = failed.or(error.map(|why| (table.unit_pages(unit).start, why)));
        }
        match failed {
            None => Ok(()),
            Some((page, error)) => Err(StretchError::Page {
                page,
                why: FaultError::Unreadable(error),
            }),
        }
    }

    pub(super) fn check(&self, page: usize) -> Result<(), StretchError> {
        if page >= self.pages() {
            return Err(StretchError::Outside {
                page,
                pages: self.pages(),
            });
        }
        Ok(())
    }

    pub(super) fn check_meta(&self) -> Result<(), StretchError> {
        self.check_right(Rights::META)
    }

    fn check_right(&self, needed: Rights) -> Result<(), StretchError> {
        let (held, stretch) = (self.rights(), self.inner.id());
        match held.contains(needed) {
            true => Ok(()),
            false => Err(Denied {
                stretch,
                needed,
                held,
            }
            .into()),
        }
    }

    /// Sets the program's own handler for faults of this kind on this stretch. It runs on the
    /// faulting thread, as a signal handler does (handler thread: on the entry's, for page
    /// faults). None returns them to the driver.
    pub fn override_fault(&self, kind: FaultKind, handler: Option<Box<Handler>>) {
        self.inner.set_handler(kind, handler);
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        let Ok(pager) = self.shared.operate() else {
            // The contents are the parent's, and this process has none of their memory.
            std::mem::forget(self.shared.clone());
            return;
        };
        self.shared.prefetch.cancel(self.inner.id());
        let table = self.inner.table();
        if self.inner.driver().is_some_and(|d| !d.zero_is_empty()) {
            if !self.rights().contains(Rights::READ) {
                // SAFETY: the stretch belongs to this object, which is being dropped.
                let _ = unsafe { translation::set_access(self.base(), self.len(), Access::READ) };
                self.inner.set_rights(Rights::READ);
            }
            if let Err(error) = self.flush() {
                pager.log.write(format_args!(
                    "a mapped stretch ends with changes that could not be written: {error}"
                ));
            }
        }
        let has_staged = {
            let _inside = pager.mm.gate.enter(self.base());
            let has_staged = has_staged_page(table);
            pager.discard(table.base()..table.end());
            has_staged
        };
        // Else the standby list has only other stretches' pages, which need not be written now.
        if has_staged {
            pager.evictor.drain();
        }
        {
            let _control = pager.mm.control.lock();
            pager.remove(self.inner);
        }
        let (addr, len) = (self.base(), self.len());
        if self.keeps_addresses {
            // SAFETY: the stretch is out of the index; its memory belongs to this object.
            let _ = unsafe { translation::hide(addr, len) };
        } else {
            // SAFETY: as above.
            let _ = unsafe { translation::unmap_reservation(Reservation { addr, len }) };
        }
        let bytes = self.len() as u64;
        pager.log.counters().sub(Counter::StretchBytes, bytes);
        // SAFETY: out of the index, and any thread that found it before has left the gate.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self.inner).cast_mut()) });
    }
}

/// Returns true if a page is on the standby list, with a frame to be released.
fn has_staged_page(table: &PageTable) -> bool {
    let touched = (0..table.unit_count()).filter(|unit| table.touched(*unit));
    let mut pages = touched.flat_map(|unit| table.unit_pages(unit));
    pages.any(|page| table.word(page).load().has_staged_frame())
}

/// Pages that stay resident while this lives.
pub struct Pin<'a> {
    stretch: &'a Stretch,
    pages: Range<usize>,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let table = self.stretch.inner.table();
        let Ok(pager) = self.stretch.shared.operate() else {
            return;
        };
        let _inside = pager.mm.gate.enter(self.pages.start);
        let start = table.address(self.pages.start);
        pager.unnail(start..start + self.pages.len() * PAGE);
    }
}
