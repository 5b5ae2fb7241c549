//! The filesystem as its one owner uses it.

use super::block_device::BlockDevice;
use super::device::{Device, DeviceWarning, FormatOptions};
use super::error::{FileError, OpenError};
use super::extents::{Extent, Extents, between};
use super::file::{File, FileId, FileName};
use super::scrub::{Scrub, ScrubToken};
use super::superblock::Superblocks;
use super::table::FileTable;
use super::{DATA, UNIT, signatures};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;

/// How much there is. In bytes where not said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// That files may have.
    pub total: u64,
    /// That no file has.
    pub free: u64,
    /// The largest contiguous part of that.
    pub largest: u64,
    /// Files, by number.
    pub files: usize,
    /// Extents, by number.
    pub extents: usize,
}

/// A swap filesystem, open.
///
/// Operations that change it write its tables and return when those will survive: a few
/// milliseconds, for whoever makes or ends a contract. Nothing here is on the way of a page.
pub struct SwapFs<M = Device> {
    medium: Arc<M>,
    superblocks: Superblocks<M>,
    table: FileTable,
    /// Scrubs that may still write.
    scrubs: Vec<(FileId, ScrubToken)>,
}

impl SwapFs {
    /// Makes an empty filesystem on a partition, or on a file, which is made if there is none
    /// and allocated whole. Refuses to lose what is there unless `options` force it.
    pub fn format(path: &Path, options: &FormatOptions) -> Result<Self, OpenError> {
        let (device, is_new) = Device::prepare(path, options)?;
        let made = draw_id(path).and_then(|id| Self::format_on(device, id, options.force));
        if made.is_err() && is_new {
            // The refusal says more than that this failed, too.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Whether there is a swap filesystem that can be opened, or [`SwapFs::format`] could make
    /// one, without changing anything; what is unusual about what is there. Who has it open
    /// meanwhile is [`OpenError::Held`].
    pub fn check(path: &Path, options: &FormatOptions) -> Result<Vec<DeviceWarning>, OpenError> {
        let Some(device) = Device::inspect(path, options.size)? else {
            return Ok(Vec::new());
        };
        check_size(&device)?;
        let found = signatures::describe(&device).map_err(|errno| OpenError::Io {
            place: device.name().to_owned(),
            doing: "reading",
            errno,
        })?;
        match found.filter(|found| !found.is_ours() && !options.force) {
            Some(found) => Err(OpenError::Occupied {
                place: device.name().to_owned(),
                found: found.to_string(),
            }),
            None => Ok(device.warnings().to_vec()),
        }
    }

    /// Opens the filesystem on a partition or file. [`OpenError::Held`] may pass: what a killed
    /// process had in flight holds the device until it ends.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_on(Device::open(path)?)
    }
}

impl<M: BlockDevice> SwapFs<M> {
    /// [`SwapFs::format`] for any medium. `id` is drawn at random.
    pub fn format_on(medium: M, id: [u8; 16], force: bool) -> Result<Self, OpenError> {
        check_size(&medium)?;
        let failed = |doing| {
            let place = medium.name().to_owned();
            move |errno| OpenError::Io {
                place,
                doing,
                errno,
            }
        };
        if let Some(found) = signatures::describe(&medium).map_err(failed("reading"))? {
            if !force {
                return Err(OpenError::Occupied {
                    place: medium.name().to_owned(),
                    found: found.to_string(),
                });
            }
            // Tables of ours are replaced like any others, first one copy, then the other.
            if !found.is_ours() {
                signatures::wipe(&medium).map_err(failed("wiping"))?;
            }
        }
        let units = u32::try_from((medium.size() - DATA) / UNIT).unwrap_or(u32::MAX);
        let table = FileTable::new(id, units);
        let medium = Arc::new(medium);
        Ok(Self {
            superblocks: Superblocks::make(medium.clone(), &table)?,
            medium,
            table,
            scrubs: Vec::new(),
        })
    }

    /// [`SwapFs::open`] for any medium.
    pub fn open_on(medium: M) -> Result<Self, OpenError> {
        check_size(&medium)?;
        let medium = Arc::new(medium);
        let (superblocks, table) = Superblocks::open(medium.clone())?;
        let recorded = DATA + u64::from(table.units) * UNIT;
        if medium.size() < recorded {
            return Err(OpenError::Shrunk {
                place: medium.name().to_owned(),
                recorded,
                there: medium.size(),
            });
        }
        Ok(Self {
            superblocks,
            medium,
            table,
            scrubs: Vec::new(),
        })
    }

    /// What it lies on.
    pub fn medium(&self) -> &Arc<M> {
        &self.medium
    }

    /// Drawn when it was formatted: tells it from every other.
    pub fn id(&self) -> [u8; 16] {
        self.table.id
    }

    /// All files, in the order in which they were made.
    pub fn files(&self) -> &[File] {
        &self.table.files
    }

    /// The file `id`.
    pub fn file(&self, id: FileId) -> Result<&File, FileError> {
        self.table.file(id)
    }

    /// The file of that name.
    pub fn find(&self, name: &FileName) -> Option<&File> {
        self.table.find(name)
    }

    /// How much there is of everything.
    pub fn usage(&self) -> Usage {
        let space = self.table.space();
        Usage {
            total: u64::from(self.table.units) * UNIT,
            free: space.as_ref().map_or(0, |space| space.free()),
            largest: space.as_ref().map_or(0, |space| space.largest()),
            files: self.table.files.len(),
            extents: self.table.extents(),
        }
    }

    /// Makes a file of at least `size` bytes, rounded up to whole [`UNIT`]s, that keeps `blob`
    /// for its owner. Nothing of it may be given out before a [`SwapFs::scrub`].
    pub fn create(&mut self, name: FileName, size: u64, blob: &[u8]) -> Result<FileId, FileError> {
        self.change(|table| table.create(name, size, blob))
    }

    /// Makes a file larger: `size` bytes in all, rounded up. What is added needs a
    /// [`SwapFs::scrub`].
    pub fn grow(&mut self, id: FileId, size: u64) -> Result<(), FileError> {
        self.change(|table| table.grow(id, size))
    }

    /// Gives a file's space back. The caller has ended all I/O on it: the space may be
    /// another's as soon as this returns. A scrub of it is given up, after the step in hand.
    pub fn release(&mut self, id: FileId) -> Result<(), FileError> {
        self.table.file(id)?;
        self.cancel_scrub(id);
        self.change(|table| table.release(id))
    }

    /// Keeps `blob` with the file, instead of what was kept.
    pub fn set_blob(&mut self, id: FileId, blob: &[u8]) -> Result<(), FileError> {
        self.change(|table| table.set_blob(id, blob))
    }

    /// Where the part of the file lies that may be given out.
    pub fn extents(&self, id: FileId) -> Result<Extents, FileError> {
        self.table.file(id).map(Extents::of)
    }

    /// Where all of the file lies, for a measurement that shows nobody what it reads.
    pub(crate) fn unscrubbed(&self, id: FileId) -> Result<Vec<Extent>, FileError> {
        let file = self.table.file(id)?;
        Ok(between(file, 0, file.units()))
    }

    /// The work that is left before all of the file may be given out; nothing if none is.
    /// Another scrub of the same file is given up, after the step in hand.
    pub fn scrub(&mut self, id: FileId) -> Result<Option<Scrub<M>>, FileError> {
        self.table.file(id)?;
        self.cancel_scrub(id);
        let file = self.table.file(id)?;
        let (from, until) = (file.clean, file.units());
        if from == until {
            return Ok(None);
        }
        let left = between(file, from, until);
        let (scrub, token) = Scrub::new(self.medium.clone(), id, left, until);
        self.scrubs.push((id, token));
        Ok(Some(scrub))
    }

    /// Gives the file out as far as `scrub`, which is done, went.
    pub fn complete_scrub(&mut self, scrub: Scrub<M>) -> Result<(), FileError> {
        let id = scrub.file();
        let own = self.scrubs.iter().find(|(file, _)| *file == id);
        let until = scrub.outcome(own.map(|(_, token)| token))?;
        self.change(|table| table.cleaned(id, until))?;
        self.cancel_scrub(id);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &FileTable {
        &self.table
    }

    fn cancel_scrub(&mut self, id: FileId) {
        for (_, token) in self.scrubs.extract_if(.., |(file, _)| *file == id) {
            token.revoke();
        }
    }

    /// Makes the next table the one on the device, and only then the one in memory.
    fn change<T>(
        &mut self,
        operation: impl FnOnce(&mut FileTable) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let mut next = self.table.clone();
        let done = operation(&mut next)?;
        if let Err(errno) = self.superblocks.commit(&next) {
            // Half of it may be there: what is in memory goes over it, if that can be.
            let _ = self.superblocks.commit(&self.table);
            return Err(FileError::Io(errno));
        }
        self.table = next;
        Ok(done)
    }
}

fn check_size(medium: &impl BlockDevice) -> Result<(), OpenError> {
    let least = DATA + UNIT;
    if medium.size() < least {
        return Err(OpenError::TooSmall {
            place: medium.name().to_owned(),
            there: medium.size(),
            least,
        });
    }
    Ok(())
}

fn draw_id(path: &Path) -> Result<[u8; 16], OpenError> {
    let mut id = [0; 16];
    let drawn = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    match drawn {
        Ok(len) if len == id.len() => Ok(id),
        other => Err(OpenError::Io {
            place: path.display().to_string(),
            doing: "drawing a number",
            errno: other.err().unwrap_or(Errno::AGAIN),
        }),
    }
}
