//! The local paging file behind paging servers, which has the pages that no server takes (`disk::usd::last_resort`).

use crate::process::{ClientError, RemoteConfig, call};
use disk::usd::Transport;
use disk::usd::last_resort::{LastResort, PlacesSize, SPARE_SLOTS};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::Arc;
use wired::{PAGE, WiredMemory};

/// The file.
#[derive(Clone, Debug)]
pub struct PagingFile {
    /// It is allocated whole, [`PagingFile::bytes`] long.
    pub file: Arc<OwnedFd>,
    /// Bytes of pages.
    pub size: u64,
}

impl PagingFile {
    /// Bytes of a file for so many bytes of pages.
    pub fn bytes(size: u64) -> u64 {
        LastResort::file_bytes(size)
    }

    fn places_size(&self, inner: u64) -> PlacesSize {
        PlacesSize {
            inner: (inner / PAGE as u64) as u32,
            file: (self.size / PAGE as u64) as u32,
            spare: SPARE_SLOTS,
        }
    }

    /// A transport that has the file beside another one.
    pub(crate) fn wrap(
        &self,
        inner: impl Transport + 'static,
        inner_bytes: u64,
        places: &Arc<WiredMemory>,
    ) -> Result<Box<dyn Transport>, ClientError> {
        let table = (Arc::clone(places), 0);
        let size = self.places_size(inner_bytes);
        let transport = LastResort::new(Box::new(inner), self.file.as_fd(), table, size);
        Ok(Box::new(transport.map_err(call("take the paging file"))?))
    }
}

/// The table of the pages' places of a client with a file, in memory that outlives its process.
pub(crate) fn new_places(config: &RemoteConfig) -> io::Result<Option<Arc<WiredMemory>>> {
    let Some(file) = &config.paging_file else {
        return Ok(None);
    };
    let bytes = file.places_size(config.size).table_bytes();
    let (memory, _) = WiredMemory::shared(bytes, "selfpage-places")?;
    Ok(Some(Arc::new(memory)))
}
