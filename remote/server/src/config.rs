//! What a paging server is started with.

use crate::accept::Accept;
use crate::server::StartError;
use remote_policy::capacity::CapacityConfig;
use remote_policy::identity::Incarnation;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use wired::PAGE;

/// Frames before a disk: many times what requests in flight take.
pub(crate) const LEAST_CACHE: u32 = 1024;

/// Makes the links of connections that were accepted: `Link::plain`, or a [`crate::KeyedAcceptor`].
pub type Acceptor = Box<dyn Accept>;

/// What a paging server is started with.
pub struct ServerConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Which server it is.
    pub server: Incarnation,
    /// Its host's name, for people.
    pub name: String,
    /// RAM for pages, in bytes.
    pub ram: u64,
    /// A file for pages.
    pub disk: Option<DiskConfig>,
    /// How it lends.
    pub capacity: CapacityConfig,
    /// How it follows the host's own demand; `None` if it does not.
    pub host: Option<HostThresholds>,
    /// Most connections at once, up to [`crate::MAX_CONNECTIONS`]; a quarter of them, and 8 at least, of one address.
    pub most_connections: usize,
    /// How long a client may leave its replies unread, or a connection without a name.
    pub patience: Duration,
    /// Makes links of connections.
    pub acceptor: Acceptor,
}

/// A file for pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
}

/// When the host needs its memory itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostThresholds {
    /// Available memory that stays the host's, in bytes.
    pub keep_available: u64,
    /// Share of the last ten seconds, in hundredths, in which tasks of the host waited for memory
    /// (`some avg10` of /proc/pressure/memory). Above it, while little is available, the server lends nothing
    /// more and shrinks.
    pub pressure_percent: f64,
}

impl ServerConfig {
    /// The frames of the RAM.
    pub(crate) fn frames(&self) -> Result<u32, StartError> {
        let frames = u32::try_from(self.ram / PAGE as u64).unwrap_or(0);
        let refuse = |expected: &str| {
            let text = format!("{} of RAM{expected}", wired::Bytes(self.ram));
            Err(StartError::Size(text))
        };
        match self.disk {
            _ if frames == 0 => refuse(": expected 4K to 15T"),
            Some(_) if frames < LEAST_CACHE => refuse(" before a disk: expected 4M or more"),
            _ => Ok(frames),
        }
    }

    /// The parameters of lending that a server has unless it is configured otherwise.
    pub fn default_capacity() -> CapacityConfig {
        CapacityConfig {
            // What the host needs is kept apart by `HostThresholds`, not by a part of the pages.
            lend_above_pages: 0,
            revoke_below_pages: 0,
            lendable_time: disk::atropos::Utilization::percent(95),
            lease: Duration::from_secs(60),
            notice: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
        }
    }
}
