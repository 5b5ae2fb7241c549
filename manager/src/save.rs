//! A request to save a client's memory, and the file that it is saved to.

use crate::client_record::ClientRecord;
use crate::snapshot::Snapshot;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use wired::PAGE;

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
            Err(errno) => SaveEvent::Failed {
                why: format!("the file cannot be completed: {errno}"),
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

/// A differential snapshot while it is written: a sparse file of the snapshot's size, with data where
/// pages differ and holes elsewhere.
pub struct DifferentialFile {
    file: OwnedFd,
    path: PathBuf,
    part: PathBuf,
    /// The part has its final name, and another save may have one of this name.
    is_named: bool,
    pages: u64,
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
            pages: 0,
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
        self.pages += 1;
        match rustix::io::pwrite(&self.file, page, offset)? {
            PAGE => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }

    /// Gives the file its name, and makes both durable. Returns its pages.
    pub fn finish(mut self) -> Result<u64, Errno> {
        rustix::fs::fsync(&self.file)?;
        rustix::fs::rename(&self.part, &self.path)?;
        self.is_named = true;
        let folder = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // One that may not be read cannot be made durable either; the file is there.
        if let Ok(folder) = rustix::fs::open(folder.unwrap_or(Path::new(".")), how, Mode::empty()) {
            rustix::fs::fsync(&folder)?;
        }
        Ok(self.pages)
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
        assert!(DifferentialFile::create(&path, len, &other).is_ok());
    }
}
