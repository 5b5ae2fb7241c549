//! One file of a snapshot, mapped for reading.

use super::{FetchedFile, FetchedFileError, SnapshotError};
use objectstore::ObjectPath;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wired::PAGE;

/// One mapped file.
#[derive(Debug)]
pub(super) struct Layer {
    pub path: PathBuf,
    pub file: OwnedFd,
    pub start: *const u8,
    pub len: usize,
    /// What the file has, in order; the rest of it are holes.
    pub data: Vec<Range<u64>>,
    /// Inode, size and time of the last change; of an object, its version and size.
    pub identity: [u64; 4],
    /// What the file has of an object.
    pub fetched: Option<Arc<FetchedFile>>,
    /// Where files that belong to it are: its own name, with more appended.
    pub beside: PathBuf,
}

// SAFETY: the mapping is read-only and lives as long as the layer.
unsafe impl Send for Layer {}
// SAFETY: as above.
unsafe impl Sync for Layer {}

impl Layer {
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        let fail = |what| fail(path, what);
        // Of a pipe, the open would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file =
            rustix::fs::open(path, flags, Mode::empty()).map_err(fail("cannot be opened"))?;
        let stat = rustix::fs::fstat(&file).map_err(fail("cannot be inspected"))?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || stat.st_size < PAGE as i64 {
            return Err(fail("needs to be a regular file of a page at least")(
                Errno::INVAL,
            ));
        }
        let len = stat.st_size as usize;
        let start = map(&file, len).map_err(fail("cannot be mapped"))?;
        let data = data_extents(&file, len as u64).map_err(fail("has no list of holes"))?;
        let identity = [
            stat.st_ino,
            stat.st_size as u64,
            stat.st_mtime as u64,
            stat.st_mtime_nsec,
        ];
        Ok(Self {
            path: path.to_owned(),
            file,
            start,
            len,
            data,
            identity,
            fetched: None,
            beside: path.to_owned(),
        })
    }

    pub fn open_object(object: &ObjectPath, folder: &Path) -> Result<Self, SnapshotError> {
        let path = PathBuf::from(object.to_string());
        let fail = |why| SnapshotError::Object {
            path: path.clone(),
            why,
        };
        let fetched = FetchedFile::open(object, folder).map_err(fail)?;
        let len = fetched.size() as usize;
        let local = |error| fail(FetchedFileError::local(len as u64, folder, error));
        let file = fetched.file().map_err(local)?;
        let start = map(&file, len).map_err(|errno| local(errno.into()))?;
        Ok(Self {
            beside: folder.join(fetched.local_name()),
            path,
            file,
            start,
            len,
            data: std::iter::once(0..len as u64).collect(),
            identity: fetched.identity(),
            fetched: Some(Arc::new(fetched)),
        })
    }

    /// Returns true if the file has no hole.
    pub fn is_dense(&self) -> bool {
        self.data.first() == Some(&(0..self.len as u64))
    }

    /// Returns true if the file has bytes there, not a hole alone.
    pub fn has_data(&self, offset: u64, len: usize) -> bool {
        let first = self.data.partition_point(|it| it.end <= offset);
        let data = self.data.get(first);
        data.is_some_and(|it| it.start < offset + len as u64)
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`, which no code uses any more.
        let _ = unsafe { munmap(self.start.cast_mut().cast(), self.len) };
    }
}

/// Maps a file for reading.
fn map(file: &OwnedFd, len: usize) -> Result<*const u8, Errno> {
    let (flags, access) = (MapFlags::SHARED, ProtFlags::READ);
    // SAFETY: a new mapping, where the kernel chooses.
    let start = unsafe { mmap(std::ptr::null_mut(), len, access, flags, file, 0)? };
    // Faults of guests are rarely sequential; replays of working sets request ranges.
    // SAFETY: the mapping above.
    let _ = unsafe { madvise(start, len, Advice::Random) };
    Ok(start.cast())
}

pub(super) fn fail<'a>(
    path: &'a Path,
    what: &'static str,
) -> impl Fn(Errno) -> SnapshotError + use<'a> {
    move |errno| SnapshotError::File {
        path: path.to_owned(),
        what,
        errno,
    }
}

/// The ranges of a file that are no holes.
pub fn data_extents(file: &OwnedFd, len: u64) -> Result<Vec<Range<u64>>, Errno> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                // A file system without holes.
                extents.push(at..len);
                break;
            }
            Err(errno) => return Err(errno),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        extents.push(start..end);
        at = end;
    }
    Ok(extents)
}
