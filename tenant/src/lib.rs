//! A tenant's side of its contract with the daemon.
//!
//! A tenant holds one contract: a tree of processes, represented by its supervisor,
//! or one program that links the library. It sends one request, gets frames by the limit of its
//! ledger and disk time by its IO channels, and then receives revocations now and then.
//!
//! Rule: it outlives the daemon. The tenant holds the memory of its ledger and of its
//! channels; a daemon that was started again is handed them and goes on where the first
//! stopped. Meanwhile faults that need the disk wait, and frames stay as they are.
//!
//! | file | what it is |
//! |---|---|
//! | `linked` | **the way in for a linked program**: [`LinkedTenant`] |
//! | `file` | disk time for a file of one's own |
//! | `admin`, `trace` | requests without a contract |
//! | `session`, `event`, `connection` | for a tree and for a linked program alike: the messages, coming back to a daemon, the revocation in progress |
//! | `numa` | frames of one NUMA node |

mod admin;
mod connection;
mod event;
pub mod file;
mod linked;
mod linked_error;
mod numa;
mod outage;
mod session;
pub mod trace;

pub use admin::{books, list, set};
use connection::{converse, reach};
pub use event::{Revocation, SessionEvent};
pub use linked::{DomainResources, LinkedTenant, RevocationPolicy};
pub use linked_error::LinkedError;
pub use numa::bind_to_node;
pub use session::Session;

use protocol::contract_spec::{DiskSpec, FramePlacement, FrameSpec};
use rustix::io::Errno;
use std::path::PathBuf;

/// The contract that a tenant requests; a field that is `None` takes the daemon's default.
#[derive(Clone, Debug, Default)]
pub struct ContractRequest {
    /// What it is called, for people.
    pub name: String,
    /// Frames.
    pub frames: Option<FrameSpec>,
    /// Disk time.
    pub disk: Option<DiskSpec>,
    /// Bytes of swap.
    pub swap: Option<u64>,
    /// Which frames; any where `None`. The daemon checks that the machine has such; the tenant
    /// gets them from the kernel ([`bind_to_node`], `allocate_huge`).
    pub place: Option<FramePlacement>,
}

/// Why there is no contract.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// No daemon listens.
    #[error(
        "no daemon listens at {}: {why}; start one (selfpage system --config FILE), or name its socket (--system=PATH)",
        path.display()
    )]
    Nobody {
        /// Where it was looked for.
        path: PathBuf,
        /// What the kernel says.
        why: Errno,
    },
    /// Its socket is not this user's.
    #[error("the socket of the daemon, {}, keeps this user out: {}", path.display(), Errno::ACCESS)]
    KeptOut {
        /// The socket.
        path: PathBuf,
    },
    /// This process has no descriptors left.
    #[error(
        "no descriptor is left for a connection to the daemon: the limit on open files (`ulimit -n`) is too low"
    )]
    NoDescriptor,
    /// The daemon refused.
    #[error("the daemon refuses: {0}")]
    Refused(String),
    /// The daemon's message is not of this build's protocol.
    #[error("the daemon at the socket is of another version: install both from one build")]
    OtherBuild,
    /// The daemon disconnected, or does not reply.
    #[error("the daemon stopped answering: {}", silence(*.0))]
    Silent(Errno),
    /// The daemon ended before its reply, and the next admits another contract.
    #[error(
        "the daemon was started again while it was asked for {asked}, and now gives {given}: ask again"
    )]
    Changed {
        /// What the first gave.
        asked: String,
        /// What the next gives.
        given: String,
    },
}

/// Why a daemon is silent.
fn silence(errno: Errno) -> String {
    match errno {
        Errno::TIMEDOUT => {
            "it may be stopped (`kill -CONT` its process has it go on), or busy: ask again"
                .to_owned()
        }
        errno => errno.to_string(),
    }
}

impl TenantError {
    /// Returns true if the daemon has ended, and the next may reply.
    fn is_end(&self) -> bool {
        matches!(
            self,
            Self::Silent(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
        )
    }
}
