//! Chooses the server of each read, and a second one for a read that is late.
//!
//! [`ReadView`] decides, of what is known of copies and servers. A server is *suspected* from the moment in which a
//! read of it is late and nothing has come from it since that read was sent, until something comes. Reads avoid it
//! then, and those that it has are sent elsewhere within [`HedgeBudget`](remote_policy::hedging::HedgeBudget).

use crate::degraded;
use crate::objects::{ServerSet, bit};
use crate::requests::{Purpose, Segment};
use crate::stripes;
use crate::transport::{RemoteTransport, connected, since_start};
use crate::{arrival, stripe_code};
use disk::time::{Nanos, Time};
use remote_policy::hedging::late_after;
use remote_policy::redundancy::{ReadRoute, ReadView, StripeRead};
use rustix::io::Errno;
use wired::PAGE;

/// When a late read that had nowhere else to go is looked at again.
const AGAIN: Nanos = Nanos::millis(20);

/// Decides which server a read goes to, and ends one that needs none.
pub fn route(transport: &mut RemoteTransport, slot: usize, segment: &Segment, now: Time) {
    let pages = segment.page..segment.page + segment.count as u64;
    let object = segment.object;
    let is_lost = |page| transport.objects.is_lost(object, page);
    if pages.clone().any(is_lost) {
        return transport.end_read(slot, Err(Errno::IO), now);
    }
    let is_unwritten = |page| transport.objects.version(object, page).0 == 0;
    if pages.clone().all(is_unwritten) && segment.is_own() {
        for page in transport.requests.pages(segment) {
            // SAFETY: a page of the part, which the transport alone writes until it is reaped.
            unsafe { page.write_bytes(0, PAGE) };
        }
        return transport.end_read(slot, Ok(()), now);
    }
    let view = view_of(transport, segment);
    if view.current == 0 && view.stripe != StripeRead::Never {
        // It is being made again from the others of its stripe, perhaps where it was.
        if let Some(segment) = transport.requests.get(slot) {
            segment.failed = 0;
        }
    }
    transport.has_unsent = true;
    match (view.route(), segment.purpose) {
        (ReadRoute::Copy(servers), _) => send_to_nearest(transport, slot, servers, now),
        (ReadRoute::Fail, _) => transport.end_read(slot, Err(Errno::IO), now),
        // Its sources have changed.
        (_, Purpose::DegradedRead { at }) => degraded::fail(transport, at, 0, now),
        (ReadRoute::Reconstruct, _) => {
            let usable = usable(&view, segment);
            degraded::begin(transport, slot, segment, usable, now);
        }
        // The job may be what this source waits for: it begins anew, of others.
        (ReadRoute::Wait, Purpose::StripeRead) => {
            transport.end_read(slot, Err(Errno::AGAIN), now);
        }
        (ReadRoute::Wait, _) => {}
    }
}

/// The servers at which a read's pages may be read from other parts of its stripe.
fn usable(view: &ReadView, segment: &Segment) -> ServerSet {
    view.connected & !view.suspected & !segment.failed_sources[1]
}

fn view_of(transport: &RemoteTransport, segment: &Segment) -> ReadView {
    let connected = connected(&transport.servers);
    let suspected = suspected(transport);
    let current = transport.objects.at(segment.object).readable();
    let (object, failed) = (segment.object, segment.failed_sources[1]);
    let stripe = match segment.is_own() {
        true => stripes::read_of(transport, object, connected & !suspected, failed),
        // What is made of others is not made of what these are made of. It waits until it is made again.
        false if current == 0 && stripes::can_rebuild(transport, object) => StripeRead::NotNow,
        false => StripeRead::Never,
    };
    ReadView {
        current,
        failed: segment.failed,
        awaited: segment.awaited,
        connected,
        suspected,
        stripe,
    }
}

/// The servers that a read goes to first: those that are connected and not suspected.
pub fn in_reach(transport: &RemoteTransport) -> ServerSet {
    connected(&transport.servers) & !suspected(transport)
}

fn suspected(transport: &RemoteTransport) -> ServerSet {
    let servers = transport.servers.iter().enumerate();
    let suspected = servers.filter(|(_, server)| server.is_suspected);
    suspected.fold(0, |set, (at, _)| set | bit(at))
}

/// Has a read be sent to the nearest of some servers, besides those that it was sent to.
fn send_to_nearest(transport: &mut RemoteTransport, slot: usize, among: ServerSet, now: Time) {
    let time = since_start(now);
    let latency = |server: &usize| {
        let host = transport.servers[*server].host();
        host.and_then(|host| transport.latencies.of(host, time))
    };
    let servers = (0..transport.servers.len()).filter(|server| among & bit(*server) != 0);
    let Some(nearest) = servers.min_by_key(latency) else {
        return;
    };
    if transport.servers[nearest].is_suspected {
        transport.requests.set_waiting(slot);
    }
    let host = transport.servers[nearest].host();
    let usual = host.and_then(|host| transport.latencies.response_time(host, time));
    if let Some(segment) = transport.requests.get(slot) {
        segment.awaited |= bit(nearest);
        segment.unsent |= bit(nearest);
        // Time in a full buffer counts: its server does not read what is sent.
        (segment.sent, segment.late_at) = (now, now + Nanos::from(late_after(usual)));
        transport.late_at = transport.late_at.min(segment.late_at);
    }
    transport.has_unsent = true;
}

/// Sends reads elsewhere, too, whose servers are late.
pub fn hedge_late(transport: &mut RemoteTransport, now: Time) {
    if now < transport.late_at {
        return;
    }
    // What arrived while this thread had no processor is not late.
    arrival::receive_all(transport, now);
    transport.late_at = Time::NEVER;
    for slot in transport.requests.slots() {
        let Some(segment) = transport.requests.get(slot).copied() else {
            continue;
        };
        if segment.is_late(now) {
            hedge(transport, slot, &segment, now);
        }
        if let Some(segment) = transport.requests.get(slot)
            && segment.is_awaited()
            && segment.awaited != 0
        {
            transport.late_at = transport.late_at.min(segment.late_at);
        }
    }
}

fn hedge(transport: &mut RemoteTransport, slot: usize, segment: &Segment, now: Time) {
    let asked = segment.awaited;
    for server in (0..transport.servers.len()).filter(|server| asked & bit(*server) != 0) {
        let to = &mut transport.servers[server];
        to.is_suspected |= !to.presence.has_answered_since(segment.sent);
        // One that timed out counts with the time waited.
        if let Some(host) = to.host()
            && segment.late & bit(server) == 0
        {
            let waited = since_start(now).saturating_sub(since_start(segment.sent));
            transport
                .latencies
                .on_sample(host, waited, since_start(now));
        }
    }
    if let Some(segment) = transport.requests.get(slot) {
        segment.late |= asked;
        segment.late_at = now + AGAIN;
    }
    let view = view_of(transport, segment);
    match (view.hedge(), segment.purpose) {
        (Some(ReadRoute::Copy(servers)), _) if transport.budget.take(1) => {
            transport.progress.count_hedged_read();
            send_to_nearest(transport, slot, servers, now);
        }
        (Some(ReadRoute::Reconstruct), _)
            if !segment.is_reconstructed
                && degraded::has_room(transport)
                && transport.budget.take(stripe_code::MEMBERS as u32) =>
        {
            transport.progress.count_hedged_read();
            let usable = usable(&view, segment);
            degraded::begin(transport, slot, segment, usable, now);
        }
        // It is silent, not slow, and other sources may answer.
        (None, Purpose::DegradedRead { at })
            if view.awaited & view.suspected != 0
                && degraded::has_sources(transport, at, view.connected & !view.suspected) =>
        {
            degraded::fail(transport, at, 0, now);
        }
        _ => {}
    }
}
