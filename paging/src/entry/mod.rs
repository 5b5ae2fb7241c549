//! The memory management entry: where faults arrive.
//!
//! Nemesis, section 6.5: the kernel's part of a fault ends with its dispatch; the domain
//! does the rest. A *notification handler* makes a first attempt where waiting is not
//! possible; what it cannot do, a worker thread does, and only the faulting thread waits. Here
//! the thread of the first attempt makes the later ones too (`resolve.rs`).
//!
//! Two kinds, for two kinds of program:
//! - [`upcall`]: the fault is a signal to the faulting thread itself (4.6 us with a page
//!   copied in, 2.5 us in aggregate with two threads). No privilege. For explicit data
//!   stretches: a system call given a missing page fails with `EFAULT`.
//! - [`thread`]: the fault is a message to a handler thread on the faulting processor
//!   (10.9 us; 5.7 us in aggregate). Faults inside system calls resolve too, so that any
//!   memory of an unmodified program can be paged.

pub(crate) mod crowd;
mod deferred;
mod dispatch;
pub(crate) mod failed_pages;
pub(crate) mod idle;
mod poll;
pub(crate) mod registry;
pub(crate) mod signals;
pub(crate) mod thread;
pub(crate) mod throttled;
pub(crate) mod upcall;

pub use registry::set_region_handler;
