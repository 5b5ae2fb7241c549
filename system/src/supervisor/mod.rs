//! The system domain of one process tree, inside the process that
//! started it.
//!
//! It owns the [`frames::Ledger`] and the shared store of the tree, admits every process as
//! a domain, and takes back what a dead one held. Where the tree has a contract with the
//! daemon, it keeps that for all of them (`daemon_link`).
//!
//! [`client`] is the other side, called inside a preloaded library's constructor and in the
//! child of a fork: raw system calls only, nothing allocated.

pub mod client;
pub(crate) mod connector;
pub(crate) mod daemon_link;
pub mod direct_io_filter;
pub mod elf_check;
pub mod fault_limits;
pub(crate) mod fence;
pub(crate) mod finished_totals;
pub mod handshake;
pub mod memory_sampler;
pub(crate) mod orphaned_memory;
pub mod process_tree;
pub(crate) mod processes;
pub mod server;
pub(crate) mod sockets;
pub mod stats_page;
