//! Permits at servers, and what servers say of them.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 3.3.1 and 3.5: a permit is enlarged before
//! another server is asked, and slightly more is requested than needed.

use crate::objects::OBJECT_PAGES;
use crate::server::Asked;
use crate::transport::RemoteTransport;
use disk::atropos::DiskContract;
use disk::time::{Nanos, Time};
use remote_policy::identity::RequestId;
use remote_policy::permit::{Permit, PermitId};
use remote_wire::control::{ControlReply, ControlRequest, SealedPermit, ServerNotice, decode};
use remote_wire::{Header, Kind, Status};

/// How long a server that refused pages is not asked again.
pub const FULL: Nanos = Nanos::seconds(5);
/// One in so many pages is asked for in addition, an object's at least.
const MARGIN: u64 = 8;

/// What the client asks of a server's time and link: it shares what is left with others. Each client
/// reserves its slice until its permit ends, so the slice is small.
const QOS: DiskContract = DiskContract {
    period: Nanos::millis(100),
    slice: Nanos::micros(100),
    extra: true,
    laxity: Nanos(0),
};

fn ask(transport: &mut RemoteTransport, to: usize, pages: u64, now: Time) {
    // A request whose reply was lost with its connection may have been granted: the same gets the same permit.
    let unanswered = transport.servers[to].unanswered_allocate;
    let (number, pages) = unanswered.unwrap_or((transport.next_request, pages));
    let request = match transport.servers[to].permit {
        Some(sealed) => ControlRequest::Reallocate {
            permit: sealed.permit.id,
            pages,
        },
        None => {
            transport.next_request = transport.next_request.max(number + 1);
            transport.servers[to].unanswered_allocate = Some((number, pages));
            ControlRequest::Allocate {
                request: RequestId {
                    client: transport.client,
                    number,
                },
                pages,
                object: None,
                qos: QOS,
            }
        }
    };
    if !transport.servers[to].ask(&request, Asked::Permit(pages)) {
        refuse_waiting(transport, to, now);
    }
}

/// Asks for slightly more than the copies at a server need.
pub fn ask_slightly_more(transport: &mut RemoteTransport, to: usize, now: Time) {
    let reserved = transport.servers[to].reserved_pages;
    let pages = reserved + (reserved / MARGIN).max(OBJECT_PAGES);
    ask(transport, to, pages, now);
}

/// A write was refused, since the server took back pages that its permit had. Returns true if they are
/// asked for again, with the next tick, and the write may wait.
pub fn on_short(transport: &mut RemoteTransport, server: usize, now: Time) -> bool {
    let to = &mut transport.servers[server];
    to.is_short = now >= to.full_until && to.is_granted_too_few();
    to.is_short || to.awaits_permit()
}

/// Asks for the pages that permits lack.
pub fn enlarge_short(transport: &mut RemoteTransport, now: Time) {
    for server in 0..transport.servers.len() {
        let to = &mut transport.servers[server];
        if std::mem::take(&mut to.is_short) && to.is_granted_too_few() && !to.awaits_permit() {
            let pages = to.reserved_pages;
            ask(transport, server, pages, now);
        }
    }
}

/// A server has no room for what waits for its permit.
fn refuse_waiting(transport: &mut RemoteTransport, server: usize, now: Time) {
    transport.servers[server].full_until = now + FULL;
    let waiting = std::mem::take(&mut transport.servers[server].waiting);
    for object in waiting {
        transport.forget_copy(object, server);
    }
}

/// Tells a server which objects it need not keep.
pub fn terminate_stale(transport: &mut RemoteTransport, server: usize) {
    for object in std::mem::take(&mut transport.servers[server].stale) {
        let id = transport.objects.id(object);
        let to = &mut transport.servers[server];
        if !to.ask(&ControlRequest::Terminate(id), Asked::Other) {
            to.stale.push(object);
        }
    }
}

/// A server is connected: it is shown the permit that it issued, so that the requests that follow
/// are served.
pub fn on_server_back(transport: &mut RemoteTransport, server: usize) {
    if let Some(sealed) = transport.servers[server].permit {
        transport.servers[server].ask(&ControlRequest::Present(sealed), Asked::Present);
    }
    terminate_stale(transport, server);
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
            on_notice(transport, now, server, notice);
        }
        return;
    }
    let Some(asked) = transport.servers[server].take_asked(header.request) else {
        return;
    };
    if let Asked::Permit(_) = asked {
        transport.servers[server].unanswered_allocate = None;
    }
    let reply = match header.kind {
        Kind::ErrorReply => Err(Status::from_code(header.pages)),
        _ => decode::<ControlReply>(body).map_err(|_| None),
    };
    match (asked, reply) {
        // One that grants less than was asked for, and less than is needed, has no more.
        (Asked::Permit(pages), Ok(ControlReply::Permit(sealed)))
            if sealed.permit.granted_pages < pages
                && sealed.permit.granted_pages < transport.servers[server].reserved_pages =>
        {
            transport.servers[server].permit = Some(sealed);
            refuse_waiting(transport, server, now);
        }
        (Asked::Permit(_), Ok(ControlReply::Permit(sealed))) => {
            on_permit(transport, now, server, sealed)
        }
        (Asked::Permit(pages), _) => {
            let text = String::from_utf8_lossy(body);
            let name = &transport.servers[server].name;
            tracing::info!("{name} does not grant {pages} pages: {text}");
            let least = transport.servers[server].reserved_pages;
            match pages > least {
                true => ask(transport, server, least, now),
                false => refuse_waiting(transport, server, now),
            }
        }
        (Asked::Create(object, generation), Ok(ControlReply::Done)) => {
            transport.on_created(object, server, generation);
        }
        (Asked::Create(object, _), _) => {
            let text = String::from_utf8_lossy(body);
            let name = &transport.servers[server].name;
            tracing::warn!(
                "{name} does not create {}: {text}",
                transport.objects.id(object)
            );
            transport.servers[server].full_until = now + FULL;
            transport.forget_copy(object, server);
        }
        (Asked::Present, Err(_)) => {
            let name = &transport.servers[server].name;
            tracing::warn!(
                "{name} has ended its permit: {}",
                String::from_utf8_lossy(body)
            );
            end_permit(transport, server, now);
        }
        (Asked::Present | Asked::Other, _) => {}
    }
    transport.has_unsent = true;
}

fn on_permit(transport: &mut RemoteTransport, now: Time, server: usize, sealed: SealedPermit) {
    let to = &mut transport.servers[server];
    to.permit = Some(sealed);
    to.ask(&ControlRequest::Present(sealed), Asked::Present);
    if sealed.permit.granted_pages < to.reserved_pages {
        // More objects came meanwhile.
        return ask_slightly_more(transport, server, now);
    }
    for object in std::mem::take(&mut transport.servers[server].waiting) {
        transport.send_create(object, server);
    }
}

fn on_notice(transport: &mut RemoteTransport, now: Time, server: usize, notice: ServerNotice) {
    let name = transport.servers[server].name.clone();
    match notice {
        // Of a permit that is not in use any more, or not yet.
        ServerNotice::Rewritten(SealedPermit {
            permit: Permit { id, .. },
            ..
        })
        | ServerNotice::Revoke { permit: id, .. }
        | ServerNotice::Void { permit: id, .. }
            if !has_permit(transport, server, id) => {}
        ServerNotice::Rewritten(sealed) => transport.servers[server].permit = Some(sealed),
        ServerNotice::Abdicate(id) => {
            if let Some(object) = transport.objects.find(id) {
                transport.leave(object, server);
            }
        }
        ServerNotice::Revoke {
            keep_pages, within, ..
        } => {
            tracing::warn!(
                "{name} takes memory back: {keep_pages} pages may stay after {within:.0?}"
            );
            transport.servers[server].keep_pages = Some(keep_pages);
            let mut kept = transport.servers[server].reserved_pages;
            for object in 0..transport.objects.len() {
                if kept > keep_pages && transport.leave(object, server) {
                    kept -= OBJECT_PAGES.min(kept);
                }
            }
        }
        ServerNotice::Void { cause, .. } => {
            tracing::warn!("{name} has ended its permit: {cause:?}");
            end_permit(transport, server, now);
        }
    }
}

/// Returns true if a permit is that in use at a server.
fn has_permit(transport: &RemoteTransport, server: usize, id: PermitId) -> bool {
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
fn end_permit(transport: &mut RemoteTransport, server: usize, now: Time) {
    transport.servers[server].permit = None;
    transport.servers[server].keep_pages = None;
    transport.lose_server(server, now);
}
