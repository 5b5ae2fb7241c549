//! Which memory of the program is in stretches.

use super::ProcessPager;
use super::command::{Change, PagerCommand};
use crate::counters::Counter;
use crate::driver::Paged;
use crate::evict::NoFrame;
use crate::fault_outcome::FaultError;
use crate::page::State;
use crate::page_table::PageTable;
use crate::pager::Pager;
use crate::stretch::StretchState;
use rustix::io::Errno;
use std::fmt::Display;
use std::ops::Range;
use std::sync::atomic::Ordering;
use wired::{PAGE, PiGuard};

/// Why a process's memory could not be made a stretch.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No address space.
    #[error(transparent)]
    Reserve(#[from] translation::ReserveError),
    /// No memory for the tables.
    #[error("no memory for a page table of {pages} pages: {errno}")]
    Table {
        /// Pages it was for.
        pages: usize,
        /// What the kernel said.
        errno: rustix::io::Errno,
    },
    /// The kernel would not register it.
    #[error("{len} bytes at {addr:#x} cannot be registered with userfaultfd (errno {errno})")]
    Register {
        /// First byte.
        addr: usize,
        /// Bytes.
        len: usize,
        /// What the kernel said.
        errno: u32,
    },
    /// The pages that it has cannot be charged.
    #[error(
        "there are no frames for the pages that {len} bytes at {addr:#x} have, or they cannot be counted (what the pager said is above)"
    )]
    Charge {
        /// First byte.
        addr: usize,
        /// Bytes.
        len: usize,
    },
    /// Too many stretches.
    #[error(
        "the process has {} stretches, the most there can be",
        crate::MOST_STRETCHES
    )]
    TooMany,
}

impl ProcessPager {
    /// A new stretch of `len` bytes of readable and writeable memory, where the kernel
    /// chooses.
    pub fn reserve(&self, len: usize) -> Result<Range<usize>, ProcessError> {
        let reservation = translation::reserve(None, len, true)?;
        let range = reservation.addr..reservation.addr + reservation.len;
        match self.add_stretch(range.clone()) {
            Ok(()) => Ok(range),
            Err(error) => {
                // SAFETY: just reserved, and no other code refers to it.
                let _ = unsafe { translation::unmap_reservation(reservation) };
                Err(error)
            }
        }
    }

    /// Makes private anonymous memory of the program paged; pages that are present keep their
    /// contents and are charged. The pages are missing for the moment in which they are
    /// registered, so no other thread may use them yet.
    ///
    /// # Errors
    /// The memory is the kernel's again, with what it had; but for [`ProcessError::Charge`], after which its contents are zeros.
    ///
    /// The parts that a stretch surrendered become that stretch's again, the rest becomes new
    /// stretches, so that an address is in one stretch at most. No other part of a stretch may
    /// be in the range.
    pub fn adopt(&self, range: Range<usize>) -> Result<(), ProcessError> {
        let _ = translation::advise_no_huge(range.start, range.len());
        let mut at = range.start;
        while at < range.end {
            let (part, known) = self.next_part(at..range.end);
            at = part.end;
            let adopted = match known {
                true => self.resume(part.clone()),
                false => self.add_stretch(part.clone()),
            };
            if let Err(error) = adopted {
                self.abandon(range.start..part.start);
                return Err(error);
            }
        }
        let (addr, len) = (range.start, range.len());
        if self.send(PagerCommand::Charge(addr, len)) != 0 {
            self.abandon(range);
            return Err(ProcessError::Charge { addr, len });
        }
        Ok(())
    }

    /// Leaves adopted memory to the kernel, without its contents: as long as a fault on it is a message, the kernel does not
    /// resolve it.
    fn abandon(&self, range: Range<usize>) {
        let (addr, len) = (range.start, range.len());
        if len > 0 {
            self.surrender(range);
            self.send(PagerCommand::Unregister(addr, len));
        }
    }

    /// Returns true if memory that has contents can be adopted: what it has is known.
    pub fn knows_contents(&self) -> bool {
        self.pager.mm.pagemap().is_some()
    }

    /// The first part of `range` that is in one stretch, or in none; true if it is in one.
    fn next_part(&self, range: Range<usize>) -> (Range<usize>, bool) {
        let _control = self.pager.mm.control.lock();
        let next = self.pager.mm.index.first_after(range.start);
        let (end, known) = match next.map(StretchState::table) {
            Some(table) if table.base() <= range.start => (table.end(), true),
            Some(table) => (table.base(), false),
            None => (range.end, false),
        };
        (range.start..end.min(range.end), known)
    }

    /// Removes the stretches of a range that have surrendered every page.
    pub(super) fn forget_abandoned(&self, range: Range<usize>) {
        let control = self.pager.mm.control.lock();
        let mut at = range.start;
        while let Some(stretch) = self.pager.mm.index.first_after(at) {
            if stretch.table().base() >= range.end {
                break;
            }
            at = stretch.table().end();
            if stretch.is_abandoned() {
                let bytes = (stretch.table().pages() * PAGE) as u64;
                // SAFETY: every stretch of a process is a leaked box, which the index
                // alone keeps.
                unsafe { self.forget_stretch(&control, stretch) };
                self.pager.log.counters().sub(Counter::StretchBytes, bytes);
            }
        }
    }

    fn add_stretch(&self, range: Range<usize>) -> Result<(), ProcessError> {
        let pages = range.len() / PAGE;
        let table = PageTable::new(range.start, pages, self.pager.mm.unit_pages)
            .map_err(|errno| ProcessError::Table { pages, errno })?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let stretch: &'static StretchState = Box::leak(Box::new(StretchState::new(id, table)));
        stretch.set_driver(Box::new(Paged));
        // In the index first: a fault may come the moment it is registered.
        let control = self.pager.mm.control.lock();
        let full = self.send(PagerCommand::Insert(stretch)) != 0;
        drop(control);
        if full {
            // SAFETY: leaked above, and in no index.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(stretch).cast_mut()) });
            return Err(ProcessError::TooMany);
        }
        if let Err(error) = self.register(range.start, range.len()) {
            let control = self.pager.mm.control.lock();
            // SAFETY: leaked above, and there is no other reference to it.
            unsafe { self.forget_stretch(&control, stretch) };
            return Err(error);
        }
        let bytes = range.len() as u64;
        self.pager.log.add(Counter::StretchBytes, bytes);
        Ok(())
    }

    /// Takes a stretch out of the index and frees it. The evictor's thread does the first, which
    /// keeps other threads out: the caller's stack may be paged.
    ///
    /// # Safety
    /// It is a leaked box, and the caller keeps no other reference to it.
    unsafe fn forget_stretch(&self, _control: &PiGuard<'_, ()>, stretch: &StretchState) {
        self.send(PagerCommand::Remove(stretch.table().base()));
        // SAFETY: the caller's promise; any thread that found it has left the gate.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(stretch).cast_mut()) });
    }

    /// Returns `range`, which its stretch surrendered, to that stretch: plain anonymous memory
    /// is mapped there again.
    fn resume(&self, range: Range<usize>) -> Result<(), ProcessError> {
        self.register(range.start, range.len())?;
        self.change(Change::Reclaim, &range);
        Ok(())
    }

    fn register(&self, addr: usize, len: usize) -> Result<(), ProcessError> {
        match self.send(PagerCommand::Register(addr, len)) {
            0 => Ok(()),
            errno => Err(ProcessError::Register { addr, len, errno }),
        }
    }
}

/// Charges what memory held before it became paged. Returns an errno where that cannot be read, or frames are lacking: the
/// pages from there on are not charged.
pub(super) fn account_all_resident(pager: &Pager, addr: usize, len: usize) -> u32 {
    let mut failure = None;
    let charged = match pager.mm.pagemap() {
        Some(pagemap) => pagemap.runs_with_contents(addr, len, |run| {
            for page in run.map(|page| addr + page * PAGE) {
                if let (None, Some(stretch)) = (&failure, pager.mm.index.find(page)) {
                    let index = stretch.table().index(page);
                    failure = account_resident(pager, stretch, index).err();
                }
            }
        }),
        // Memory that had contents was not adopted.
        None => Ok(()),
    };
    let (why, errno): (&dyn Display, _) = match (&failure, &charged) {
        (Some(why), _) => (why, Errno::NOMEM),
        (None, Err(errno)) => (errno, *errno),
        (None, Ok(())) => return 0,
    };
    pager.log.write(format_args!(
        "pages that were there at {addr:#x} before the pager cannot be charged: {why}"
    ));
    errno.raw_os_error() as u32
}

fn account_resident(pager: &Pager, stretch: &StretchState, index: usize) -> Result<(), FaultError> {
    let word = stretch.table().word(index);
    let seen = word.load();
    if seen.state() != State::Empty {
        return Ok(());
    }
    let frame = match pager.evictor.obtain_frame(State::Resident, false, false) {
        Ok(frame) => frame,
        Err(NoFrame::Never(failure)) => return Err(failure),
        Err(NoFrame::Busy) => unreachable!("only a thread that others wait for is busy"),
    };
    let unit = stretch.table().unit_of(index);
    stretch.table().gate(unit).enter();
    if word.begin_fill(seen) {
        let home = stretch.table().address(index);
        pager.standby.places.set_home(frame.0, home);
        word.finish_fill(frame.0);
        stretch.table().add_resident(unit, 1);
        let queue = stretch.table().touch(unit);
        stretch.table().gate(unit).leave();
        if queue {
            pager.standby.queues.note_filled(stretch, unit, true, false);
        }
    } else {
        stretch.table().gate(unit).leave();
        pager.frames.put(frame);
    }
    Ok(())
}
