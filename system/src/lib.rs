//! The system domain of one process tree: its contract, its store, and the door by
//! which processes come in.
//!
//! Nemesis has one trusted *system domain* that owns the frames allocator and the
//! paging disk and hands each domain its share (paper 000, sections 6.2 and 6.7). This
//! crate is its embedded size: it lives in the process that started the tree
//! (`selfpage run`), owns the [`frames::Ledger`] and the shared store, admits every
//! process of the tree as a domain, and takes back what a dead one held.
//!
//! Rule: the system domain is never on the page path. A process asks it once, when its
//! image starts, and then faults, evicts and does its I/O alone over shared memory.
//!
//! [`client`] is the other side, called inside a preloaded library's constructor and in
//! the child of a fork: raw system calls only, nothing allocated.

pub mod board;
pub mod client;
pub mod control;
pub mod daemon;
mod doors;
mod fence;
mod figures;
pub mod file;
mod members;
pub mod notify;
pub mod pageable;
pub mod sample;
pub mod server;
pub mod socket;
pub mod tenant;
pub mod terms;
pub mod trace;
pub mod tree;
mod upstream;
pub mod wire;

pub use board::{Board, Figure};
pub use pageable::{Unpageable, pageable};
pub use server::{Event, Settings, StartError, System};
pub use wire::{Domain, Hello, Options, Slot, Welcome};

/// Frames a process is guaranteed, and the least a contract may hold for each process
/// of the tree: one instruction can need two operands that each straddle a page (4),
/// and the pager nails the pages the kernel writes behind its back (thread control
/// block, robust list) and those the C library needs before its fork handlers run.
pub const MIN_FRAMES: u32 = 16;

/// Processes of one tree that may page at a time: the width of the shared tables.
pub const MAX_PROCESSES: u16 = 1024;
