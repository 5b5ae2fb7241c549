//! The file table of the swap filesystem: what of the contracts it records, and the files it releases.
//!
//! Rule: what the device refuses is tried again once a second, and the log says so. A contract that the table does not
//! record is in force all the same.

use super::Contracts;
use disk::swapfs::{FileError, FileId};
use protocol::TenantNumber;
use std::collections::BTreeSet;

/// Changes of the table that the device refused.
#[derive(Default)]
pub(crate) struct UnwrittenChanges {
    records: BTreeSet<TenantNumber>,
    releases: Vec<FileId>,
}

impl Contracts {
    /// Records the contracts that have changed.
    pub(crate) fn persist_changed(&mut self) -> Result<(), FileError> {
        let changed = self.frames.update_records();
        let persisted = changed.into_iter().map(|number| self.persist(number));
        persisted.fold(Ok(()), Result::and)
    }

    /// Records a tenant for the next daemon.
    pub(crate) fn persist(&mut self, number: TenantNumber) -> Result<(), FileError> {
        let tenant = self.frames.tenants.get(number);
        let written = tenant.map_or(Ok(()), |tenant| self.disk.persist(tenant));
        let unwritten = &mut self.unwritten.records;
        match &written {
            Ok(()) => _ = unwritten.remove(&number),
            Err(why) if unwritten.insert(number) => {
                tracing::warn!(
                    "the contract of tenant {number} is not recorded, and is tried again: {why}"
                );
            }
            Err(_) => {}
        }
        written
    }

    /// Releases a tenant's swap file.
    pub(super) fn release_file(&mut self, number: TenantNumber, file: FileId) {
        if let Err(why) = self.disk.swap.release(file) {
            tracing::warn!(
                "the swap file of tenant {number} stays taken, and is tried again: {why}"
            );
            self.unwritten.releases.push(file);
        }
    }

    /// Tries what the device refused before.
    pub(crate) fn retry_writes(&mut self) {
        for number in self.unwritten.records.clone() {
            if self.persist(number).is_ok() {
                tracing::info!("the contract of tenant {number} is recorded");
            }
        }
        self.unwritten.releases.retain(|file| {
            let released = self.disk.swap.release(*file);
            if released.is_ok() {
                tracing::info!("{file} is free");
            }
            released.is_err_and(|why| !matches!(why, FileError::Missing(_)))
        });
    }
}
