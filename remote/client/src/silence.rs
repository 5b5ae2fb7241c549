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
        if let Some(since) = silent_since(transport, server, now) {
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

/// Since when a connected server is silent. A request is sent when it is in the link's buffer, and on a slow link it is there
/// for seconds while earlier ones are answered: what comes shows that the server is not silent, unless it answers what was
/// sent so much later.
fn silent_since(transport: &mut RemoteTransport, server: usize, now: Time) -> Option<Time> {
    if !transport.servers[server].is_up() {
        return None;
    }
    let mut oldest = transport.servers[server].awaits_since();
    for slot in transport.requests.slots() {
        if let Some(segment) = transport.requests.get(slot)
            && segment.awaited & !segment.unsent & bit(server) != 0
        {
            oldest = Some(oldest.map_or(segment.sent, |oldest| oldest.min(segment.sent)));
        }
    }
    let (oldest, to) = (oldest?, &transport.servers[server]);
    if to.has_received(oldest + STALLED) {
        return Some(oldest);
    }
    let since = oldest.max(to.presence.last_answer()?);
    (now >= since + STALLED).then_some(since)
}
