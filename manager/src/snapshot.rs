//! A snapshot file as a memory object: the clean pages of all its clones.
//!
//! One read-only mapping, shared by all clients, so that clones read each page from the device once and
//! the page cache is the only copy beside theirs. The manager's own code never dereferences the
//! mapping: the kernel copies from it, and a file that was truncated is an error of that copy, not a
//! signal that ends the manager.

use crate::memory_object::{DataReply, MemoryObject, PageName};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a snapshot cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("snapshot {}: {what}: {errno}", path.display())]
pub struct SnapshotError {
    path: PathBuf,
    what: &'static str,
    errno: Errno,
}

/// An open snapshot; clones share it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: OwnedFd,
    start: *const u8,
    len: usize,
    /// What the file has, in order; the rest of it are holes and read zero.
    data: Vec<Range<u64>>,
    /// Tells this file from another of the same name.
    identity: [u64; 4],
}

// SAFETY: the mapping is read-only and lives as long as `Inner`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Snapshot {
    /// Opens and maps a file.
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        let fail = |what| {
            move |errno| SnapshotError {
                path: path.to_owned(),
                what,
                errno,
            }
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file =
            rustix::fs::open(path, flags, Mode::empty()).map_err(fail("cannot be opened"))?;
        let stat = rustix::fs::fstat(&file).map_err(fail("cannot be inspected"))?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || stat.st_size < wired::PAGE as i64 {
            return Err(fail("needs to be a regular file of a page at least")(
                Errno::INVAL,
            ));
        }
        let len = stat.st_size as usize;
        // SAFETY: a new mapping, where the kernel chooses.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .map_err(fail("cannot be mapped"))?;
        // Faults of guests are rarely sequential; replays of working sets request ranges.
        // SAFETY: the mapping above.
        let _ = unsafe { madvise(start, len, Advice::Random) };
        // A manager that locks its memory would lock the page cache with it.
        // SAFETY: the mapping above; changes no contents.
        let _ = unsafe { rustix::mm::munlock(start, len) };
        let data = data_extents(&file, len as u64).map_err(fail("has no list of holes"))?;
        let identity = [
            stat.st_ino,
            stat.st_size as u64,
            stat.st_mtime as u64,
            stat.st_mtime_nsec,
        ];
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                file,
                start: start.cast(),
                len,
                data,
                identity,
            }),
        })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.inner.len as u64
    }

    /// Returns true if the snapshot has no bytes, which no open one has.
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// Inode, size and time of the last change.
    pub fn identity(&self) -> [u64; 4] {
        self.inner.identity
    }

    /// Returns true if the file has bytes there, not a hole alone.
    fn has_data(&self, offset: u64, len: usize) -> bool {
        let data = &self.inner.data;
        let first = data.partition_point(|it| it.end <= offset);
        data.get(first)
            .is_some_and(|it| it.start < offset + len as u64)
    }

    /// Reads contents into `page`; what is beyond the file's end reads zero.
    pub fn read(&self, offset: u64, page: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < page.len() {
            match rustix::io::pread(&self.inner.file, &mut page[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        page[done..].fill(0);
        Ok(())
    }

    /// Asks the kernel to read a range ahead.
    pub fn prefetch(&self, offset: u64, len: usize) {
        let Some(most) = self.inner.len.checked_sub(offset as usize) else {
            return;
        };
        // SAFETY: within the mapping; a hint that changes no contents.
        let _ = unsafe {
            let at = self.inner.start.add(offset as usize).cast_mut();
            madvise(at.cast(), len.min(most), Advice::WillNeed)
        };
    }
}

impl MemoryObject for Snapshot {
    fn data_request(&mut self, page: PageName, len: usize) -> DataReply {
        let end = page.offset.saturating_add(len as u64);
        if end > self.len() || !self.has_data(page.offset, len) {
            return DataReply::Unavailable;
        }
        // SAFETY: within the mapping, by the check above.
        DataReply::Provided(unsafe { self.inner.start.add(page.offset as usize) })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`, which no code uses any more.
        let _ = unsafe { munmap(self.start.cast_mut().cast(), self.len) };
    }
}

/// The ranges of a file that are no holes.
fn data_extents(file: &OwnedFd, len: u64) -> Result<Vec<Range<u64>>, Errno> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn request(snapshot: &mut Snapshot, offset: u64) -> DataReply {
        snapshot.data_request(PageName { offset, copy: None }, 4096)
    }

    #[test]
    fn holes_and_the_end_are_unavailable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&[5; 4096], 32 << 20).unwrap();
        let mut snapshot = Snapshot::open(&path).unwrap();
        assert_eq!(request(&mut snapshot, 0), DataReply::Unavailable);
        assert_eq!(request(&mut snapshot, 64 << 20), DataReply::Unavailable);
        assert!(matches!(
            request(&mut snapshot, 32 << 20),
            DataReply::Provided(_)
        ));
        let mut page = [1; 4096];
        snapshot.read(32 << 20, &mut page).unwrap();
        assert_eq!(page, [5; 4096]);
        snapshot.read((64 << 20) - 2048, &mut page).unwrap();
        assert_eq!(page, [0; 4096]);
    }

    #[test]
    fn what_is_no_snapshot_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let refused = Snapshot::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("regular file"), "{refused}");
        let refused = Snapshot::open(&folder.path().join("none")).unwrap_err();
        assert!(refused.to_string().contains("none"), "{refused}");
    }
}
