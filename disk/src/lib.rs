//! The user-safe backing store: where many programs page to one disk, each at the rate it
//! was promised.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.7.

pub mod atropos;
pub mod model;
pub mod time;
pub mod trace;
