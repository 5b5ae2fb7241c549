//! A local paging file behind a client's transport, which has the pages that the transport does not take
//! ([`disk::usd::last_resort`]).

use disk::usd::Transport;
use disk::usd::last_resort::{LastResort, PlacesSize, SPARE_SLOTS};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
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

    /// A table of the pages' places, in memory that outlives the client's process, for a transport of so many bytes.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new_places(&self, inner_bytes: u64) -> io::Result<Arc<WiredMemory>> {
        let bytes = self.places_size(inner_bytes).table_bytes();
        let (memory, _) = WiredMemory::shared(bytes, "selfpage-places")?;
        Ok(Arc::new(memory))
    }

    /// A transport that has the file beside another one, of so many bytes.
    ///
    /// # Errors
    /// The kernel has no ring for the file.
    pub fn wrap(
        &self,
        inner: impl Transport + 'static,
        inner_bytes: u64,
        places: &Arc<WiredMemory>,
    ) -> Result<Box<dyn Transport>, Errno> {
        let table = (Arc::clone(places), 0);
        let size = self.places_size(inner_bytes);
        Ok(Box::new(LastResort::new(
            Box::new(inner),
            self.file.as_fd(),
            table,
            size,
        )?))
    }
}
