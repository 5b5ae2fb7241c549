//! Real programs and hazards, run with the pager and without, and compared.
//!
//! The claim under test is the whole system's: an unmodified program gives, under
//! `selfpage run`, bit for bit what it gives without, in the memory it was promised.
//! So every case runs the program bare first (a case that fails there is no failure of the
//! pager), then under a contract, and compares the results. During the run the harness
//! measures the memory of the process tree from outside, and afterwards it looks for
//! anything that the run left behind.
//!
//! Rule: the harness uses neither the pager's own crates nor the pager's own figures. Memory
//! is measured in /proc, and the store's size is the one that the case set.

pub mod contract;
pub mod daemon;
pub mod etcd;
pub mod footprint;
pub mod hazard;
pub mod launch;
pub mod network;
pub mod noise;
pub mod outcome;
pub mod processes;
pub mod refusal;
pub mod sandbox;
pub mod verdict;
pub mod workload;

pub use contract::{Contract, Size, Under};
pub use daemon::{Daemon, Disks};
pub use launch::{Launch, Running};
pub use outcome::Outcome;
pub use sandbox::Sandbox;
pub use verdict::{Halt, Verdict};
