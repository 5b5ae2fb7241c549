//! The pages that one restore faulted on, for the next.
//!
//! Rule: what one guest does costs each later one a bounded part of its memory. A set has the first pages that were used, a quarter of
//! the guest's at most; one of a guest that used almost nothing is not kept.

use crate::snapshot::Snapshot;
use selfpage::{WorkingSet, WorkingSetError};
use std::path::{Path, PathBuf};
use wired::PAGE;

/// What is appended to the snapshot's name.
const SUFFIX: &str = "working-set";
/// The second file: which snapshot the set belongs to.
const IDENTITY: &str = "working-set-of";

/// The part of a guest's pages that a set has at most. Restores of functions use a tenth (REAP, ASPLOS 2021).
const MOST: usize = 4;
/// The part that a guest has used at least which has begun to work.
const FEWEST: usize = 1024;

/// A list of pages that has room for all it may get.
#[derive(Debug)]
pub struct Recording {
    pages: Vec<u32>,
    fewest: usize,
}

impl Recording {
    /// For a client of that many pages.
    pub fn new(pages: usize) -> Self {
        Self {
            pages: Vec::with_capacity(pages.div_ceil(MOST)),
            fewest: pages / FEWEST,
        }
    }

    /// Notes a page by its offset in the snapshot, as long as there is room.
    pub fn push(&mut self, offset: u64) {
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

    /// Returns true if the set is one of a guest that has worked.
    pub fn is_worth_keeping(&self) -> bool {
        !self.is_empty() && self.len() >= self.fewest
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
    fn a_guest_that_used_almost_nothing_leaves_no_set() {
        let mut recording = Recording::new(4096);
        for page in 0..4 {
            assert!(!recording.is_worth_keeping(), "{page} of 4096 pages");
            recording.push(page * PAGE as u64);
        }
        assert!(recording.is_worth_keeping());
        assert!(!Recording::new(8).is_worth_keeping());
    }

    #[test]
    fn a_set_belongs_to_one_state_of_its_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot.mem");
        std::fs::write(&path, [1; 8192]).unwrap();
        let open = || Snapshot::open(&path, &[]).unwrap();
        let file = WorkingSetFile::beside(&open());
        assert!(file.load().unwrap().is_none());
        let mut recording = Recording::new(8);
        for offset in [4096, 0, 8192] {
            recording.push(offset);
        }
        assert_eq!(recording.len(), 2, "a quarter");
        file.save(&recording.working_set()).unwrap();
        let set = file.load().unwrap().unwrap();
        assert_eq!(set.runs().collect::<Vec<_>>(), [1..2, 0..1]);
        std::fs::write(&path, [1; 12288]).unwrap();
        let changed = WorkingSetFile::beside(&open());
        assert!(changed.load().unwrap().is_none());
    }
}
