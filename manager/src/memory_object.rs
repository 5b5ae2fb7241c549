//! The memory-object protocol: what a pager asks of whatever has a page's contents.
//!
//! Mach's kernel sent these messages to a memory manager's port (*Moving the Default Memory Manager out of
//! the Mach Kernel*, section 3); here the pager of a client (`ClientPager`) sends them as calls, since both
//! are in one process. Constructors are *create*, [`DataReply`] is *data provided*, *data unavailable*
//! and *data error*. A client's memory is a shadow object: pages that were written are in its
//! [`crate::paging_object::PagingObject`], the others in the [`crate::snapshot::Snapshot`] below it.

use store::{PageHandle, StoreError};

/// The reply to a data request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataReply {
    /// Data provided: the contents begin here, and stay until the object's next request.
    Provided(*const u8),
    /// Data unavailable: the page reads zero.
    Unavailable,
    /// Data error: the contents are lost.
    Error(StoreError),
}

/// Where an object has a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageName {
    /// Bytes from the object's start.
    pub offset: u64,
    /// The copy that a data write returned, where there was one.
    pub copy: Option<PageHandle>,
}

/// An object that has contents of pages.
pub trait MemoryObject {
    /// Data request: the contents of `len` bytes from `page` on.
    fn data_request(&mut self, page: PageName, len: usize) -> DataReply;
}

/// An object that takes pages back.
pub trait WritableObject: MemoryObject {
    /// Data write: takes pages, each of 4 KiB. `done` receives each page's number in `pages` and the
    /// name of the copy, or why it was not taken: the page then stays where it was.
    fn data_write(
        &mut self,
        pages: &[store::WritePage],
        done: &mut dyn FnMut(usize, Result<PageHandle, StoreError>),
    );

    /// Releases a copy.
    fn release(&mut self, copy: PageHandle);

    /// Returns true if the contents are those of the copy, so that nothing need be written.
    fn is_copy(&self, copy: PageHandle, page: &[u8; wired::PAGE]) -> bool;
}
