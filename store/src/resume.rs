//! A store whose only process was killed, as another one goes on with it.
//!
//! The caller keeps, in memory of its own that outlives it, the handles of its pages. What the store holds beyond these
//! was written and not noted, or was to be discarded: it is released. So neither the caller nor the store needs a log
//! of what they do together.

use crate::error::SetupError;
use crate::growth::Growth;
use crate::shared::duplicate;
use crate::{HolderId, PageHandle, SharedStore, StoreConfig};
use rustix::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// The process that makes a store is its first holder.
const OWNER: HolderId = 0;

impl SharedStore {
    /// Goes on with the store that a process made which has ended, from the descriptors that
    /// [`SharedStore::create`] returned, with the pages that `is_kept` names. No other process has joined it.
    pub fn resume(
        config: &StoreConfig,
        fds: Vec<OwnedFd>,
        is_kept: &dyn Fn(PageHandle) -> bool,
    ) -> Result<Self, SetupError> {
        let grows = config.disk.as_ref().is_some_and(|disk| disk.grows);
        let file = match fds.last() {
            Some(last) if grows => Some(duplicate(last)?),
            _ => None,
        };
        let mut store = Self::attach(fds, OWNER)?;
        store.is_attached = false;
        let inner = &store.inner;
        if !inner.release_all_but(OWNER, is_kept) {
            return Err(SetupError::NotAStore("another process has a page locked"));
        }
        if let (Some(bloks), Some(file)) = (&inner.bloks, file) {
            let most = inner.tables.geometry.bloks as u64;
            let growth = Growth::resume(file, most, bloks);
            store.growth = Arc::new(Mutex::new(Some(growth)));
        }
        Ok(store)
    }

    /// Returns true if this is a page that the store's holder has.
    pub fn is_held(&self, handle: PageHandle) -> bool {
        let index = &self.inner.page_index;
        index.refs.has(self.holder(), handle.get()) && index.find(handle).is_some()
    }
}
