//! A live save: the client's memory as of one moment, while it runs.
//!
//! 1. All memory is write-protected. That is the moment; a guest whose virtual processors are stopped
//!    until `Protected` is reported is saved consistently, and resumes then.
//! 2. Pages are saved between faults, a run at a time, and their protection ends.
//! 3. A store to a page that is not saved yet faults; the page is saved first. So does a page that leaves
//!    its frame or comes back from the store.
//!
//! The kernel takes clean pages of the cache out of the guest's page table, and free ones out of private memory. A read of
//! one from outside is a fault of the guest, which the thread that reads would have to answer: such a page is mapped first.
//!
//! Rule: only the handler thread reads pages, after it has read all events. The kernel discards pages after
//! the event is read, so a page that is read is still there. A page that the guest discards before it
//! is saved is lost to the save, which then fails.

use super::pager::ClientPager;
use crate::client_memory::ClientMemory;
use crate::memory_object::{DataReply, MemoryObject, PageName};
use crate::page_table::{PageState, UNIT};
use crate::save::{
    DifferentialFile, FinishError, SaveEvent, SaveProgress, SaveRequest, WrittenFile, micros,
};
use rustix::io::Errno;
use std::fmt::Display;
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::time::Instant;
use translation::{MapError, Modes, Pagemap, TranslationError, Wake};
use wired::{PAGE, WiredMemory};

/// Why a save does not begin.
pub(super) enum BeginError {
    /// An event is unread: read it and begin again.
    Again,
    /// The reason, and what to do.
    Refused(String),
}

/// A save in progress.
pub(super) struct Saving {
    file: DifferentialFile,
    progress: Sender<SaveProgress>,
    begin: Instant,
    /// A bit for each page that is to be saved.
    pending: Vec<u64>,
    /// A bit for each page that the page table had when the save began, whatever the page's state is.
    mapped: Vec<u64>,
    /// The unit that is saved next.
    unit: usize,
    buffer: WiredMemory,
    /// The client's page table, where its memory is read as that of a process.
    pagemap: Option<Pagemap>,
}

/// Where the contents of a page in a frame are.
enum Contents {
    /// In the guest's memory, and a read finds them without a fault.
    InMemory,
    /// In the origin.
    InOrigin,
    /// Nowhere: the page reads zero.
    Zeros,
}

impl Saving {
    fn is_pending(&self, page: usize) -> bool {
        has(&self.pending, page)
    }

    /// Returns true if a page may have contents of its own in its place.
    fn may_be_in_place(&self, page: usize, state: PageState) -> bool {
        state.is_resident() || has(&self.mapped, page)
    }
}

impl Saving {
    /// Protects the memory and begins.
    pub fn begin(pager: &mut ClientPager, request: &SaveRequest) -> Result<(), BeginError> {
        // The file of the last one may be on its way to the disk yet.
        if pager.saving.is_some() || pager.record.unfinished_file().is_some() {
            return Err("another save of this client is in progress; wait for its end".into());
        }
        if pager.table.page_size() != PAGE {
            return Err("memory in pages of 2 MiB is not saved; use 4 KiB pages".into());
        }
        if !pager.uffd.reports_discards() {
            return Err(
                "the client's userfaultfd lacks UFFD_FEATURE_EVENT_REMOVE, without which its memory \
                 cannot be read safely; request the feature in the VMM"
                    .into(),
            );
        }
        let begin = Instant::now();
        let fail = |what: &str, errno: Errno| match errno {
            Errno::EXIST => format!("{what}: another save writes there; wait for its end"),
            _ => format!("{what}: {errno}"),
        };
        if request.path.symlink_metadata().is_ok() {
            return Err(FinishError::Taken(request.path.clone()).to_string().into());
        }
        let len = pager
            .origin
            .as_ref()
            .map_or_else(|| pager.table.end(), |it| it.len());
        let buffer = WiredMemory::private(PAGE).map_err(|errno| fail("a buffer", errno))?;
        let pagemap = pager.memory.pagemap();
        let pagemap = pagemap.map_err(|errno| fail("the client's page table", errno))?;
        // This thread alone changes them.
        let mapped = mapped_pages(pager, pagemap.as_ref());
        let mapped = mapped.map_err(|errno| fail("the client's page table", errno))?;
        let pending = pending_pages(pager, &mapped)?;
        let file = DifferentialFile::create(&request.path, len, &pager.record)
            .map_err(|errno| fail(&request.path.display().to_string(), errno))?;
        protect_all(pager).inspect_err(|_| pager.unprotect())?;
        let saving = Saving {
            file,
            progress: request.progress.clone(),
            begin,
            pending,
            mapped,
            unit: 0,
            buffer,
            pagemap,
        };
        let micros = micros(begin.elapsed());
        let protected = SaveEvent::Protected { micros };
        let _ = saving.progress.send(SaveProgress::Event(protected));
        pager.saving = Some(saving);
        Ok(())
    }

    /// Saves the next unit; passes the file on after the last.
    pub fn step(pager: &mut ClientPager) {
        let Some(saving) = &mut pager.saving else {
            return;
        };
        let (unit, units) = (saving.unit, saving.pending.len());
        saving.unit += 1;
        if unit < units {
            let pages = pager.table.unit(unit);
            Self::save_pages(pager, pages);
            return;
        }
        if let Some(Saving {
            file,
            progress,
            begin,
            ..
        }) = pager.saving.take()
        {
            // Also where nothing is mapped: markers of it would be left there.
            pager.unprotect();
            let _ = progress.send(SaveProgress::Written(WrittenFile { file, begin }));
        }
    }

    /// Saves those of the pages that are pending, and ends their write protection.
    pub fn save_pages(pager: &mut ClientPager, pages: Range<usize>) {
        let Some(mut saving) = pager.saving.take() else {
            return;
        };
        let mut outcome = Ok(());
        let mut saved = None;
        for page in pages {
            if outcome.is_ok() && saving.is_pending(page) {
                outcome = saving.save_page(pager, page);
                saving.pending[page / UNIT] &= !(1 << (page % UNIT));
                let first = saved.map_or(page, |(first, _)| first);
                saved = Some((first, page));
            }
        }
        if let Some((first, last)) = saved {
            let (addr, len) = (pager.table.addr(first), (last + 1 - first) * PAGE);
            let _ = pager.uffd.write_protect(addr, len, false);
        }
        match outcome {
            Ok(()) => pager.saving = Some(saving),
            Err(why) => saving.fail(pager, why),
        }
    }

    /// The guest discards pages: those that are pending are lost to the save.
    pub fn on_discard(pager: &mut ClientPager, pages: Range<usize>) {
        let Some(saving) = pager.saving.take() else {
            return;
        };
        let has_contents = |page| {
            let state = pager.table.get(page);
            state != PageState::Zero || saving.may_be_in_place(page, state)
        };
        let is_lost = |page: &usize| saving.is_pending(*page) && has_contents(*page);
        match pages.into_iter().find(is_lost) {
            None => pager.saving = Some(saving),
            Some(_) => {
                let why = "the guest discarded pages before they were saved (its balloon grew); save again";
                saving.fail(pager, why.into());
            }
        }
    }

    fn fail(self, pager: &ClientPager, why: String) {
        pager.unprotect();
        // Without the file, before the requester is told.
        drop(self.file);
        let failed = SaveEvent::Failed { why };
        let _ = self.progress.send(SaveProgress::Event(failed));
    }

    fn save_page(&mut self, pager: &mut ClientPager, page: usize) -> Result<(), String> {
        let offset = pager.table.offset(page);
        let into = self.buffer.as_ptr();
        let state = pager.table.get(page);
        let contents = match (state, &mut pager.contract) {
            (PageState::Stored(copy), Some(contract)) => {
                let name = PageName {
                    offset,
                    copy: Some(copy),
                };
                match contract.paging.data_request(name, PAGE) {
                    DataReply::Provided(contents) => contents,
                    DataReply::Unavailable => pager.zeros.as_ptr(),
                    DataReply::Error(why) => return Err(why.to_string()),
                }
            }
            _ if self.may_be_in_place(page, state) => match self.find(pager, page)? {
                Contents::InMemory => {
                    let addr = pager.table.addr(page);
                    // SAFETY: this thread's own page.
                    let page = unsafe { std::slice::from_raw_parts_mut(into, PAGE) };
                    let read = pager.memory.read(addr, offset, page);
                    read.map_err(|errno| format!("the page at {addr:#x} cannot be read: {errno}"))?;
                    into.cast_const()
                }
                Contents::InOrigin => return Ok(()),
                Contents::Zeros => pager.zeros.as_ptr().cast_const(),
            },
            _ => pager.zeros.as_ptr().cast_const(),
        };
        // SAFETY: a page of this thread's own buffers.
        let contents = unsafe { &*contents.cast::<[u8; PAGE]>() };
        let written = self.file.write(pager.origin.as_ref(), offset, contents);
        written.map_err(|errno| format!("the file cannot be written: {errno}"))
    }

    /// Finds the contents of a page in a frame. A page that is absent from the page table is mapped first, by a call that does nothing
    /// where it is there: one that the kernel has swapped out is absent, too, and its read does not fault.
    ///
    /// The process that connected is to have the memory, and may be another: one that launched the VMM, or one that got the
    /// number of one that has ended. A page that waits to be saved is write-protected by the guest's userfaultfd, which tells
    /// the guest's own from that of another process.
    fn find(&self, pager: &ClientPager, page: usize) -> Result<Contents, String> {
        let Some(pagemap) = &self.pagemap else {
            return Ok(Contents::InMemory);
        };
        let addr = pager.table.addr(page);
        let fail = |why: &dyn Display| format!("the page at {addr:#x} cannot be found: {why}");
        let found = pagemap.trans(addr).map_err(|errno| fail(&errno))?;
        let is_cached = matches!(pager.memory, ClientMemory::Cache(..));
        // The kernel may take a page of the cache away again before it is read; a page of the guest's own is swapped at most.
        match (found.present, found.file_or_shared && is_cached) {
            (true, true) => return Ok(Contents::InOrigin),
            (true, false) if found.write_protected => return Ok(Contents::InMemory),
            (true, false) => return Err(other_process(addr)),
            (false, _) => {}
        }
        let is_of_cache = is_cached && pager.table.get(page) == PageState::ResidentOrigin;
        let (mapped, contents) = match is_of_cache {
            true => (pager.uffd.map_cached(addr, PAGE), Contents::InOrigin),
            false => {
                let zeros = pager.zeros.as_ptr();
                let mapped = pager.uffd.copy(addr, zeros, PAGE, Wake::Yes);
                (mapped, Contents::Zeros)
            }
        };
        match mapped {
            Ok(()) => Ok(contents),
            Err(MapError::Exists { .. }) => {
                let found = pagemap.trans(addr).map_err(|errno| fail(&errno))?;
                match found.write_protected {
                    true => Ok(Contents::InMemory),
                    false => Err(other_process(addr)),
                }
            }
            Err(why) => Err(fail(&why)),
        }
    }

    /// A store to a page: it is saved before, if a save needs it.
    pub fn before_change(pager: &mut ClientPager, page: usize) {
        if pager.saving.as_ref().is_some_and(|it| it.is_pending(page)) {
            Self::save_pages(pager, page..page + 1);
        }
    }
}

fn other_process(addr: usize) -> String {
    format!(
        "the process that handed the memory over has other memory at {addr:#x}: the guest's can be saved where its own process \
         connects, or hands over the memfd that it maps"
    )
}

/// Returns true if a page has its bit.
fn has(bits: &[u64], page: usize) -> bool {
    bits[page / UNIT] >> (page % UNIT) & 1 != 0
}

/// A bit for each page that the client's page table has as the client's own. A page's state does not tell: the kernel reports
/// MADV_FREE as a discard, and the next store keeps the page; pages may have been there before the hand-off; and a clone stores to
/// pages of the cache without a fault until its memory is registered. It is looked at before the write protection, which leaves
/// markers where nothing is. Only this thread maps what is missing then.
fn mapped_pages(pager: &ClientPager, pagemap: Option<&Pagemap>) -> Result<Vec<u64>, Errno> {
    let mut mapped = vec![0; pager.table.units()];
    let Some(pagemap) = pagemap else {
        return Ok(mapped);
    };
    for pages in pager.table.mapped() {
        let (addr, len) = (pager.table.addr(pages.start), pages.len() * PAGE);
        pagemap.private_copies(addr, len, |number| {
            let page = pages.start + number;
            mapped[page / UNIT] |= 1 << (page % UNIT);
        })?;
    }
    Ok(mapped)
}

/// A bit for each page that differs from the origin, perhaps.
fn pending_pages(pager: &ClientPager, mapped: &[u64]) -> Result<Vec<u64>, BeginError> {
    let mut pending = vec![0; pager.table.units()];
    for page in pager.table.mapped().flatten() {
        match pager.table.get(page) {
            // It may be in a frame since a former manager was killed, and its fault is in the queue.
            PageState::Origin | PageState::Stored(_) if pager.table.is_moving(page) => {
                return Err(BeginError::Again);
            }
            PageState::Origin if !has(mapped, page) => {}
            PageState::Lost => return Err("a page of the client is lost".into()),
            _ => pending[page / UNIT] |= 1 << (page % UNIT),
        }
    }
    Ok(pending)
}

/// Write-protects all memory.
fn protect_all(pager: &ClientPager) -> Result<(), BeginError> {
    let modes = Modes {
        write_protect: true,
        missing: true,
        minor: pager.memory.uses_minor_faults(),
    };
    let fail = |why: TranslationError| match why.errno {
        Errno::AGAIN => BeginError::Again,
        _ => BeginError::Refused(why.to_string()),
    };
    for pages in pager.table.mapped() {
        let (addr, len) = (pager.table.addr(pages.start), pages.len() * PAGE);
        pager.uffd.register(addr, len, modes).map_err(fail)?;
        pager.uffd.write_protect(addr, len, true).map_err(fail)?;
    }
    Ok(())
}

impl<T: Into<String>> From<T> for BeginError {
    fn from(why: T) -> Self {
        Self::Refused(why.into())
    }
}
