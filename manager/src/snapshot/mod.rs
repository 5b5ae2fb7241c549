//! A snapshot file as a memory object: the clean pages of all its clones.
//!
//! One read-only mapping, shared by all clients, so that clones read each page from the device once and
//! the page cache is the only copy beside theirs. The manager's own code never dereferences the
//! mapping: the kernel copies from it, and a file that was truncated is an error of that copy, not a
//! signal that ends the manager. Of a snapshot in an object store the file has what guests have needed
//! so far (`fetched_file.rs`): a page is asked for before it is read.

mod fetch_queue;
mod fetched_file;
mod layer;
mod source;

pub use fetched_file::{FetchedFile, FetchedFileError, Readiness};
pub use layer::data_extents;
pub use source::SnapshotSource;

use crate::commands::Commands;
use crate::memory_object::{DataReply, MemoryObject, PageName};
use layer::{Layer, fail};
use objectstore::{ObjectPath, OpenError};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wired::PAGE;

/// Why a snapshot cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file.
    #[error("snapshot {}: {what}: {errno}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// An object.
    #[error("snapshot {}: {why}", path.display())]
    Object {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: FetchedFileError,
    },
}

/// An open snapshot, and differential ones over it; clones share it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The first has all bytes; each later one has data where it differs from those before.
    layers: Arc<Vec<Layer>>,
    /// Whose faults it answers, where parts of it have to be fetched.
    client: Option<Arc<FetchingClient>>,
}

/// A client of an object, until it is dropped.
#[derive(Debug)]
struct FetchingClient {
    number: u64,
    file: Arc<FetchedFile>,
}

impl Drop for FetchingClient {
    fn drop(&mut self) {
        self.file.remove(self.number);
    }
}

impl Snapshot {
    /// Opens and maps a file, and the differential snapshots over it, the oldest first.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn open(path: &Path, differentials: &[PathBuf]) -> Result<Self, SnapshotError> {
        Self::over(Layer::open(path)?, differentials)
    }

    /// The same of an object, whose parts are in a file in `folder` once they were fetched. Starts no thread:
    /// [`Snapshot::start`] does, in the process that serves.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn of_object(
        object: &ObjectPath,
        folder: &Path,
        differentials: &[PathBuf],
    ) -> Result<Self, SnapshotError> {
        Self::over(Layer::open_object(object, folder)?, differentials)
    }

    fn over(first: Layer, differentials: &[PathBuf]) -> Result<Self, SnapshotError> {
        let mut layers = vec![first];
        for path in differentials {
            let layer = Layer::open(path)?;
            let page = PAGE as u64;
            if layer.len != layers[0].len {
                return Err(fail(path, "needs to be of the snapshot's size")(
                    Errno::INVAL,
                ));
            }
            let is_whole =
                |it: &Range<u64>| it.start.is_multiple_of(page) && it.end.is_multiple_of(page);
            if !layer.data.iter().all(is_whole) {
                return Err(fail(path, "has data that are no whole pages")(Errno::INVAL));
            }
            if layer.is_dense() {
                let why = "has no holes, as a copy without them has none: save anew, where the file system has \
                           holes; one of a guest that changed every page is given as the snapshot itself";
                return Err(fail(path, why)(Errno::INVAL));
            }
            layers.push(layer);
        }
        Ok(Self {
            layers: Arc::new(layers),
            client: None,
        })
    }

    /// Starts what fetches the parts of an object.
    ///
    /// # Errors
    /// [`OpenError`]: the store, or threads.
    pub fn start(&self) -> Result<(), OpenError> {
        self.fetched().map_or(Ok(()), FetchedFile::start)
    }

    /// The same snapshot for a client, which is woken when something it has asked for is there.
    #[must_use]
    pub fn for_client(&self, number: u64, bell: &Arc<Commands>) -> Self {
        let client = self.fetched().map(|file| {
            file.add(number, bell);
            let file = Arc::clone(file);
            Arc::new(FetchingClient { number, file })
        });
        Self {
            client,
            ..self.clone()
        }
    }

    fn fetched(&self) -> Option<&Arc<FetchedFile>> {
        self.layers[0].fetched.as_ref()
    }

    /// The client has looked at all that it waits for: what could not be had is asked for again by later faults.
    pub fn forget_failures(&self) {
        if let Some(client) = &self.client {
            client.file.forget_failures(client.number);
        }
    }

    /// Returns true if a range can be read now.
    pub fn has(&self, offset: u64, len: usize) -> bool {
        let fetched = &self.layer(offset, len).fetched;
        fetched.as_ref().is_none_or(|it| it.has(offset, len))
    }

    /// Asks for a range, before it is read. A client that gets [`Readiness::Pending`] is woken.
    pub fn request(&self, offset: u64, len: usize) -> Readiness {
        match (&self.client, &self.layer(offset, len).fetched) {
            (_, None) => Readiness::Ready,
            (Some(client), Some(file)) => file.demand(client.number, offset, len),
            (None, Some(file)) if file.has(offset, len) => Readiness::Ready,
            (None, Some(_)) => Readiness::Failed,
        }
    }

    /// Leaves the page cache to the kernel: a process that locks its memory would lock what it maps, too. To be called
    /// after each time that it does.
    pub fn leave_pageable(&self) {
        for layer in &*self.layers {
            // SAFETY: the layer's mapping; changes no contents.
            let _ = unsafe { rustix::mm::munlock(layer.start.cast_mut().cast(), layer.len) };
        }
    }

    /// The file of the first layer, or the URL of its object.
    pub fn path(&self) -> &Path {
        &self.layers[0].path
    }

    /// A path beside the snapshot, for what belongs to it.
    pub fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.layers[0].beside.clone().into_os_string();
        name.push(".");
        name.push(suffix);
        PathBuf::from(name)
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.layers[0].len as u64
    }

    /// Returns true if the snapshot has no bytes, which no open one has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the contents of neighbouring pages may be in different files.
    pub fn is_layered(&self) -> bool {
        self.layers.len() > 1
    }

    /// The permissions to read the file.
    pub fn readers(&self) -> Result<Mode, Errno> {
        let stat = rustix::fs::fstat(&self.layers[0].file)?;
        Ok(Mode::from_raw_mode(stat.st_mode) & (Mode::RUSR | Mode::RGRP | Mode::ROTH))
    }

    /// Tells these files from others of the same names.
    pub fn identity(&self) -> Vec<[u64; 4]> {
        self.layers.iter().map(|it| it.identity).collect()
    }

    /// The layer that has a page: the last with data there, or the first.
    fn layer(&self, offset: u64, len: usize) -> &Layer {
        let mut layers = self.layers.iter().rev();
        let found = layers.find(|it| it.has_data(offset, len));
        found.unwrap_or(&self.layers[0])
    }

    /// Reads a page; what is beyond the file's end reads zero.
    ///
    /// # Errors
    /// `AGAIN` where it is not fetched; what the kernel has.
    pub fn read(&self, offset: u64, page: &mut [u8; PAGE]) -> Result<(), Errno> {
        if !self.has(offset, PAGE) {
            return Err(Errno::AGAIN);
        }
        let file = &self.layer(offset, PAGE).file;
        let mut done = 0;
        while done < PAGE {
            match rustix::io::pread(file, &mut page[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        page[done..].fill(0);
        Ok(())
    }

    /// Asks the kernel, and the object's store, to read ranges ahead.
    pub fn prefetch(&self, ranges: impl Iterator<Item = Range<u64>> + Clone) {
        if let (Some(client), Some(file)) = (&self.client, self.fetched()) {
            file.read_ahead(client.number, ranges.clone());
        }
        for layer in self.layers.iter().filter(|it| it.fetched.is_none()) {
            for range in ranges.clone() {
                let Some(most) = layer.len.checked_sub(range.start as usize) else {
                    continue;
                };
                let len = (range.end - range.start) as usize;
                // SAFETY: within the mapping; a hint that changes no contents.
                let _ = unsafe {
                    let at = layer.start.add(range.start as usize).cast_mut();
                    madvise(at.cast(), len.min(most), Advice::WillNeed)
                };
            }
        }
    }
}

impl MemoryObject for Snapshot {
    fn data_request(&mut self, page: PageName, len: usize) -> DataReply {
        let end = page.offset.saturating_add(len as u64);
        let layer = self.layer(page.offset, len);
        if end > self.len() || !layer.has_data(page.offset, len) {
            return DataReply::Unavailable;
        }
        // SAFETY: within the mapping, by the check above: all layers have one size.
        DataReply::Provided(unsafe { layer.start.add(page.offset as usize) })
    }
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
        let mut snapshot = Snapshot::open(&path, &[]).unwrap();
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
    fn differential_snapshots_lie_over_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let [base, first, second] = ["base", "first", "second"].map(|it| folder.path().join(it));
        std::fs::write(&base, [1; 4 * PAGE]).unwrap();
        for (path, pages) in [(&first, &[(1, 2u8), (2, 2)][..]), (&second, &[(2, 0)])] {
            let file = std::fs::File::create(path).unwrap();
            file.set_len(4 * PAGE as u64).unwrap();
            for (page, byte) in pages {
                file.write_all_at(&[*byte; PAGE], page * PAGE as u64)
                    .unwrap();
            }
        }
        let snapshot = Snapshot::open(&base, &[first, second.clone()]).unwrap();
        for (page, byte) in [(0, 1), (1, 2), (2, 0), (3, 1)] {
            let mut contents = [9; PAGE];
            snapshot.read(page * PAGE as u64, &mut contents).unwrap();
            assert_eq!(contents, [byte; PAGE], "page {page}");
        }
        std::fs::write(&second, [1; PAGE]).unwrap();
        assert!(Snapshot::open(&base, &[second]).is_err(), "of another size");
    }

    #[test]
    fn what_is_no_snapshot_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let refused = Snapshot::open(folder.path(), &[]).unwrap_err().to_string();
        assert!(refused.contains("regular file"), "{refused}");
        let refused = Snapshot::open(&folder.path().join("none"), &[]).unwrap_err();
        assert!(refused.to_string().contains("none"), "{refused}");
    }
}
