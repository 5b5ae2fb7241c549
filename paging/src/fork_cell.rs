//! A value that the child of a fork replaces by one of its own.

use std::cell::UnsafeCell;

/// Read by every thread of the pager; written only while no other thread reads it.
pub(crate) struct ForkCell<T>(UnsafeCell<T>);

// SAFETY: shared references only, but for `replace`, whose caller is the only thread.
unsafe impl<T: Send + Sync> Sync for ForkCell<T> {}

impl<T> ForkCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(crate) fn get(&self) -> &T {
        // SAFETY: replaced only while no thread holds a reference.
        unsafe { &*self.0.get() }
    }

    /// Replaces the value. The destructor of the old one does not run: the descriptors that it
    /// would close belong to the parent, and have other meanings here.
    ///
    /// # Safety
    /// No reference to the value is in use: for the only thread of a fork's child.
    pub(crate) unsafe fn replace(&self, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.0.get().write(value) }
    }
}
