//! The pages of the runs that spaces use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A run's pages, as a part of those of all runs that are used.
pub(crate) struct UsedPages {
    all: Arc<AtomicUsize>,
    pages: usize,
}

impl UsedPages {
    pub(crate) fn of(all: &Arc<AtomicUsize>, pages: usize) -> Self {
        all.fetch_add(pages, Ordering::Relaxed);
        Self {
            all: all.clone(),
            pages,
        }
    }
}

impl Drop for UsedPages {
    fn drop(&mut self) {
        self.all.fetch_sub(self.pages, Ordering::Relaxed);
    }
}
