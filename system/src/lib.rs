//! The system domain: contracts, and the doors by which programs come to them.
//!
//! Nemesis has one trusted *system domain* that owns the frames allocator and the paging
//! disk and hands each domain its share (paper 000, sections 6.2 and 6.7). It comes in two
//! sizes here: [`embedded`], in the process that started a tree, and [`daemon`], for a
//! machine. [`tenant`] is what a tree or a linked program does to have a contract with the
//! daemon; they speak in [`control`]'s messages, of [`terms`]. [`membership`] says which control
//! groups a process is in, for whoever limits it or is limited.
//!
//! Rule: the system domain is never on the page path. A process asks it once, when its
//! image starts, and then faults, evicts and does its I/O alone over shared memory.

pub mod control;
pub mod daemon;
pub mod embedded;
pub mod membership;
pub mod reservation;
pub mod socket;
pub mod tenant;
pub mod terms;

pub use embedded::board::{self, Board, Figure};
pub use embedded::pageable::{self, Unpageable, pageable};
pub use embedded::server::{self, Event, Settings, StartError, System};
pub use embedded::wire::{self, Domain, Hello, Options, Slot, Welcome};
pub use embedded::{client, notify, pace, sample, tree};
pub(crate) use embedded::{connector, doors, fence, figures, members, upstream};

/// Frames a process is guaranteed, and the least a contract may hold for each process
/// of the tree: one instruction can need two operands that each straddle a page (4),
/// and the pager nails the pages the kernel writes behind its back (thread control
/// block, robust list) and those the C library needs before its fork handlers run.
pub const MIN_FRAMES: u32 = 16;

/// Processes of one tree that may page at a time: the width of the shared tables.
pub const MAX_PROCESSES: u16 = 1024;
