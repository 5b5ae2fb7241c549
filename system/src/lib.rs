//! The system domain: contracts, and the sockets by which programs request them.
//!
//! Nemesis has one trusted *system domain* that owns the frames allocator and the paging
//! disk and hands each domain its share (paper 000, sections 6.2 and 6.7). It comes in two
//! sizes here: [`supervisor`], in the process that started a tree, and [`daemon`], for a
//! machine. [`tenant`] is the client side of the daemon, for a tree or a linked program; both
//! sides exchange the messages of [`protocol`], which carry the contracts of [`contract_spec`].
//! [`membership`] reads the control groups of a process.
//!
//! Rule: the system domain is never on the page path. A process sends it one request, when its
//! image starts, and then faults, evicts and does its I/O alone over shared memory.

pub mod contract_spec;
pub mod daemon;
pub mod membership;
pub mod protocol;
pub mod reservation;
pub mod seqpacket;
pub mod supervisor;
pub mod tenant;

pub use supervisor::elf_check::{self, Unpageable, pageable};
pub use supervisor::handshake::{self, Domain, Hello, Options, Slot, Welcome};
pub use supervisor::server::{self, Event, Settings, StartError, System};
pub use supervisor::stats_page::{self, Board, Figure};
pub use supervisor::{client, direct_io_filter, fault_limits, memory_sampler, process_tree};
pub(crate) use supervisor::{
    connector, daemon_link, fence, finished_totals, orphaned_memory, processes, sockets,
};

/// Frames a process is guaranteed, and the least a contract may hold for each process
/// of the tree: one instruction can need two operands that each straddle a page (4),
/// and the pager nails the pages the kernel writes behind its back (thread control
/// block, robust list) and those the C library needs before its fork handlers run.
pub const MIN_FRAMES: u32 = 16;

/// Processes of one tree that may page at a time: the width of the shared tables.
pub const MAX_PROCESSES: u16 = 1024;
