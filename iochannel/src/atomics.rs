//! The shared words, or under loom its models of them.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, fence};
