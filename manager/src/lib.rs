//! The memory manager: a pager outside its clients, for memory that cannot carry its own.
//!
//! After *Moving the Default Memory Manager out of the Mach Kernel* (Golub and Draves, 1991).

mod admission;
pub mod client;
pub mod client_memory;
pub mod counters;
pub mod disk_turns;
pub mod handoff;
pub mod memory_object;
pub mod page_table;
pub mod paging_object;
pub mod peer;
pub mod recording;
pub mod server;
pub mod snapshot;
pub mod standby;
mod wiring;

pub use wiring::wire;
