//! Permits at servers, and what servers say of them.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 3.3.1 and 3.5: a permit comes by the broker, with
//! its server's seal, and is shown to the server on each connection. With servers alone (section 2.3) each is
//! its own broker, and is asked itself.

use crate::broker_link::BrokerNews;
use crate::placement::{self, FULL};
use crate::server::Asked;
use crate::transport::{RemoteTransport, since_start};
use crate::{arrival, notices};
use disk::time::Time;
use remote_broker::client::PermitAnswer;
use remote_policy::broker::{AllocationRequest, ReallocationRequest, Refusal};
use remote_policy::identity::{HostId, RequestId};
use remote_policy::permit::{Permit, PermitId};
use remote_policy::redundancy::{Redundancy, ServerOffer, choose_servers};
use remote_wire::control::{ControlReply, ControlRequest, SealedPermit, decode};
use remote_wire::{Header, Kind, Status, error_text};
use std::collections::BTreeSet;

/// One server has refused.
const NO_PERMIT: Refusal = Refusal::Pages {
    asked: 0,
    most: 0,
    servers: 1,
};

/// The best server for a permit, where no broker chooses: section 3.5's order.
fn choose(
    transport: &RemoteTransport,
    pages: u64,
    exclude: &BTreeSet<HostId>,
    now: Time,
) -> Option<usize> {
    let offers: Vec<_> = (0..transport.servers.len())
        .filter(|at| transport.servers[*at].is_up() && now >= transport.servers[*at].full_until)
        .filter_map(|at| {
            let server = transport.servers[at].host()?;
            let allowed = !exclude.contains(&server);
            allowed.then_some(ServerOffer {
                server,
                // Its answer decides: it may have more by now.
                free_pages: transport.servers[at].lendable_pages.max(pages),
                is_in_use: transport.organizer.permit_at(server).is_some(),
                round_trip: transport.latencies.of(server, since_start(now)),
            })
        })
        .collect();
    let held = BTreeSet::new();
    let chosen = choose_servers(Redundancy::Replicas(1), pages, &offers, &held).ok()?;
    placement::index_of(transport, *chosen.first()?)
}

/// Asks the best of the servers for a permit, and the next best where that one refuses.
pub fn allocate(transport: &mut RemoteTransport, request: AllocationRequest, now: Time) {
    let pages = request.permit.pages;
    let id = request.permit.id;
    if let Some(to) = choose(transport, pages, &request.exclude, now) {
        let server = &mut transport.servers[to];
        // A request whose reply was lost with its connection may have been granted: the same gets the same
        // permit.
        let (number, pages) = *server.unanswered_allocate.get_or_insert((id, pages));
        let asked = ControlRequest::Allocate {
            request: number,
            pages,
            object: request.permit.object,
            qos: request.permit.qos,
        };
        if server.ask(&asked, Asked::Permit(id)) {
            transport.asked_alone.insert(id, request);
            return;
        }
    }
    let why = Refusal::Pages {
        asked: pages,
        most: 0,
        servers: transport.servers.len(),
    };
    placement::on_refused(transport, id, why, now);
}

/// Asks a server for a permit of another size.
pub fn reallocate(transport: &mut RemoteTransport, request: ReallocationRequest, now: Time) {
    let ReallocationRequest { id, permit, pages } = request;
    let asked = ControlRequest::Reallocate { permit, pages };
    let to = placement::index_of(transport, permit.server);
    if !to.is_some_and(|to| transport.servers[to].ask(&asked, Asked::Permit(id))) {
        placement::on_refused(transport, id, Refusal::Reallocation(permit), now);
    }
}

/// Handles what arrives from the broker.
pub fn on_broker_news(transport: &mut RemoteTransport, news: BrokerNews, now: Time) {
    match news {
        BrokerNews::Cluster(cluster) => arrival::on_cluster(transport, &cluster, now),
        BrokerNews::NoHost(why) => tracing::debug!("no host answers about the broker: {why}"),
        BrokerNews::Answer { request, answer } => match answer {
            PermitAnswer::Granted(sealed) if is_usable(transport, request, &sealed) => {
                on_permit(transport, request, sealed, now);
            }
            PermitAnswer::Granted(sealed) => {
                tracing::warn!("{} is not used: it was not requested", sealed.permit.id);
                release_unused(transport, sealed.permit);
                placement::on_refused(transport, request, NO_PERMIT, now);
            }
            PermitAnswer::Refused(why) => placement::on_refused(transport, request, why, now),
        },
    }
    placement::request_waiting(transport, now);
}

/// Returns true if more pages are being asked for, or are to be with the next tick, at a server that has refused a write
/// of an object, or the object is to move.
pub fn is_requesting_pages(transport: &RemoteTransport, object: usize, server: usize) -> bool {
    let id = transport.objects.id(object);
    transport.servers[server].short_of.is_some()
        || transport.organizer.is_placing(id)
        || transport.moves.contains_key(&object)
}

/// A write of an object was refused, since the server took back pages that its permit had. Returns true if
/// they are asked for again, with the next tick.
pub fn request_pages_again(
    transport: &mut RemoteTransport,
    object: usize,
    server: usize,
    now: Time,
) -> bool {
    let to = &mut transport.servers[server];
    let host = to.host();
    let granted = host.and_then(|host| transport.organizer.permit_at(host));
    let granted = granted.map_or(0, |permit| permit.granted_pages);
    let used = host.map_or(0, |host| transport.organizer.used_pages_at(host));
    let is_short = granted < used && now >= to.full_until.max(transport.copies_full_until);
    if is_short {
        to.short_of = Some(object);
    }
    is_short
}

/// Asks for the pages that permits lack: once for all objects at a server.
pub fn enlarge_short(transport: &mut RemoteTransport, now: Time) {
    for server in 0..transport.servers.len() {
        let to = &mut transport.servers[server];
        let (Some(object), Some(host)) = (to.short_of.take(), to.host()) else {
            continue;
        };
        let id = transport.objects.id(object);
        if let Some(action) = transport.organizer.on_full(host, id) {
            placement::carry_out(transport, action, now);
        }
    }
}

/// Requests the end of objects that a server need not keep, on its next connection again where it has not answered: until
/// then it counts their pages as used.
pub fn terminate_stale(transport: &mut RemoteTransport, server: usize) {
    for object in std::mem::take(&mut transport.servers[server].stale) {
        let id = transport.objects.id(object);
        let of = transport.objects.get(object);
        // A copy that is being made there takes the place of what is ended.
        let made = of.copy_at(server).map(|copy| copy.generation);
        let request = ControlRequest::Terminate {
            object: id,
            before: made.unwrap_or_else(|| of.latest.next()),
        };
        let to = &mut transport.servers[server];
        if !to.ask(&request, Asked::Terminate(object)) {
            to.stale.push(object);
        }
    }
}

/// A server is connected: it is shown the permit that it issued, so that the requests that follow
/// are served.
pub fn on_server_back(transport: &mut RemoteTransport, server: usize) {
    let host = transport.servers[server].host();
    if let Some(sealed) = host.and_then(|host| transport.unshown.remove(&host)) {
        transport.servers[server].permit = Some(sealed);
    }
    if let Some(sealed) = transport.servers[server].permit {
        let asked = Asked::Present(sealed.permit.id);
        transport.servers[server].ask(&ControlRequest::Present(sealed), asked);
    }
    terminate_stale(transport, server);
}

/// Control requests to a server will not be answered.
pub fn on_unanswered(transport: &mut RemoteTransport, server: usize, asked: Vec<Asked>, now: Time) {
    for asked in asked {
        match asked {
            Asked::Create(object, _) => transport.forget_copy(object, server),
            Asked::Permit(request) => on_permit_refused(transport, server, request, now),
            // A later copy takes its place there.
            Asked::Terminate(object) if transport.objects.get(object).copy_at(server).is_none() => {
                transport.servers[server].stale.push(object);
            }
            _ => {}
        }
    }
    placement::request_waiting(transport, now);
}

/// Handles the reply to a control request, or a notice.
pub fn on_control_frame(
    transport: &mut RemoteTransport,
    now: Time,
    server: usize,
    header: &Header,
    body: &[u8],
) {
    if header.kind == Kind::Notice {
        if let Ok(notice) = decode(body) {
            notices::on_notice(transport, now, server, notice);
        }
        return;
    }
    let Some(asked) = transport.servers[server].take_asked(header.request, now) else {
        return;
    };
    if let Asked::Permit(_) = asked {
        transport.servers[server].unanswered_allocate = None;
    }
    let reply = match header.kind {
        Kind::ErrorReply => Err(Status::from_code(header.pages)),
        _ => decode::<ControlReply>(body).map_err(|_| None),
    };
    let text = || error_text(body);
    let name = &transport.servers[server].name;
    match (asked, reply) {
        (Asked::Permit(request), reply) => {
            let granted = match reply {
                Ok(ControlReply::Permit(sealed)) => Some(sealed),
                _ => None,
            };
            on_permit_reply(transport, server, request, granted, &text(), now);
        }
        (Asked::Create(object, generation), Ok(ControlReply::Done)) => {
            transport.on_created(object, server, generation);
        }
        (Asked::Create(object, _), _) => {
            let id = transport.objects.id(object);
            tracing::warn!("{name} does not create {id}: {}", text());
            transport.servers[server].full_until = now + FULL;
            transport.forget_copy(object, server);
        }
        // Another one that is valid may be in its place.
        (Asked::Present(permit), Err(_)) if has_permit(transport, server, permit) => {
            tracing::warn!("{name} has ended its permit: {}", text());
            end_permit(transport, server, now);
        }
        // It shrank while its server was away.
        (Asked::Present(permit), Ok(ControlReply::Permit(sealed)))
            if sealed.permit.id == permit && has_permit(transport, server, permit) =>
        {
            transport.servers[server].permit = Some(sealed);
            transport.organizer.on_rewritten(sealed.permit);
        }
        (Asked::Renewal(sent), _) => {
            let trip = since_start(now).saturating_sub(since_start(sent));
            transport.servers[server].on_round_trip(sent);
            // The nearest of all is on this machine, and no better for that.
            let server = &transport.servers[server];
            let host = server.host().filter(|_| !server.is_on_this_machine());
            if let Some(host) = host {
                let time = since_start(now);
                transport.organizer.on_round_trip(host, trip, time);
            }
        }
        (Asked::Present(_) | Asked::Terminate(_) | Asked::Other, _) => {}
    }
    placement::request_waiting(transport, now);
    transport.has_unsent = true;
}

/// A server that was asked itself grants a permit, or none.
fn on_permit_reply(
    transport: &mut RemoteTransport,
    server: usize,
    request: RequestId,
    granted: Option<SealedPermit>,
    why: &str,
    now: Time,
) {
    let name = &transport.servers[server].name;
    let Some(sealed) = granted else {
        tracing::info!("{name} grants no pages: {why}");
        return on_permit_refused(transport, server, request, now);
    };
    let id = sealed.permit.id;
    let is_own = has_host(transport, server, id.server);
    if is_own && is_usable(transport, request, &sealed) {
        return on_permit(transport, request, sealed, now);
    }
    tracing::warn!("{name} sends {id}, which is not used: it was not requested");
    if is_own {
        release_unused(transport, sealed.permit);
    }
    on_permit_refused(transport, server, request, now);
}

/// Returns true if a permit that answers a request may come into force: the one that is, rewritten, or one of a server
/// without any, if the request is still open. In the place of a valid permit it would cost the copies under that one.
fn is_usable(transport: &RemoteTransport, request: RequestId, sealed: &SealedPermit) -> bool {
    let SealedPermit { permit, .. } = sealed;
    let is_open = || transport.organizer.awaits(request);
    let held = transport.organizer.permit_at(permit.id.server);
    permit.client == transport.client && held.map_or_else(is_open, |held| held.id == permit.id)
}

/// Gives back a permit that does not come into force. Where its server is not connected the client's lease ends it.
fn release_unused(transport: &mut RemoteTransport, permit: Permit) {
    let held = transport.organizer.permit_at(permit.id.server);
    let is_held = held.is_some_and(|held| held.id == permit.id);
    if permit.client == transport.client
        && !is_held
        && let Some(at) = placement::index_of(transport, permit.id.server)
    {
        transport.servers[at].ask(&ControlRequest::Release(permit.id), Asked::Other);
    }
}

/// A permit has come, new or rewritten: its server is shown it, and the organizer has the next step.
fn on_permit(transport: &mut RemoteTransport, request: RequestId, sealed: SealedPermit, now: Time) {
    // Where the server is not connected the permit is shown when it is.
    let host = sealed.permit.id.server;
    match placement::index_of(transport, host) {
        Some(at) => {
            let to = &mut transport.servers[at];
            to.permit = Some(sealed);
            to.ask(
                &ControlRequest::Present(sealed),
                Asked::Present(sealed.permit.id),
            );
        }
        None => _ = transport.unshown.insert(host, sealed),
    }
    transport.asked_alone.remove(&request);
    transport.awaited_permit.take_if(|id| *id == request);
    let time = since_start(now);
    let next = transport.organizer.on_permit(request, sealed.permit, time);
    if let Some(action) = next {
        placement::proceed(transport, action, now);
    }
    transport.has_unsent = true;
}

/// A server that was asked itself grants nothing.
fn on_permit_refused(
    transport: &mut RemoteTransport,
    server: usize,
    request: RequestId,
    now: Time,
) {
    transport.servers[server].full_until = now + FULL;
    let host = transport.servers[server].host();
    match (transport.asked_alone.remove(&request), host) {
        (Some(mut allocation), Some(host)) => {
            allocation.exclude.insert(host);
            allocate(transport, allocation, now);
        }
        _ => placement::on_refused(transport, request, NO_PERMIT, now),
    }
}

/// Returns true if a server is that of a host.
fn has_host(transport: &RemoteTransport, server: usize, host: HostId) -> bool {
    transport.servers[server].host() == Some(host)
}

/// Returns true if a permit is that in use at a server.
pub fn has_permit(transport: &RemoteTransport, server: usize, id: PermitId) -> bool {
    let sealed = transport.servers[server].permit;
    sealed.is_some_and(|sealed| sealed.permit.id == id)
}

/// Gives the permits back at the client's end, as far as the links take it: a lease ends the others.
pub fn release_all(transport: &mut RemoteTransport) {
    for server in &mut transport.servers {
        if let Some(sealed) = server.permit.take() {
            server.ask(&ControlRequest::Release(sealed.permit.id), Asked::Other);
            server.flush_last();
        }
    }
}

/// A permit is void, and the objects under it are gone.
pub fn end_permit(transport: &mut RemoteTransport, server: usize, now: Time) {
    transport.servers[server].permit = None;
    transport.servers[server].keep_pages = None;
    transport.lose_server(server, now);
}
