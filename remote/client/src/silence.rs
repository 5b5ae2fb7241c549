//! Which servers are silent or away for too long, found with each tick.

use crate::objects::bit;
use crate::outage::{GRACE, STALLED, witnesses_of_silence};
use crate::transport::RemoteTransport;
use disk::time::Time;

/// Renews leases, asks for connections, and goes on without servers that are given up (`outage`).
pub fn check(transport: &mut RemoteTransport, now: Time) {
    let presences: Vec<_> = transport.servers.iter().map(|it| it.presence).collect();
    for server in 0..transport.servers.len() {
        transport.servers[server].renew(now);
        transport.servers[server].reconnect_if_due(now);
        let since = silent_since(transport, server);
        if let Some(since) = since.filter(|since| now >= *since + STALLED) {
            transport.on_link_lost(server, now, &format!("it has not answered for {STALLED}"));
            let witnesses = witnesses_of_silence(presences.iter().copied(), server, since, now);
            if witnesses != 0 {
                // It may be back at once, and be silent again.
                transport.servers[server].avoid(now);
                transport.leave_out(server, witnesses, now, "it is silent");
            }
        }
        let witnesses = transport.witnesses_of_absence(server, now);
        if witnesses != 0 {
            transport.leave_out(
                server,
                witnesses,
                now,
                &format!("no connection for {GRACE}"),
            );
        }
    }
}

/// Since when a connected server has not answered a request that was sent to it.
fn silent_since(transport: &mut RemoteTransport, server: usize) -> Option<Time> {
    if !transport.servers[server].is_up() {
        return None;
    }
    let mut since = transport.servers[server].awaits_since();
    for slot in transport.requests.slots() {
        if let Some(segment) = transport.requests.get(slot)
            && segment.awaited & !segment.unsent & bit(server) != 0
        {
            since = Some(since.map_or(segment.sent, |since| since.min(segment.sent)));
        }
    }
    since
}
