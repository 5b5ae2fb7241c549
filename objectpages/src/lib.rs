//! Pages of a tree of processes in the objects of a store, as a log of segments.
//!
//! An object for each page is right for no store that has a price or a round trip for each request. So the writes that
//! are under way at once become one object, a *segment*, which is never written again (the log of Rosenblum and
//! Ousterhout's *The Design and Implementation of a Log-Structured File System*, 1992). A page's place is in memory that
//! outlives the process; it is read by a range of its segment.
//!
//! | module | what it is |
//! |---|---|
//! | `segments` | which segments there are, how much of each is live, which one to clean: pure |
//! | `page_table` | the place and hash of each page, and the names of segments, in memory that outlives the process |
//! | `gather` | writes that become one segment |
//! | `operations` | what is asked of the store, in its threads, and how it ends |
//! | `parts`, `waiting_parts` | parts of the disk's thread that are under way; those that wait for a silent store |
//! | `transport`, `reading` | the transport; its reads |
//! | `refused_writes` | what the log says of writes that are refused |
//! | `cleaning`, `deletion` | live pages of a segment that is mostly dead, moved to another; segments without any |
//! | `process` | the process, which is a `pageclient` |
//!
//! Rules:
//! - A write is acknowledged when the store has acknowledged its segment. No page waits in memory for a segment to fill:
//!   a segment has what arrived while earlier ones were under way, so a slow store gets large ones.
//! - A segment's name is never used twice. A store that shows an old object, or a part of one, is found out by the hash.
//! - A segment is named in the kept memory before it is written, and until it is deleted: a process that goes on, or the
//!   one that ends the run, deletes all there are.

mod deletion;
mod gather;
mod operations;
mod page_table;
mod parts;
mod process;
mod reading;
mod refused_writes;
mod segments;
#[cfg(test)]
mod tests;
mod transport;
mod waiting_parts;

pub use process::{ObjectClientError, ObjectConfig, keep, run};
