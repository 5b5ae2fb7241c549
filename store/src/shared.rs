//! One store for a tree of processes.

use crate::inject::Inject;
use crate::{Channel, Checksum, Handle, Holder, SetupError, Store, StoreConfig, StoreError, Usage};
use rustix::fd::OwnedFd;

/// A store in shared memory.
pub struct SharedStore {}

impl SharedStore {
    /// Makes a store with slots for holders 0 to `max_holders` - 1, attached as holder 0.
    /// The descriptors are what another process needs to [`SharedStore::attach`].
    pub fn create(
        config: &StoreConfig,
        max_holders: u16,
    ) -> Result<(Self, Vec<OwnedFd>), SetupError> {
        let _ = (config, max_holders);
        todo!()
    }

    /// Joins the store behind `fds`, in the order `create` gave them, as `holder`.
    pub fn attach(fds: Vec<OwnedFd>, holder: Holder) -> Result<Self, SetupError> {
        let _ = (fds, holder);
        todo!()
    }

    /// Channels made from now on work for `holder`: for the child of a fork.
    pub fn set_holder(&self, holder: Holder) {
        let _ = holder;
        todo!()
    }

    /// The holder channels are made for.
    pub fn holder(&self) -> Holder {
        todo!()
    }

    /// Channels made from now on use this descriptor of the swap file: where the one the
    /// store had is gone, or is in another descriptor table. The old one is not closed.
    pub fn reopen(&self, swap: OwnedFd) {
        let _ = swap;
        todo!()
    }

    /// Makes the disk misbehave from now on, in every process of the tree. For tests.
    pub fn inject(&self, plan: Inject) {
        let _ = plan;
        todo!()
    }
}

impl Store for SharedStore {
    fn describe(&self) -> String {
        todo!()
    }
    fn channel(&self, _depth: usize) -> Result<Box<dyn Channel>, StoreError> {
        todo!()
    }
    fn discard(&self, _slot: Holder, _handles: &[Handle]) {
        todo!()
    }
    fn checksum(&self, _handle: Handle) -> Checksum {
        todo!()
    }
    fn usage(&self) -> Usage {
        todo!()
    }
    fn adopt_fork(&self, _parent: Holder, _child: Holder) {
        todo!()
    }
    fn retire(&self, _holder: Holder) -> bool {
        todo!()
    }
}
