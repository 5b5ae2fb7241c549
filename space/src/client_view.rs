//! No-exception mappings: the memory of a client that is not trusted (2.2, 3.4.1).
//!
//! A server maps a client's memory object. The client may truncate or revoke it at any time, and an
//! access of the server's to a page that is gone would be a SIGBUS. In a client view such an access
//! gets a scratch page of zeros: the server goes on, and the end of the call reports the fault. The
//! common case costs nothing: no copies, no checks at each access.
//!
//! The paper removes scratch mappings at each context switch, since no other thread of the client
//! may see them. Here a view is one thread's: each thread that works for a client has a view at
//! addresses of its own, so that no other thread sees its scratch pages, and no fault is taken for
//! another call's. The scratch pages are the view's alone and are gone when the call has ended; those that a pin keeps
//! are a fault of each later call, until the pin is dropped.
//!
//! The client's death takes no memory away: the kernel keeps an object while a process maps it.

use crate::address_space::AddressSpace;
use crate::error::SpaceError;
use crate::fault_record::FaultRecord;
use crate::flags::MapFlags;
use crate::local_file::check_local;
use crate::object::MemoryObject;
use crate::state::SpaceState;
use selfpage::Rights;
use std::marker::PhantomData;
use std::sync::Arc;

/// A client's memory in the address space of a server, for one thread of it.
pub struct ClientView<'a> {
    space: &'a AddressSpace,
    base: usize,
    len: usize,
    record: Arc<FaultRecord>,
    _one_thread: PhantomData<*const ()>,
}

// SAFETY: the view may go to another thread as a whole; it is not `Sync`, so that one thread at a
// time uses it.
unsafe impl Send for ClientView<'_> {}

/// The client's memory had no page where the server accessed it. The server read zeros there, and
/// what it wrote is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the client's memory had no page at offset {offset:#x}, the first of {count} such faults: the client truncated it, or lets nothing map it; scratch pages took its place"
)]
pub struct ClientFault {
    /// Faults during the call.
    pub count: u64,
    /// Where the first one was, in bytes from the view's beginning.
    pub offset: usize,
}

/// A pointer and a length of the client's that are not in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset:#x} are not within the client's {limit} bytes")]
pub struct OutOfBounds {
    /// The client's offset.
    pub offset: usize,
    /// The client's length.
    pub len: usize,
    /// Bytes of the view.
    pub limit: usize,
}

impl<'a> ClientView<'a> {
    pub(crate) fn new(
        space: &'a AddressSpace,
        object: &MemoryObject,
        rights: Rights,
    ) -> Result<Self, SpaceError> {
        check_local(object.as_fd())?;
        if object.is_empty() {
            return Err(SpaceError::Foreign("it has no bytes"));
        }
        let record = Arc::new(FaultRecord::default());
        let len = usize::try_from(object.len()).unwrap_or(usize::MAX);
        let flags = MapFlags::new(rights);
        let base = space.map_counted(None, len, object, 0, flags, Some(record.clone()))?;
        Ok(ClientView {
            space,
            base,
            len,
            record,
            _one_thread: PhantomData,
        })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the view has no bytes, which no view has.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Begins a call on the client's behalf.
    pub fn begin(&mut self) -> ClientCall<'_, 'a> {
        // A pin may have kept scratch pages of an earlier call.
        let _ = self.end_call();
        ClientCall { view: self }
    }

    /// Removes the scratch pages, which are erased, and takes the faults.
    fn end_call(&mut self) -> Result<(), ClientFault> {
        let Some((count, first)) = self.record.take() else {
            return Ok(());
        };
        let range = self.base..self.base + self.len;
        // A child of a fork has no entries: its parent's threads may have had the lock.
        if self.space.core.other_owner().is_none() {
            // The next access maps the object again.
            let left_scratch = self.space.core.with_vtlb(|vtlb| vtlb.discard(&range));
            if left_scratch != Ok(false) {
                self.record.note(first);
            }
        }
        Err(ClientFault {
            count,
            offset: first - self.base,
        })
    }
}

impl Drop for ClientView<'_> {
    fn drop(&mut self) {
        let Ok(mut state) = self.space.state() else {
            // A child's copy: the addresses are the parent's.
            return;
        };
        let mut views = state.views.iter_mut();
        if let Some(view) = views.find(|view| view.range.start == self.base) {
            view.has_ended = true;
        }
        release_ended(self.space, &mut state);
    }
}

/// Deallocates the views that have ended, except those that pins have pages of.
pub(crate) fn release_ended(space: &AddressSpace, state: &mut SpaceState) {
    let mut views = std::mem::take(&mut state.views);
    views.retain(|view| {
        if !view.has_ended || state.check_pins(&view.range).is_err() {
            return true;
        }
        let released = space.deallocate_range(state, &view.range);
        if let Err(error) = &released {
            eprintln!(
                "selfpage: the addresses of a client view that has ended cannot be released yet: {error}"
            );
        }
        released.is_err()
    });
    state.views = views;
}

/// A call on the client's behalf. Pointers that it translates are good until it ends.
pub struct ClientCall<'v, 'a> {
    view: &'v mut ClientView<'a>,
}

impl ClientCall<'_, '_> {
    /// Translates an offset and a length of the client's to a pointer of this space.
    ///
    /// The client may change the bytes at any time: read them once, with volatile reads or copies,
    /// and make no reference to them.
    pub fn translate(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        let limit = self.view.len;
        match offset.checked_add(len) {
            Some(end) if end <= limit => Ok(std::ptr::with_exposed_provenance_mut(
                self.view.base + offset,
            )),
            _ => Err(OutOfBounds { offset, len, limit }),
        }
    }

    /// Copies bytes of the client's.
    ///
    /// # Errors
    /// [`OutOfBounds`]. Bytes of a page that is gone are zeros: see [`ClientCall::end`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.translate(offset, into.len())?;
        // SAFETY: inside the view; an access to a page that is gone gets a scratch page.
        unsafe { std::ptr::copy(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes to the client's memory. The view's rights must allow it: a write to a read-only
    /// view is an exception of the server's own.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfBounds> {
        let into = self.translate(offset, from.len())?;
        // SAFETY: as for `read`.
        unsafe { std::ptr::copy(from.as_ptr(), into, from.len()) };
        Ok(())
    }

    /// Ends the call: removes scratch pages, and reports the faults that they answered.
    pub fn end(self) -> Result<(), ClientFault> {
        self.view.end_call()
    }
}

impl Drop for ClientCall<'_, '_> {
    /// A call that is given up ends like any other; its faults are forgotten.
    fn drop(&mut self) {
        let _ = self.view.end_call();
    }
}
