//! What a paging server is started with.

use remote_policy::capacity::CapacityConfig;
use remote_policy::identity::Incarnation;
use remote_wire::Link;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// Makes the link of a connection that was accepted: plain, or with keys.
pub type Acceptor = Box<dyn FnMut(TcpStream) -> io::Result<Link> + Send>;

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
    /// (`some avg10` of /proc/pressure/memory). Above it the server lends nothing more and shrinks.
    pub pressure_percent: f64,
}

impl ServerConfig {
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
