//! One run of a program under a supervisor: `selfpage run`.
//!
//! Four processes. The *front process* is the one that the user started: it stands for the program
//! towards the terminal and the shell, passing signals in and the status out. Its child,
//! the *supervisor*, is the parent of the *program*; another child, the *group witness*, receives the signals of their
//! group. Front process and supervisor are subreapers and watch each other: if one is killed, the other ends
//! every process below it, however that process has detached itself.

mod front_process;
mod group_signals;
mod ipc;
pub mod limits;
mod page_client_end;
pub mod program;
mod signals;
mod spawn;
mod start;
mod supervise;

pub use front_process::{open_descriptors, run};

use crate::Supervisor;
use crate::fault_limits::TreeFaultLimits;
use crate::memory_sampler::Sampler;
use crate::page_client_link::PageClientConnection;
use host::cpu_reservation::CpuReservation;
use link::handshake::RunFlags;
use program::Program;
use rustix::fd::{OwnedFd, RawFd};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use store::StoreConfig;
use tenant::ContractRequest;
use wired::Bytes;

/// Exit status of `selfpage`'s own failures, as of env(1) and timeout(1).
pub const OWN_FAILURE: u8 = 125;

/// The program to run and the resources that it gets; all were checked.
pub struct RunSpec {
    /// The program.
    pub program: Program,
    /// The value that LD_PRELOAD gets.
    pub preload: OsString,
    /// Frames of the whole tree.
    pub frames: u32,
    /// The store for evicted pages; `None` in a run within another run, which has the store.
    pub store: Option<StoreConfig>,
    /// The store to use if the file of a default store cannot be made after all.
    pub fallback_store: Option<StoreConfig>,
    /// The most bytes of the frames that may hold compressed pages; half of the frames at most. `None` means half
    /// under the daemon. Without the daemon it means zero: compressed RAM is then beside the frames.
    pub ram: Option<u64>,
    /// The daemon's socket, and the contract to request.
    pub daemon: Option<(PathBuf, ContractRequest)>,
    /// The page client, where the store is remote or of objects.
    pub page_client: Option<PageClientConnection>,
    /// The fault rate.
    pub fault_limits: Option<TreeFaultLimits>,
    /// The processor time that is reserved.
    pub cpu: Option<CpuReservation>,
    /// The options that every process of the tree receives.
    pub flags: RunFlags,
    /// /dev/userfaultfd, where it could be opened.
    pub userfaultfd: Option<OwnedFd>,
    /// True if processes that outlive the program are killed. Otherwise the contract is kept until the last
    /// process has ended, and signals go to all of them.
    pub kill_survivors: bool,
    /// True if processes of other users may page, too.
    pub share_store: bool,
    /// An inherited descriptor that makes the tree careful from the start.
    pub direct_io: Option<String>,
    /// Descriptors of the caller that stay open.
    pub kept_fds: Vec<RawFd>,
}

/// A run whose last process has ended.
pub struct FinishedRun<'a> {
    /// What was requested.
    pub spec: &'a RunSpec,
    /// The ledger, the store and the metrics.
    pub supervisor: &'a Supervisor,
    /// The memory that was sampled.
    pub sampler: &'a Sampler,
    /// How long the tree ran.
    pub time: Duration,
    /// The program's wait status.
    pub status: i32,
}

/// The notice that a store is in RAM alone because its file cannot be made.
pub fn ram_alone_notice(store: &StoreConfig, why: &str) -> String {
    format!(
        "no swap file can be made ({why}), so pages go to compressed RAM alone, at most {}: free some room, or \
         name a store with --store",
        Bytes(store.ram.unwrap_or(0))
    )
}
