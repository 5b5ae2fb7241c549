//! Real programs and hazards, run with the pager and without, and compared.
//!
//! The claim under test is the whole system's: an unmodified program gives, under
//! `selfpage run`, bit for bit what it gives without, in the memory it was promised.
//! So every case runs the program bare first (a case that fails there says nothing
//! about us), then under a contract, and compares what came out; meanwhile the process
//! tree is watched from outside for the memory it really has, and afterwards for
//! anything it left behind.
//!
//! Rule: nothing here uses the pager's own crates or believes its own figures. Memory
//! is what /proc says, and the store's size is what the case asked for.

pub mod contract;
pub mod daemon;
pub mod footprint;
pub mod hazard;
pub mod launch;
pub mod noise;
pub mod processes;
pub mod refusal;
pub mod sandbox;
pub mod verdict;
pub mod workload;

pub use contract::{Contract, Size, Under};
pub use daemon::{Daemon, Disks};
pub use launch::{Launch, Outcome, Running};
pub use sandbox::Sandbox;
pub use verdict::{Halt, Verdict};
