//! A request to save a client's memory, and the file that it is saved to.

use crate::client_record::ClientRecord;
use crate::snapshot::{Snapshot, data_extents};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use wired::PAGE;

/// Pages of a word of a bitmap.
const BITS: usize = u64::BITS as usize;

/// What happens to a save, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveEvent {
    /// The memory is write-protected: what is saved is its contents as of now, and the guest may run.
    Protected {
        /// How long that took.
        micros: u64,
    },
    /// The file is complete and under its name.
    Saved {
        /// Pages in it: those that differ from the snapshot.
        pages: u64,
        /// Since the request.
        micros: u64,
    },
    /// There is no file.
    Failed {
        /// The reason, and what to do.
        why: String,
    },
}

/// What the thread of a client reports of a save to that of its request.
pub(crate) enum SaveProgress {
    /// It happened.
    Event(SaveEvent),
    /// All pages are in the file: to make it durable takes as long as the disk does, and the guest's faults do not wait
    /// for that.
    Written(WrittenFile),
}

/// A file that has all pages, and neither is durable nor has its name.
pub(crate) struct WrittenFile {
    pub file: DifferentialFile,
    /// When the save was requested.
    pub begin: Instant,
}

impl WrittenFile {
    /// Completes the file, and returns how that ended.
    pub fn finish(self) -> SaveEvent {
        match self.file.finish() {
            Ok(pages) => SaveEvent::Saved {
                pages,
                micros: micros(self.begin.elapsed()),
            },
            Err(why) => SaveEvent::Failed {
                why: why.to_string(),
            },
        }
    }
}

#[derive(Debug)]
/// A request to save a client's memory as the difference to its snapshot.
pub(crate) struct SaveRequest {
    /// Where to; the name appears when the file is complete.
    pub path: PathBuf,
    /// Receives what happens.
    pub progress: Sender<SaveProgress>,
}

impl SaveRequest {
    /// Reports that there is no file.
    pub(crate) fn fail(&self, why: String) {
        let failed = SaveEvent::Failed { why };
        let _ = self.progress.send(SaveProgress::Event(failed));
    }
}

/// Why a file is not complete.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinishError {
    /// The kernel's error.
    #[error("the file cannot be completed: {0}")]
    Kernel(#[from] Errno),
    /// Its holes do not tell which pages are saved.
    #[error(
        "the file system of {} keeps no holes of 4 KiB, so the file would not tell which pages are saved: save to ext4, \
         XFS, btrfs, or a tmpfs without huge pages",
        .0.display()
    )]
    Holes(PathBuf),
    /// A file of that name is there.
    #[error("{}: something of that name is there, and is not overwritten; choose another name, or remove it", .0.display())]
    Taken(PathBuf),
}

/// A differential snapshot while it is written: a sparse file of the snapshot's size, with data where
/// pages differ and holes elsewhere.
pub struct DifferentialFile {
    file: OwnedFd,
    path: PathBuf,
    part: PathBuf,
    /// The part has its final name, and another save may have one of this name.
    is_named: bool,
    /// The pages in it, a bit each.
    written: Vec<u64>,
    /// Has the name of the part as long as there is one.
    record: Arc<ClientRecord>,
}

impl DifferentialFile {
    /// Makes the file, of `len` bytes, for the client of `record`.
    ///
    /// # Errors
    /// `EXIST` where another save of this manager writes there, and what the kernel has.
    pub fn create(path: &Path, len: u64, record: &Arc<ClientRecord>) -> Result<Self, Errno> {
        let mut part = path.as_os_str().to_owned();
        part.push(format!(".part.{}", std::process::id()));
        let part = PathBuf::from(part);
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        record.begin_file(&part)?;
        let file = rustix::fs::open(&part, how, Mode::RUSR | Mode::WUSR)
            .inspect_err(|_| record.end_file())?;
        let it = Self {
            file,
            path: path.to_owned(),
            part,
            is_named: false,
            written: vec![0; (len as usize).div_ceil(PAGE).div_ceil(BITS)],
            record: Arc::clone(record),
        };
        rustix::fs::ftruncate(&it.file, len)?;
        Ok(it)
    }

    /// Writes a page, unless it equals the snapshot's.
    pub fn write(
        &mut self,
        origin: Option<&Snapshot>,
        offset: u64,
        page: &[u8; PAGE],
    ) -> Result<(), Errno> {
        let mut original = [0; PAGE];
        let is_known = match origin.map(|origin| origin.read(offset, &mut original)) {
            None | Some(Ok(())) => true,
            // Not fetched yet: it differs, for all that is known.
            Some(Err(Errno::AGAIN)) => false,
            Some(Err(errno)) => return Err(errno),
        };
        if is_known && original == *page {
            return Ok(());
        }
        let page_number = offset as usize / PAGE;
        self.written[page_number / BITS] |= 1 << (page_number % BITS);
        match rustix::io::pwrite(&self.file, page, offset)? {
            PAGE => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }

    /// Gives the file its name, unless that is taken, and makes both durable. Returns its pages.
    ///
    /// # Errors
    /// [`FinishError`]: there is no file.
    pub fn finish(mut self) -> Result<u64, FinishError> {
        rustix::fs::fsync(&self.file)?;
        if !self.has_data_of_its_pages_alone()? {
            return Err(FinishError::Holes(self.path.clone()));
        }
        self.give_name()?;
        self.is_named = true;
        let folder = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // One that may not be read cannot be made durable either; the file is there.
        if let Ok(folder) = rustix::fs::open(folder.unwrap_or(Path::new(".")), how, Mode::empty()) {
            rustix::fs::fsync(&folder)?;
        }
        Ok(self.pages())
    }

    fn pages(&self) -> u64 {
        self.written
            .iter()
            .map(|it| u64::from(it.count_ones()))
            .sum()
    }

    /// Returns true if the file has data where pages were written, and holes elsewhere: nothing else tells the pages of a
    /// differential snapshot.
    fn has_data_of_its_pages_alone(&self) -> Result<bool, Errno> {
        let len = rustix::fs::fstat(&self.file)?.st_size as u64;
        let extents = data_extents(&self.file, len)?;
        let is_written = |page: usize| self.written[page / BITS] & 1 << (page % BITS) != 0;
        let is_written = |it: &Range<u64>| {
            (it.start as usize / PAGE..(it.end as usize).div_ceil(PAGE)).all(is_written)
        };
        let data: u64 = extents.iter().map(|it| it.end - it.start).sum();
        let bytes = (self.pages() * PAGE as u64).min(len);
        Ok(data == bytes && extents.iter().all(is_written))
    }

    fn give_name(&self) -> Result<(), FinishError> {
        let taken = || FinishError::Taken(self.path.clone());
        let (from, to) = (&self.part, &self.path);
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => Err(taken()),
            // The file system does not know RENAME_NOREPLACE.
            Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_ok() => Err(taken()),
            Err(Errno::INVAL | Errno::NOSYS) => Ok(rustix::fs::rename(from, to)?),
            named => Ok(named?),
        }
    }
}

impl Drop for DifferentialFile {
    fn drop(&mut self) {
        if !self.is_named {
            let _ = rustix::fs::unlink(&self.part);
        }
        self.record.end_file();
    }
}

/// Microseconds of a duration.
pub(crate) fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_record::MemoryKind;
    use crate::handoff::{Handoff, Mapping};

    fn record(number: u64) -> Arc<ClientRecord> {
        let mapping = Mapping {
            addr: 1 << 20,
            len: PAGE,
            offset: 0,
        };
        let handoff = Handoff {
            mappings: vec![mapping],
            page_size: PAGE,
        };
        let made = ClientRecord::create(number, 4711, &handoff, MemoryKind::Memfd);
        made.unwrap().0
    }

    #[test]
    fn two_clients_are_not_saved_to_one_file_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("diff.mem");
        let len = PAGE as u64;
        let (one, other) = (record(1), record(2));
        let mut first = DifferentialFile::create(&path, len, &one).unwrap();
        let refused = DifferentialFile::create(&path, len, &other);
        assert_eq!(refused.err(), Some(Errno::EXIST));
        assert_eq!(other.unfinished_file(), None);
        first.write(None, 0, &[1; PAGE]).unwrap();
        assert_eq!(first.finish(), Ok(1));
        assert_eq!(std::fs::read(&path).unwrap(), [1; PAGE]);
        let second = DifferentialFile::create(&path, len, &other).unwrap();
        assert_eq!(second.finish(), Err(FinishError::Taken(path.clone())));
        assert_eq!(std::fs::read(&path).unwrap(), [1; PAGE]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_whose_holes_do_not_tell_its_pages_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("diff.mem");
        let mut file = DifferentialFile::create(&path, 64 * PAGE as u64, &record(1)).unwrap();
        file.write(None, 9 * PAGE as u64, &[1; PAGE]).unwrap();
        // As a file system with larger units.
        rustix::io::pwrite(&file.file, &[0; PAGE], 10 * PAGE as u64).unwrap();
        assert_eq!(file.finish(), Err(FinishError::Holes(path)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
