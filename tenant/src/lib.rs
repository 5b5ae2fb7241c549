//! A tenant's side of its contract with the daemon.
//!
//! A tenant holds one contract: a tree of processes, represented by its supervisor,
//! or one program that links the library. The tenant sends one request, gets frames by the limit of its
//! ledger and disk time by its IO channels, and then receives revocations now and then.
//!
//! Rule: a contract outlives the daemon. The tenant holds the memory of its ledger and of its
//! channels; it sends them to the next daemon, which goes on where the former
//! stopped. Meanwhile faults that need the disk wait, and frames stay as they are.
//!
//! | file | what it is |
//! |---|---|
//! | `linked` | **the way in for a linked program**: [`LinkedTenant`] |
//! | `file` | disk time for a file of one's own |
//! | `admin`, `trace` | requests without a contract |
//! | `session`, `event`, `connection` | for a tree and for a linked program alike: the messages, reconnecting to a daemon, the revocation in progress |
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

pub use admin::{capacity, list, set};
use connection::{connect, exchange};
pub use event::{Revocation, SessionEvent};
pub use linked::{DomainResources, LinkedTenant, RevocationPolicy};
pub use linked_error::LinkedError;
pub use numa::bind_to_node;
pub use session::Session;

use protocol::contract_spec::{DiskSpec, FramePlacement, FrameSpec};
use rustix::io::Errno;
use std::path::PathBuf;

/// The contract that a tenant requests; the daemon's default takes the place of a field that is `None`.
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
    /// Which frames; any where `None`. The daemon checks that the machine has such frames; the tenant
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
    NoDaemon {
        /// The path of the socket.
        path: PathBuf,
        /// The kernel's error.
        why: Errno,
    },
    /// This user may not connect to the daemon's socket.
    #[error("this user may not connect to the daemon's socket {}: {}", path.display(), Errno::ACCESS)]
    NotPermitted {
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
        "the daemon was started again while a contract of {requested} was requested, and now grants {granted}: request it again"
    )]
    Changed {
        /// The contract that the former daemon granted.
        requested: String,
        /// The contract that the next daemon grants.
        granted: String,
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
