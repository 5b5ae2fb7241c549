//! The pages of a server: in frames, and on its disk where it has one.
//!
//! *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp, 1991), section 3.4: a paging
//! server keeps pages in RAM first. Without a disk each page has a frame. With one each page has a
//! place on it, and frames are a cache: a page leaves its frame only when the disk has it, so taking
//! a frame needs no I/O. The cache is reclaimed by the second chance (a clock): a hit sets one bit,
//! where an LRU list moves links of three entries on each request.
//!
//! Rules:
//! - A page's version never falls: an older write changes nothing. One of the same version is a copy of what is there,
//!   and changes nothing where that is in a frame: what the disk alone has may be spoilt.
//! - A page is written to a frame whole or not at all, and a page that is busy on the disk is not
//!   written until the disk has finished.
//! - A page that the disk failed to store is stored again ([`PageMemory::next_unstored`]), so that its frame can be
//!   taken once the disk works.
//! - Nothing here does I/O: [`crate::disk_io`] does, and reports to [`PageMemory::on_stored`] and
//!   [`PageMemory::on_loaded`].

use crate::frame_arena::{FrameArena, FrameNumber};
use crate::page_index::{PageEntry, PageId, PageIndex, flag};
use remote_policy::identity::Version;
use rustix::io::Errno;
use std::io;
use twox_hash::XxHash3_64;
use wired::PAGE;

/// The pages of a server.
pub(crate) struct PageMemory {
    index: PageIndex,
    arena: FrameArena,
    /// Whether pages have places on a disk.
    has_disk: bool,
    /// The page in each frame.
    owners: crate::wired_table::WiredTable<u32>,
    /// Where the clock goes on.
    hand: u32,
    /// Pages that the disk failed to store and that are still written.
    unstored: u32,
    /// Where the search for them goes on.
    searched: u32,
    /// The last store failed.
    is_failing: bool,
}

/// Why a page cannot be served at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It is being read from or written to the disk.
    Busy,
    /// All frames hold pages that the disk does not have yet, or are being read into.
    NoFrame,
}

/// Where a page's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In a frame.
    Frame,
    /// On the disk alone.
    Disk,
    /// On the way from the disk to a frame.
    Arriving,
}

/// The bytes that the disk returned are not those that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the checksum of a page from the disk does not match")]
pub(crate) struct ChecksumError;

impl PageMemory {
    /// Memory for pages in `frames`; with `disk_pages` for as many on the disk, by way of the frames.
    pub fn new(frames: u32, disk_pages: Option<u32>) -> io::Result<Self> {
        Ok(Self {
            index: PageIndex::new(disk_pages.unwrap_or(frames))?,
            arena: FrameArena::new(frames)?,
            has_disk: disk_pages.is_some(),
            owners: crate::wired_table::WiredTable::new(frames as usize)?,
            hand: 0,
            unstored: 0,
            searched: 0,
            is_failing: false,
        })
    }

    /// Whether the kernel locks the frames in RAM.
    pub fn lock(&self) -> Result<(), Errno> {
        self.arena.lock()
    }

    /// Pages that may be written.
    pub fn capacity(&self) -> u32 {
        self.index.capacity()
    }

    /// Pages written.
    pub fn used(&self) -> u32 {
        self.index.used()
    }

    /// Frames that have memory.
    pub fn resident_frames(&self) -> u32 {
        self.arena.resident()
    }

    /// Frames in all.
    pub fn frames(&self) -> u32 {
        self.arena.len()
    }

    /// Pages that may be written beside those that are there, and those on their way out.
    pub fn room(&self) -> u32 {
        self.index.capacity() - self.index.used()
    }

    /// The page of an object, if it is written.
    pub fn find(&self, object: u32, page: u64) -> Option<PageId> {
        self.index.find(object, page)
    }

    /// The version of a page.
    pub fn version(&self, id: PageId) -> Version {
        Version(self.index.entry(id).version)
    }

    /// Where a page's bytes are.
    pub fn location(&self, id: PageId) -> Location {
        let entry = self.index.entry(id);
        match (entry.frame, entry.flags & flag::BUSY != 0) {
            (0, _) => Location::Disk,
            // A busy page that is clean is being read: a write keeps it dirty to its end.
            (_, true) if entry.flags & flag::DIRTY == 0 => Location::Arriving,
            _ => Location::Frame,
        }
    }

    /// Returns true if the page cannot be written now.
    pub fn is_busy(&self, id: PageId) -> bool {
        self.index.entry(id).flags & flag::BUSY != 0
    }

    /// Returns true if the page has no frame, or may lose it to another.
    pub fn is_reclaimable(&self, id: PageId) -> bool {
        let entry = self.index.entry(id);
        entry.frame == 0 || entry.flags & (flag::BUSY | flag::DIRTY) == 0
    }

    /// The bytes of a page in a frame.
    pub fn read(&mut self, id: PageId) -> Option<&[u8; PAGE]> {
        if self.location(id) != Location::Frame {
            return None;
        }
        let entry = self.index.entry_mut(id);
        entry.flags |= flag::REFERENCED;
        frame_of(entry).map(|frame| self.arena.bytes(frame))
    }

    /// Makes sure that as many frames can be taken without a wait.
    pub fn reserve(&mut self, frames: u32) -> Result<(), Wait> {
        let limit = self.arena.limit();
        while self.arena.used() + frames > limit {
            let frame = self.reclaim().ok_or(Wait::NoFrame)?;
            self.arena.free(frame);
        }
        Ok(())
    }

    /// A request uses the page: its frame is not the next to be taken.
    pub fn touch(&mut self, id: PageId) {
        self.index.entry_mut(id).flags |= flag::REFERENCED;
    }

    /// Writes a page that is not busy, or nothing where it has a later version, or that one in a frame. The page is
    /// dirty then, where there is a disk.
    ///
    /// # Errors
    /// [`Wait`]; nothing has changed.
    pub fn write(
        &mut self,
        object: u32,
        page: u64,
        version: Version,
        bytes: &[u8; PAGE],
    ) -> Result<PageId, Wait> {
        let found = self.index.find(object, page);
        if let Some(id) = found {
            let (known, is_in_frame) = (self.version(id), self.location(id) == Location::Frame);
            // The disk may have spoilt its copy: a client writes the same version again to repair it.
            if known > version || known == version && is_in_frame {
                return Ok(id);
            }
            if self.is_busy(id) {
                return Err(Wait::Busy);
            }
        }
        let frame = match found.and_then(|id| frame_of(self.index.entry(id))) {
            Some(frame) => frame,
            None => self.take_frame().ok_or(Wait::NoFrame)?,
        };
        let Some(id) = found.or_else(|| self.index.insert(object, page)) else {
            self.arena.free(frame);
            return Err(Wait::NoFrame);
        };
        self.arena.bytes_mut(frame).copy_from_slice(bytes);
        self.owners[frame.0] = id.0;
        let entry = self.index.entry_mut(id);
        entry.frame = frame.0 + 1;
        entry.version = version.0;
        entry.flags |= flag::REFERENCED;
        if self.has_disk {
            entry.flags |= flag::DIRTY;
        }
        Ok(id)
    }

    /// Frees a page. One that is busy is freed when the disk has finished, and not found from now on.
    pub fn discard(&mut self, id: PageId) {
        self.index.unlink(id);
        let entry = self.index.entry_mut(id);
        match entry.flags & flag::BUSY {
            0 => self.free(id),
            _ => entry.flags |= flag::ORPHAN,
        }
    }

    /// Frees pages of an object, at most `most`. Returns how many.
    pub fn discard_object(&mut self, object: u32, most: u32) -> u32 {
        for discarded in 0..most {
            let Some(id) = self.index.first_of(object) else {
                return discarded;
            };
            self.discard(id);
        }
        most
    }

    /// Marks a page as being written to the disk, with its checksum. Returns its frame's bytes; none
    /// where the disk has them.
    pub fn start_store(&mut self, id: PageId) -> Option<*mut u8> {
        let entry = self.index.entry_mut(id);
        if entry.flags & flag::DIRTY == 0 {
            return None;
        }
        let frame = frame_of(entry)?;
        self.unstored -= u32::from(entry.flags & flag::UNSTORED != 0);
        entry.flags &= !flag::UNSTORED;
        entry.flags |= flag::BUSY;
        entry.sum = XxHash3_64::oneshot(self.arena.bytes(frame));
        Some(self.arena.start(frame))
    }

    /// Gives a page on the disk a frame to be read into.
    pub fn start_load(&mut self, id: PageId) -> Result<*mut u8, Wait> {
        let frame = self.take_frame().ok_or(Wait::NoFrame)?;
        self.owners[frame.0] = id.0;
        let entry = self.index.entry_mut(id);
        entry.frame = frame.0 + 1;
        entry.flags |= flag::BUSY | flag::REFERENCED;
        Ok(self.arena.start(frame))
    }

    /// The disk has finished with a write of the page; where it `failed`, the page stays in its frame.
    pub fn on_stored(&mut self, id: PageId, failed: bool) {
        let entry = self.index.entry_mut(id);
        entry.flags &= !flag::BUSY;
        self.is_failing = failed;
        if failed {
            entry.flags |= flag::UNSTORED;
            self.unstored += 1;
        } else {
            entry.flags &= !flag::DIRTY;
        }
        self.free_orphan(id);
    }

    /// Returns true if pages are to be stored again and the disk works.
    pub fn can_store_again(&self) -> bool {
        self.unstored > 0 && !self.is_failing
    }

    /// The next of the pages that the disk failed to store, to be stored again. It looks at `most` frames or fewer.
    pub fn next_unstored(&mut self, most: u32) -> Option<PageId> {
        if self.unstored == 0 {
            return None;
        }
        for _ in 0..most.min(self.arena.len()) {
            let frame = self.searched;
            self.searched = (self.searched + 1) % self.arena.len();
            let id = PageId(self.owners[frame]);
            let entry = self.index.entry(id);
            if entry.frame == frame + 1 && entry.flags & flag::UNSTORED != 0 {
                return Some(id);
            }
        }
        None
    }

    /// The disk has finished with a read of the page; where it `failed`, the page stays on the disk.
    pub fn on_loaded(&mut self, id: PageId, failed: bool) -> Result<(), ChecksumError> {
        let entry = self.index.entry_mut(id);
        entry.flags &= !flag::BUSY;
        let (frame, sum) = (frame_of(entry), entry.sum);
        let matches = |frame| XxHash3_64::oneshot(self.arena.bytes(frame)) == sum;
        let is_whole = frame.is_some_and(matches);
        if let Some(frame) = frame.filter(|_| failed || !is_whole) {
            self.index.entry_mut(id).frame = 0;
            self.arena.free(frame);
        }
        self.free_orphan(id);
        match failed || is_whole {
            true => Ok(()),
            false => Err(ChecksumError),
        }
    }

    /// Uses at most `frames` from now on, as far as the disk has the pages of the others, and gives the host memory
    /// that is free. At most `most` frames are taken from pages at once. Returns true if another call does more.
    ///
    /// The limit falls with the frames in use, not ahead of them: a page can take the frame of another meanwhile.
    pub fn resize(&mut self, frames: u32, most: u32) -> bool {
        let mut taken = 0;
        while self.has_disk && taken < most && self.arena.used() > frames {
            let Some(frame) = self.reclaim() else {
                break;
            };
            self.arena.free(frame);
            taken += 1;
        }
        self.arena.set_limit(frames.max(self.arena.used()));
        let given = self.arena.trim(most);
        // Frames that nothing can be done about wait for the next look.
        let is_over = self.arena.used() > frames && taken == most;
        is_over || given > 0 && self.arena.surplus() > 0
    }

    fn take_frame(&mut self) -> Option<FrameNumber> {
        if let Some(frame) = self.arena.take() {
            return Some(frame);
        }
        let frame = self.reclaim()?;
        self.arena.free(frame);
        self.arena.take()
    }

    /// Takes the frame of a page that the disk has: the first that was not used since the hand passed.
    fn reclaim(&mut self) -> Option<FrameNumber> {
        if !self.has_disk {
            return None;
        }
        for _ in 0..2 * u64::from(self.arena.len()) {
            let frame = FrameNumber(self.hand);
            self.hand = (self.hand + 1) % self.arena.len();
            let id = self.owners[frame.0];
            let entry = self.index.entry_mut(PageId(id));
            if entry.frame != frame.0 + 1 || entry.flags & (flag::BUSY | flag::DIRTY) != 0 {
                continue;
            }
            if entry.flags & flag::REFERENCED != 0 {
                entry.flags &= !flag::REFERENCED;
                continue;
            }
            entry.frame = 0;
            return Some(frame);
        }
        None
    }

    fn free_orphan(&mut self, id: PageId) {
        if self.index.entry(id).flags & flag::ORPHAN != 0 {
            self.free(id);
        }
    }

    fn free(&mut self, id: PageId) {
        let entry = *self.index.entry(id);
        self.unstored -= u32::from(entry.flags & flag::UNSTORED != 0);
        if let Some(frame) = frame_of(&entry) {
            self.arena.free(frame);
        }
        self.index.free(id);
    }
}

fn frame_of(entry: &PageEntry) -> Option<FrameNumber> {
    entry.frame.checked_sub(1).map(FrameNumber)
}

#[cfg(test)]
mod tests;
