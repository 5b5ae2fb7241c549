//! The swap filesystem's operations, for its single owner.

use super::block_device::BlockDevice;
use super::device::{Device, FormatOptions};
use super::error::{FileError, OpenError};
use super::extents::{Extent, Extents, between};
use super::file::{File, FileId, FileName};
use super::scrub::{CancelledScrub, Scrub, ScrubToken};
use super::superblock::Superblocks;
use super::table::FileTable;
use super::warning::DeviceWarning;
use super::{DATA, UNIT, signatures};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;

/// Space and tables in use. In bytes unless stated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceUsage {
    /// Bytes for files.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// The largest contiguous free range.
    pub largest: u64,
    /// Number of files.
    pub files: usize,
    /// Number of extents.
    pub extents: usize,
}

/// An open swap filesystem.
///
/// An operation that changes it writes its table and returns when that is durable: a few
/// milliseconds, when a contract begins or ends. Nothing here is on the path of a page.
pub struct SwapFs<M = Device> {
    medium: Arc<M>,
    superblocks: Superblocks<M>,
    table: FileTable,
    /// Scrubs that may still write.
    scrubs: Vec<(FileId, ScrubToken)>,
}

impl SwapFs {
    /// Makes an empty filesystem on a partition or on a file. A missing file is made and allocated
    /// whole. Refuses to lose existing contents unless `options` force it.
    pub fn format(path: &Path, options: &FormatOptions) -> Result<Self, OpenError> {
        check_asked(path, options)?;
        let (device, is_new) = Device::prepare(path, options)?;
        let made = draw_id(path).and_then(|id| Self::format_on(device, id, options.force));
        if made.is_err() && is_new {
            // The refusal explains more than a failure to remove it.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Checks, without changing anything, that a swap filesystem can be opened, or that
    /// [`SwapFs::format`] could make one. Returns warnings about the device. [`OpenError::Held`]: a
    /// process has it open.
    pub fn check(path: &Path, options: &FormatOptions) -> Result<Vec<DeviceWarning>, OpenError> {
        let Some(device) = Device::inspect(path, options.size)? else {
            check_asked(path, options)?;
            return Ok(Vec::new());
        };
        check_size(device.name(), device.size())?;
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

    /// Opens the filesystem on a partition or file. [`OpenError::Held`] may pass: the I/O in flight
    /// of a killed process holds the device until it completes.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_on(Device::open(path)?)
    }

    /// Refuses a device of another size than the one that is asked for, as [`SwapFs::check`] does.
    pub fn require_size(&self, asked: Option<u64>) -> Result<(), OpenError> {
        self.medium.require_size(asked)
    }
}

impl<M: BlockDevice> SwapFs<M> {
    /// [`SwapFs::format`] for any block device. `id` is random.
    pub fn format_on(medium: M, id: [u8; 16], force: bool) -> Result<Self, OpenError> {
        check_size(medium.name(), medium.size())?;
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
            // An existing swap filesystem's superblocks are replaced one after the other, as in a
            // commit.
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

    /// [`SwapFs::open`] for any block device.
    pub fn open_on(medium: M) -> Result<Self, OpenError> {
        check_size(medium.name(), medium.size())?;
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

    /// The block device.
    pub fn medium(&self) -> &Arc<M> {
        &self.medium
    }

    /// Random id of the filesystem, drawn when it was formatted.
    pub fn id(&self) -> [u8; 16] {
        self.table.id
    }

    /// All files, in order of creation.
    pub fn files(&self) -> &[File] {
        &self.table.files
    }

    /// The file `id`.
    pub fn file(&self, id: FileId) -> Result<&File, FileError> {
        self.table.file(id)
    }

    /// The file with that name.
    pub fn find(&self, name: &FileName) -> Option<&File> {
        self.table.find(name)
    }

    /// Space and tables in use.
    pub fn usage(&self) -> SpaceUsage {
        let space = self.table.space();
        SpaceUsage {
            total: u64::from(self.table.units) * UNIT,
            free: space.as_ref().map_or(0, |space| space.free()),
            largest: space.as_ref().map_or(0, |space| space.largest()),
            files: self.table.files.len(),
            extents: self.table.extents(),
        }
    }

    /// Makes a file of at least `size` bytes, rounded up to whole [`UNIT`]s, that keeps `blob` for
    /// its owner. None of it is usable before a [`SwapFs::scrub`].
    pub fn create(&mut self, name: FileName, size: u64, blob: &[u8]) -> Result<FileId, FileError> {
        self.change(|table| table.create(name, size, blob))
    }

    /// Grows a file to `size` bytes in all, rounded up. The added part needs a [`SwapFs::scrub`].
    pub fn grow(&mut self, id: FileId, size: u64) -> Result<(), FileError> {
        self.change(|table| table.grow(id, size))
    }

    /// Releases a file's space. The caller has ended all I/O on it: another file may get the space
    /// as soon as this returns. Cancels a scrub of the file, after its current step.
    pub fn release(&mut self, id: FileId) -> Result<(), FileError> {
        self.table.file(id)?;
        self.cancel_scrub(id);
        self.change(|table| table.release(id))
    }

    /// Replaces the blob kept with the file.
    pub fn set_blob(&mut self, id: FileId, blob: &[u8]) -> Result<(), FileError> {
        self.change(|table| table.set_blob(id, blob))
    }

    /// The extents of the usable part of the file.
    pub fn extents(&self, id: FileId) -> Result<Extents, FileError> {
        self.table.file(id).map(Extents::of)
    }

    /// The extents of the whole file, for a calibration that discards what it reads.
    pub(crate) fn unscrubbed(&self, id: FileId) -> Result<Vec<Extent>, FileError> {
        let file = self.table.file(id)?;
        Ok(between(file, 0, file.units()))
    }

    /// The work left before all of the file is usable; nothing if none is. Cancels another scrub of
    /// the same file, after its current step.
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

    /// Makes the part of the file usable that `scrub`, which is done, overwrote.
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

    /// Cancels a scrub of the file without waiting for its current step. Until that is over the file is neither released nor
    /// scrubbed again.
    pub fn begin_cancel(&mut self, id: FileId) -> CancelledScrub {
        let at = self.scrubs.iter().position(|(file, _)| *file == id);
        let token = at.map(|at| self.scrubs.swap_remove(at).1);
        token.iter().for_each(ScrubToken::cancel);
        CancelledScrub(token)
    }

    fn cancel_scrub(&mut self, id: FileId) {
        self.begin_cancel(id).wait();
    }

    /// Makes the next table durable on the device, and only then current in memory.
    fn change<T>(
        &mut self,
        operation: impl FnOnce(&mut FileTable) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let mut next = self.table.clone();
        let done = operation(&mut next)?;
        if let Err(errno) = self.superblocks.commit(&next) {
            // Half of it may be on the device: overwrites it with the current table, if possible.
            let _ = self.superblocks.commit(&self.table);
            let place = self.medium.name().to_owned();
            return Err(FileError::Io { place, errno });
        }
        self.table = next;
        Ok(done)
    }
}

fn check_size(name: &str, there: u64) -> Result<(), OpenError> {
    let (place, least) = (name.to_owned(), DATA + UNIT);
    match there < least {
        true => Err(OpenError::TooSmall {
            place,
            there,
            least,
        }),
        false => Ok(()),
    }
}

/// Checks the size of a file that is yet to be made.
fn check_asked(path: &Path, options: &FormatOptions) -> Result<(), OpenError> {
    let size = options.size.unwrap_or(u64::MAX);
    check_size(&path.display().to_string(), size)
}

fn draw_id(path: &Path) -> Result<[u8; 16], OpenError> {
    let mut id = [0; 16];
    let drawn = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    match drawn {
        Ok(len) if len == id.len() => Ok(id),
        other => Err(OpenError::Io {
            place: path.display().to_string(),
            doing: "drawing a random id",
            errno: other.err().unwrap_or(Errno::AGAIN),
        }),
    }
}
