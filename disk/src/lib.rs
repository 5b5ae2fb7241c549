//! The user-safe backing store: disk space and disk time under contract, where many programs
//! page to one disk.
//!
//! *Self-Paging in the Nemesis Operating System* (OSDI 1999), section 6.7: the swap filesystem
//! decides which client owns which part of a disk, the user-safe disk which client may use it when.
//!
//! Rule: control is apart from data. Nothing on the path of a page allocates extents, and nothing
//! that allocates extents waits for a page.

pub mod atropos;
pub mod calibrate;
pub mod cost_model;
pub mod swapfs;
pub mod time;
pub mod trace;
mod uring;
pub mod usd;
