//! Parts that wait for servers which do not answer, while others of the tree could go on.
//!
//! The scheduler bounds what is in flight. Requests of a silent server, or of an object that no server takes, would fill
//! that bound, and stop processes whose pages are at servers that answer. So they are reported to the scheduler
//! ([`Transport::next_waiting`](disk::usd::Transport::next_waiting)): at once of a read that only a suspected server can
//! serve, and of everything else once nothing has come for [`ASIDE`].

use crate::objects::bit;
use crate::requests::Segment;
use crate::transport::RemoteTransport;
use disk::time::{Nanos, Time};

/// After this long without a sign of life of any server that it was sent to, a request counts as in flight no longer. A
/// slow link's requests do count: of it something comes.
const ASIDE: Nanos = Nanos::millis(200);

/// Sets aside what has waited for too long, with each tick.
pub fn check(transport: &mut RemoteTransport, now: Time) {
    for slot in transport.requests.slots() {
        let Some(segment) = transport.requests.get(slot).copied() else {
            continue;
        };
        if segment.is_own() && now >= segment.sent + ASIDE && is_stuck(transport, &segment) {
            transport.requests.set_waiting(slot);
        }
    }
}

/// Returns true if no server is asked for it, or nothing has come since from those that are.
fn is_stuck(transport: &RemoteTransport, segment: &Segment) -> bool {
    let servers = transport.servers.iter().enumerate();
    let mut asked = servers.filter(|(at, _)| segment.awaited & bit(*at) != 0);
    !segment.is_reconstructed
        && asked.all(|(_, server)| !server.presence.has_answered_since(segment.sent))
}
