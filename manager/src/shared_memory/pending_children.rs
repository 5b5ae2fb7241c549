//! Children of forks under way: what each inherits, as its parent mapped it before the kernel made the child. The parent may
//! end before the child joins the tree; the objects live on for the child.

use super::mappings::{Mappings, ObjectId};
use frames::DomainId;
use std::collections::BTreeMap;

/// What they inherit, by the domains that are reserved for them.
#[derive(Debug, Default)]
pub struct PendingChildren(BTreeMap<DomainId, Mappings>);

impl PendingChildren {
    /// Keeps what a child inherits, in place of what was kept for an earlier attempt to fork it, which is returned.
    pub fn insert(&mut self, child: DomainId, inherited: Mappings) -> Option<Mappings> {
        self.0.insert(child, inherited)
    }

    /// A child has joined, or is given up.
    pub fn remove(&mut self, child: DomainId) -> Option<Mappings> {
        self.0.remove(&child)
    }

    /// Returns true if a child inherits an object.
    pub fn has(&self, object: ObjectId) -> bool {
        self.0.values().any(|inherited| inherited.has(object))
    }

    /// The children that do not come any more: they have no domain.
    pub fn given_up(&self, has_domain: impl Fn(DomainId) -> bool) -> Vec<DomainId> {
        let children = self.0.keys().copied();
        children.filter(|child| !has_domain(*child)).collect()
    }
}
