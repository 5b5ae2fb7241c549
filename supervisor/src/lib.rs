//! The supervisor of one process tree: the paper's system domain (*Self-Paging in the Nemesis
//! Operating System*, section 6) at the size of a tree, in the process that started it.
//!
//! It owns the [`frames::Ledger`] and the shared store of the tree, admits every process as
//! a domain, and reclaims the resources of dead processes. Where the tree has a contract with the
//! daemon, the supervisor holds it for all processes (`daemon_link`).
//!
//! Rule: the supervisor's loop is never on the page path. Two threads beside it are: those of compressed RAM
//! and of shared memory, which are domains of the tree.

mod channel_slots;
mod compressed_ram;
mod config;
mod connector;
mod daemon_link;
mod descriptor_reserve;
pub mod direct_io_filter;
mod discards;
pub mod fault_limits;
mod fence;
mod finished_totals;
mod links;
pub mod memory_sampler;
mod orphaned_memory;
pub mod page_client_link;
mod processes;
mod program_ends;
pub mod run;
pub mod server;
mod shared_memory;
mod sockets;
mod tree_store;

pub use config::{StartError, SupervisorConfig, TreeEvent};
pub use server::Supervisor;
