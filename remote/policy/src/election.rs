//! The tournament: how one broker comes to control all servers, two candidates at a time.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, section 3.5.1. Every host begins as broker
//! of its own server. A candidate's bid is the number of servers that it controls; a candidate
//! with the lower bid concedes, and the winner takes its servers over. A candidate that has
//! conceded never wins a later round, so there is no round at all for it: it makes no bid, and a
//! concession that reaches it late goes on to its own winner. Where a broker falls silent, each of
//! its servers' hosts becomes a candidate again (regeneration). Allocations go on meanwhile: a
//! server serves the broker whose epoch holds it until it grants itself to a higher one.
//!
//! Rule: pure, and correct without clocks. Ticks and messages go in, messages come out; ticks may
//! come at any time and messages be lost, duplicated and reordered, which costs rounds, not
//! safety: a server grants itself to one epoch at a time, epochs only rise, and no two brokers
//! have one epoch. Equal bids are settled by the lower host. `tests/election_model` checks it.

mod bid;
mod candidate;
mod leased;
mod peer_list;

pub use bid::Bid;
pub use candidate::{Candidate, Role};
pub use leased::{LeasedAction, LeasedCandidate};
pub use peer_list::PeerList;

use crate::identity::{Epoch, HostId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// The period of signs of life and bids. A broker that falls silent is to be replaced within 2 s: after 7 or 8
/// periods of silence, and one or two for the tournament.
pub const PERIOD: Duration = Duration::from_millis(200);

/// Periods of a tick, by which silence is counted: a broker that makes no claim for [`BROKER_SILENCE_TICKS`], 1.4 to
/// 1.6 s, is regenerated. A process may wait for a processor for a second, and be no less alive.
pub const PERIODS_PER_TICK: u32 = 2;

/// Ticks without an answer after which a broker gives a server up.
pub const SERVER_SILENCE_TICKS: u8 = 3;

/// Ticks without a claim after which a server's host regenerates its broker. More than a broker
/// needs to find its server silent, so that one lost message costs neither of them the other.
pub const BROKER_SILENCE_TICKS: u8 = 4;

/// A message between the candidates of two hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A round of the tournament: the receiver concedes, or bids in turn.
    Bid(Bid),
    /// The sender controls no server: `broker` controls its own.
    Redirect {
        /// The broker to bid against.
        broker: HostId,
    },
    /// `loser` lost a round and controls no server from now on.
    Concede {
        /// The candidate that lost.
        loser: HostId,
        /// Its epoch.
        epoch: Epoch,
        /// The servers that it controlled.
        servers: BTreeSet<HostId>,
    },
    /// The sender claims the receiver's server; repeated as a sign of life.
    Claim {
        /// The sender's epoch.
        epoch: Epoch,
    },
    /// The sender's server is granted to the receiver's epoch.
    Granted {
        /// The epoch of the claim.
        epoch: Epoch,
    },
    /// The sender's server is granted to a higher epoch than the claim's.
    Rejected {
        /// The epoch that holds it.
        held: Epoch,
    },
}

/// Something for the daemon to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionAction {
    /// Send a message.
    Send {
        /// Its receiver.
        to: HostId,
        /// The message.
        message: Message,
    },
    /// Grant this host's server to an epoch, and send that broker the server's report.
    GrantServer(Epoch),
    /// Be broker of this epoch from now on, or raise the epoch of the broker that there is.
    Lead(Epoch),
    /// Stop being broker: pending requests of clients go to `winner`.
    Resign {
        /// The broker to which they go.
        winner: HostId,
    },
    /// A server is not controlled any more.
    DropServer(HostId),
}
