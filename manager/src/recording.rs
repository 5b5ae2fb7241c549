//! The pages that one restore faulted on, for the next.

use crate::snapshot::Snapshot;
use selfpage::{WorkingSet, WorkingSetError};
use std::path::{Path, PathBuf};
use wired::PAGE;

/// What is appended to the snapshot's name.
const SUFFIX: &str = "working-set";
/// The second file: which snapshot the set belongs to.
const IDENTITY: &str = "working-set-of";

/// A list of pages that has room for all it may get.
#[derive(Debug)]
pub struct Recording {
    pages: Vec<u32>,
}

impl Recording {
    /// For a client of that many pages.
    pub fn new(pages: usize) -> Self {
        Self {
            pages: Vec::with_capacity(pages),
        }
    }

    /// Notes a page by its offset in the snapshot.
    pub fn push(&mut self, offset: u64) {
        // A page is in the origin once: the room suffices.
        if self.pages.len() < self.pages.capacity() {
            self.pages.push((offset / PAGE as u64) as u32);
        }
    }

    /// Pages noted.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns true if no page was noted.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The set.
    pub fn working_set(&self) -> WorkingSet {
        WorkingSet::from_pages(self.pages.iter().map(|page| *page as usize))
    }
}

/// The files beside a snapshot that keep its working set.
#[derive(Clone, Debug)]
pub struct WorkingSetFile {
    path: PathBuf,
    identity_path: PathBuf,
    identity: String,
}

impl WorkingSetFile {
    /// Beside the snapshot.
    pub fn beside(snapshot: &Snapshot) -> Self {
        Self {
            path: snapshot.beside(SUFFIX),
            identity_path: snapshot.beside(IDENTITY),
            identity: format!("{:?}\n", snapshot.identity()),
        }
    }

    /// The set's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the set; `None` where there is none, or where the snapshot has changed since.
    pub fn load(&self) -> Result<Option<WorkingSet>, WorkingSetError> {
        let is_current = std::fs::read_to_string(&self.identity_path)
            .is_ok_and(|identity| identity == self.identity);
        if !is_current || !self.path.exists() {
            return Ok(None);
        }
        WorkingSet::load(&self.path).map(Some)
    }

    /// Keeps the set.
    pub fn save(&self, set: &WorkingSet) -> Result<(), WorkingSetError> {
        // In this order an interrupted save leaves no set that belongs to another snapshot.
        let _ = std::fs::remove_file(&self.identity_path);
        set.save(&self.path)?;
        std::fs::write(&self.identity_path, &self.identity).map_err(|error| WorkingSetError::File {
            path: self.identity_path.display().to_string(),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_belongs_to_one_state_of_its_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot.mem");
        std::fs::write(&path, [1; 8192]).unwrap();
        let open = || Snapshot::open(&path, &[]).unwrap();
        let file = WorkingSetFile::beside(&open());
        assert!(file.load().unwrap().is_none());
        let mut recording = Recording::new(2);
        for offset in [4096, 0, 4096] {
            recording.push(offset);
        }
        assert_eq!(recording.len(), 2, "as many as there is room for");
        file.save(&recording.working_set()).unwrap();
        let set = file.load().unwrap().unwrap();
        assert_eq!(set.runs().collect::<Vec<_>>(), [1..2, 0..1]);
        std::fs::write(&path, [1; 12288]).unwrap();
        let changed = WorkingSetFile::beside(&open());
        assert!(changed.load().unwrap().is_none());
    }
}
