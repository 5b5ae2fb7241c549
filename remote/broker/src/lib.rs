//! The broker as a running thing: beside every paging server a candidate, and for clients the way to it.
//!
//! *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp, 1991), sections 3.2 and 3.5. What is
//! decided is in `remote-policy`; here it gets sockets and a clock.
//!
//! | module | what it is |
//! |---|---|
//! | `protocol`, `frame`, `link` | the messages, how they go on a stream, and the one place that connects |
//! | `host` | the task of a host, which owns what follows |
//! | `seat`, `etcd` | what decides which host has the broker: the tournament, or a lease in etcd |
//! | `permits`, `uses` | the broker's desk: clients' requests and servers' answers; what clients report of their use |
//! | `paging_server` | what brokers ask of this host's server |
//! | `directory`, `peers` | the hosts, and the connections to them |
//! | `listener` | the control port |
//! | `membership`, `membership_socket`, `member_timers`, `known_part`, `discovery`, `introduction` | the hosts in reach: SWIM; questions on the link; first contacts |
//! | `own_address`, `resolver` | where other hosts reach this one; where hosts are that are named |
//! | `client` | the other side: finds the broker and asks it |
//!
//! Rules:
//! - The control plane has a port of its own ([`CONTROL_PORT`]): the thread that serves pages accepts none of
//!   its connections, and a firewall can tell them apart.
//! - Nothing here is on the path of a page. With every broker gone, reads and writes go on.
//! - What decides goes over connections; datagrams only say which addresses are worth one.

mod address_limit;
pub mod client;
mod directory;
pub mod discovery;
mod etcd;
pub mod frame;
mod host;
mod introduction;
mod known_part;
pub mod link;
mod listener;
mod member_timers;
mod membership;
mod membership_socket;
mod own_address;
mod paging_server;
mod peer_log;
mod peers;
mod permits;
mod plausible;
pub mod protocol;
mod resolver;
mod running;
mod seat;
mod status_cut;
#[cfg(test)]
mod test_member;
mod uses;

pub use etcd::{EtcdAddress, InvalidEtcdAddress};
pub use running::{BrokerConfig, RunningBroker, StartError};
pub use seat::{InvalidSeat, Seat, SeatConfig, Tournament};

/// What a control port is above its paging server's: an invitation waits at the port between them.
pub const CONTROL_OFFSET: u16 = 2;

/// The control port of a host, unless configured otherwise.
pub const CONTROL_PORT: u16 = remote_wire::PORT + CONTROL_OFFSET;
