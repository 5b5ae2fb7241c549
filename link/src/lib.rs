//! The link between a process of a tree and its supervisor: the messages by which the process joins
//! ([`handshake`]), sent from a preloaded library ([`client`]), and the [`stats_page`].
//!
//! Rule: a process sends its supervisor one request, when its image starts, and then faults, evicts
//! and does its I/O alone over shared memory.

pub mod client;
mod connection;
pub mod handshake;
mod join_error;
pub mod shared_request;
pub mod stats_page;

/// Frames a process is guaranteed, and the least a contract may hold for each process
/// of the tree: one instruction can need two operands that each straddle a page (4),
/// and the pager nails the pages the kernel writes behind its back (thread control
/// block, robust list) and those the C library needs before its fork handlers run.
pub const MIN_FRAMES: u32 = 16;

/// Processes of one tree that may page at a time: the width of the shared tables.
pub const MAX_PROCESSES: u16 = 1024;
