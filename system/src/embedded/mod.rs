//! The system domain in its embedded size: of one process tree, inside the process that
//! started it.
//!
//! It owns the [`frames::Ledger`] and the shared store of the tree, admits every process as
//! a domain, and takes back what a dead one held. Where the tree has a contract with the
//! daemon, it keeps that for all of them (`upstream`).
//!
//! [`client`] is the other side, called inside a preloaded library's constructor and in the
//! child of a fork: raw system calls only, nothing allocated.

pub mod board;
pub mod client;
pub(crate) mod connector;
pub(crate) mod doors;
pub(crate) mod fence;
pub(crate) mod figures;
pub(crate) mod members;
pub mod notify;
pub mod pace;
pub mod pageable;
pub mod sample;
pub mod server;
pub mod tree;
pub(crate) mod upstream;
pub mod wire;
