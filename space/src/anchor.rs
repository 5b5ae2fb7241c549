//! The mapping that keeps a paged object's contents while no process maps it.

use crate::error::SpaceError;
use std::os::fd::BorrowedFd;
use translation::{Access, Reservation, Sharing};

/// A whole object, mapped without access. No child of a fork has it. Dropping it waits until the
/// pager has read that it is gone.
pub(crate) struct Anchor(Reservation);

impl Anchor {
    pub(crate) fn new(memory: BorrowedFd<'_>, len: usize) -> Result<Self, SpaceError> {
        let anchor = Self(translation::reserve(None, len, false)?);
        map_without_access(memory, 0, anchor.addr(), len)?;
        Ok(anchor)
    }

    pub(crate) fn addr(&self) -> usize {
        self.0.addr
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // SAFETY: reserved for the anchor, and never accessed.
        let _ = unsafe { translation::unmap_reservation(self.0) };
    }
}

/// Maps a part of a paged object over reserved addresses, without access: until the pager serves
/// its faults an access would put a page of zeros into the object. A child of a fork, whose faults
/// the pager does not serve, does not have the mapping.
pub(crate) fn map_without_access(
    memory: BorrowedFd<'_>,
    offset: u64,
    addr: usize,
    len: usize,
) -> Result<(), SpaceError> {
    // SAFETY: reserved by the caller.
    unsafe { translation::map_object(memory, offset, addr, len, Access::NONE, Sharing::Shared) }?;
    // SAFETY: the mapping just made, which has no contents of its own.
    Ok(unsafe { translation::prepare_for_pager(addr, len) }?)
}
