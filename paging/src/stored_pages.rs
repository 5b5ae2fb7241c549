//! The domain's side of its store.

use std::sync::atomic::{AtomicU32, Ordering};
use store::{HolderId, PageHandle, Store};

/// The store of a domain, if it has one, and the domain's number in it.
pub(crate) struct StoredPages {
    store: Option<&'static dyn Store>,
    holder: AtomicU32,
    name: String,
}

impl StoredPages {
    pub(crate) fn new(store: Option<&'static dyn Store>, holder: HolderId) -> Self {
        Self {
            store,
            holder: AtomicU32::new(u32::from(holder)),
            name: store.map_or_else(|| "none".to_owned(), |store| store.describe()),
        }
    }

    /// The store.
    pub(crate) fn get(&self) -> Option<&'static dyn Store> {
        self.store
    }

    /// What the store is called in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Releases this process's reference to a stored page.
    pub(crate) fn release(&self, handle: PageHandle) {
        if let Some(store) = self.store {
            let holder = self.holder.load(Ordering::Relaxed) as HolderId;
            store.discard(holder, &[handle]);
        }
    }

    /// Switches to the child process: its own number.
    pub(crate) fn become_child(&self, holder: HolderId) {
        self.holder.store(u32::from(holder), Ordering::Relaxed);
    }
}
