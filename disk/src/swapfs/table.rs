//! The file table, without a disk.
//!
//! The control operations of the swap filesystem (Nemesis, section 6.7), each of which makes
//! the next table of this one.
//!
//! Rule: an operation that is refused leaves the table as it was.

use super::error::FileError;
use super::file::{File, FileId, FileName, MAX_BLOB};
use super::free_space::{FreeSpace, UnitRun};
use super::{MAX_EXTENTS, MAX_FILES, UNIT};

/// The whole state of the filesystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileTable {
    /// Random id, drawn when the filesystem was formatted.
    pub id: [u8; 16],
    /// Units for files.
    pub units: u32,
    /// Id of the next file.
    pub next: u64,
    pub files: Vec<File>,
}

impl FileTable {
    pub fn new(id: [u8; 16], units: u32) -> Self {
        Self {
            id,
            units,
            next: 1,
            files: Vec::new(),
        }
    }

    /// Free space. `None` if two files share a unit: the table is corrupt then.
    pub fn space(&self) -> Option<FreeSpace> {
        let taken = self.files.iter().flat_map(|file| &file.runs);
        FreeSpace::beside(self.units, taken.copied())
    }

    pub fn extents(&self) -> usize {
        self.files.iter().map(|file| file.runs.len()).sum()
    }

    pub fn file(&self, id: FileId) -> Result<&File, FileError> {
        let at = self.place(id)?;
        Ok(&self.files[at])
    }

    pub fn find(&self, name: &FileName) -> Option<&File> {
        self.files.iter().find(|file| file.name == *name)
    }

    pub fn create(&mut self, name: FileName, size: u64, blob: &[u8]) -> Result<FileId, FileError> {
        if let Some(there) = self.find(&name) {
            return Err(FileError::Exists {
                name,
                size: there.size(),
            });
        }
        if self.files.len() >= MAX_FILES {
            return Err(FileError::Full {
                what: "files",
                most: MAX_FILES,
            });
        }
        if size == 0 {
            return Err(FileError::Empty);
        }
        check_blob(blob)?;
        let runs = self.allocate(Vec::new(), size)?;
        let id = FileId(self.next);
        self.next += 1;
        self.files.push(File {
            id,
            name,
            blob: blob.to_vec(),
            clean: 0,
            runs,
        });
        Ok(id)
    }

    pub fn grow(&mut self, id: FileId, size: u64) -> Result<(), FileError> {
        let at = self.place(id)?;
        let there = self.files[at].size();
        if size < there {
            return Err(FileError::Shrinks {
                size: there,
                asked: size,
            });
        }
        self.files[at].runs = self.allocate(self.files[at].runs.clone(), size - there)?;
        Ok(())
    }

    pub fn release(&mut self, id: FileId) -> Result<(), FileError> {
        let at = self.place(id)?;
        self.files.remove(at);
        Ok(())
    }

    pub fn set_blob(&mut self, id: FileId, blob: &[u8]) -> Result<(), FileError> {
        check_blob(blob)?;
        let at = self.place(id)?;
        self.files[at].blob = blob.to_vec();
        Ok(())
    }

    /// Marks the first `units` of the file as scrubbed.
    pub fn cleaned(&mut self, id: FileId, units: u32) -> Result<(), FileError> {
        let at = self.place(id)?;
        let file = &mut self.files[at];
        file.clean = file.clean.max(units.min(file.units()));
        Ok(())
    }

    /// Ids grow, so the files are in order.
    fn place(&self, id: FileId) -> Result<usize, FileError> {
        (self.files.binary_search_by_key(&id, |file| file.id)).map_err(|_| FileError::Missing(id))
    }

    fn allocate(&self, had: Vec<UnitRun>, more: u64) -> Result<Vec<UnitRun>, FileError> {
        let Some(mut space) = self.space() else {
            return Err(FileError::Damaged);
        };
        let refusal = FileError::NoRoom {
            asked: more,
            free: space.free(),
            largest: space.largest(),
        };
        let Ok(units) = u32::try_from(more.div_ceil(UNIT)) else {
            return Err(refusal);
        };
        let mut runs = had.clone();
        if space.extend(&mut runs, units).is_none() {
            return Err(refusal);
        }
        if self.extents() - had.len() + runs.len() > MAX_EXTENTS {
            return Err(FileError::Full {
                what: "extents",
                most: MAX_EXTENTS,
            });
        }
        Ok(runs)
    }
}

fn check_blob(blob: &[u8]) -> Result<(), FileError> {
    if blob.len() > MAX_BLOB {
        return Err(FileError::Blob(blob.len()));
    }
    Ok(())
}
