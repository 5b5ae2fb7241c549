//! Fork: the child of a process holds what its parent has stored, copy on write.
//!
//! A stored page is not copied: each holder has a reference, and a page that one of them writes
//! again gets another handle. A child that dies meanwhile leaves its intent, which recovery
//! finishes (`recovery.rs`).

use crate::HolderId;
use crate::inner::StoreInner;

impl StoreInner {
    /// Shares the parent's stored pages with the child by a reference to each. Drops what the
    /// child's slot held before.
    pub fn adopt_fork(&self, parent: HolderId, child: HolderId) {
        if self.page_index.refs.is_used(child) {
            self.retire(child, false);
        }
        let note = self.page_index.intents.begin(child, 0);
        self.page_index.adopt(parent, child, &note);
    }
}
