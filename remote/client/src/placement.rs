//! Which servers get copies of objects: what the organizer decides, carried out.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 3.3 and 3.4. Binding is late; what moves is decided
//! by [`Organizer`](remote_policy::organizer::Organizer), and a move is made as a lost copy is replaced:
//! another copy is created and filled, and then the first one is dropped.
//!
//! | asked of | where there is a broker | with servers alone |
//! |---|---|---|
//! | a larger permit | the broker | the server |
//! | a permit of another server | the broker | the best of those connected |
//!
//! Rule: a copy is bound with the organizer from its creation until it is gone, and a move ends when either
//! of its copies is gone.

use crate::copying;
use crate::objects::{CopyState, ObjectCopy, ServerSet, bit};
use crate::permits;
use crate::placement_refusals::give_up;
use crate::server::Server;
use crate::stripes;
use crate::transport::{RemoteTransport, since_start};
use disk::atropos::DiskContract;
use disk::time::{Nanos, Time};
use remote_policy::broker::Refusal;
use remote_policy::identity::{HostId, RequestId};
use remote_policy::organizer::OrganizerAction;
use std::collections::BTreeSet;

/// How long no further copies are asked for after no server had room for one.
pub const FULL: Nanos = Nanos::seconds(5);
/// How often a nearer server is looked for.
const IMPROVEMENT: Nanos = Nanos::seconds(2);

/// What the client asks of a server's time and link: it shares what is left with others. Each client
/// reserves its slice until its permit ends, so the slice is small.
pub const QOS: DiskContract =
    DiskContract::new(Nanos::micros(100), Nanos::millis(100)).with_slack();

/// An object's copy that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectMove {
    from: usize,
    to: usize,
}

/// Makes copies of an object that has too few, one after the other.
pub fn place(transport: &mut RemoteTransport, object: usize, now: Time) {
    let id = transport.objects.id(object);
    let end = transport.objects.pages_of(object).end;
    // No server is connected: the write waits.
    while transport.servers.iter().any(|server| server.is_up())
        && lacks_copies(transport, object)
        && !transport.organizer.is_placing(id)
        && may_place(transport, object, now)
    {
        let copies = transport.objects.at(object).copies.iter();
        let taken = copies.fold(0, |taken, copy| taken | bit(copy.server));
        let exclude = unusable(transport, taken, now);
        let time = since_start(now);
        let action = transport.organizer.place(id, end, &exclude, time);
        if !carry_out(transport, action, now) {
            return;
        }
    }
    let has_copy = !transport.objects.at(object).copies.is_empty();
    if !has_copy && transport.placement_refusals.fails_at_once(object, now) {
        transport.fail_writes(object);
    }
}

/// Returns false before it is time to request a place again for an object without a copy.
pub fn may_place(transport: &mut RemoteTransport, object: usize, now: Time) -> bool {
    let has_copy = !transport.objects.at(object).copies.is_empty();
    has_copy || transport.placement_refusals.may_place(object, now)
}

fn lacks_copies(transport: &mut RemoteTransport, object: usize) -> bool {
    let copies = &transport.objects.get(object).copies;
    let stays = |copy: &&ObjectCopy| !copy.is_leaving;
    let there = copies.iter().filter(stays).count();
    there < stripes::replicas(transport, object)
}

/// Servers that can take no copy now, beside those that are `taken`. One that is avoided is better than none.
pub fn unusable(transport: &RemoteTransport, taken: ServerSet, now: Time) -> BTreeSet<HostId> {
    let hosts = |is_out: &dyn Fn(&Server) -> bool| -> BTreeSet<HostId> {
        let out = transport.servers.iter().filter(|server| is_out(server));
        out.filter_map(|server| server.host()).collect()
    };
    let is_out = |server: &Server| !server.is_up() || now < server.full_until;
    let avoided = hosts(&|server| is_out(server) || server.is_avoided(now));
    let is_in = |server: &Server| server.host().is_some_and(|host| !avoided.contains(&host));
    let mut unusable = match transport.servers.iter().any(is_in) {
        true => avoided,
        false => hosts(&is_out),
    };
    // One on this machine is better than none, too: where the others are taken, or had no room.
    let is_elsewhere = |(at, server): (usize, &Server)| {
        let host = server.host().filter(|_| taken & bit(at) == 0);
        !server.is_on_this_machine() && host.is_some_and(|host| !unusable.contains(&host))
    };
    let has_room = now >= transport.placement_refusals.full_elsewhere_until;
    if has_room && transport.servers.iter().enumerate().any(is_elsewhere) {
        unusable.extend(hosts(&Server::is_on_this_machine));
    }
    unusable.extend(transport.unshown.keys());
    unusable
}

/// Does what the organizer decided. Returns true if a copy is being created.
pub fn carry_out(transport: &mut RemoteTransport, action: OrganizerAction, now: Time) -> bool {
    match action {
        OrganizerAction::Bind { object, permit } => {
            let at = transport.objects.find(object);
            let to = index_of(transport, permit.server);
            let (Some(at), Some(to)) = (at, to) else {
                // A server that this client has not been connected to yet.
                transport.organizer.on_copy_lost(object, permit.server);
                return false;
            };
            transport.create_copy(at, to);
            transport.objects.get(at).copy_at(to).is_some()
        }
        OrganizerAction::Move {
            object,
            from,
            permit,
        } => {
            let at = transport.objects.find(object);
            let servers = (
                index_of(transport, from),
                index_of(transport, permit.server),
            );
            let (Some(at), (Some(from), Some(to))) = (at, servers) else {
                transport.organizer.on_move_ended(object, false);
                return false;
            };
            begin_move(transport, at, ObjectMove { from, to })
        }
        OrganizerAction::Reallocate(request) => {
            match &transport.broker {
                Some(broker) => broker.reallocate(request),
                None => permits::reallocate(transport, request, now),
            }
            false
        }
        OrganizerAction::Allocate(request) => {
            let id = request.permit.id;
            if transport.awaited_permit.is_some() {
                transport.permit_queue.push_back(id);
                return false;
            }
            transport.awaited_permit = Some(id);
            match &transport.broker {
                Some(broker) => broker.allocate(request),
                None => permits::allocate(transport, request, now),
            }
            false
        }
        OrganizerAction::GiveUp {
            object,
            why,
            is_full,
        } => {
            give_up(transport, object, (why, is_full), now);
            false
        }
    }
}

/// The server on a host.
pub fn index_of(transport: &RemoteTransport, host: HostId) -> Option<usize> {
    let mut servers = transport.servers.iter();
    servers.position(|server| server.host() == Some(host))
}

fn begin_move(transport: &mut RemoteTransport, object: usize, moved: ObjectMove) -> bool {
    let id = transport.objects.id(object);
    if stripes::holds_move(transport, object) {
        transport.organizer.on_move_ended(id, false);
        return false;
    }
    let name = &transport.servers[moved.to].name;
    tracing::info!(
        "{id} moves from {} to {name}",
        transport.servers[moved.from].name
    );
    transport.moves.insert(object, moved);
    if let Some(copy) = transport.objects.get(object).copy_at(moved.from) {
        copy.is_leaving = true;
    }
    transport.create_copy(object, moved.to);
    true
}

/// A copy is gone, or was not made: its server is to end it, and the organizer learns of it.
pub fn on_copy_gone(transport: &mut RemoteTransport, object: usize, server: usize) {
    transport.servers[server].stale.push(object);
    let id = transport.objects.id(object);
    let moved = transport.moves.get(&object).copied();
    match moved.filter(|moved| server == moved.from || server == moved.to) {
        Some(moved) => {
            transport.moves.remove(&object);
            let has_arrived = server == moved.from;
            if has_arrived {
                // The next object follows at once.
                transport.improved = Time(0);
            }
            transport.organizer.on_move_ended(id, has_arrived);
            if !has_arrived && let Some(copy) = transport.objects.get(object).copy_at(moved.from) {
                copy.is_leaving = false;
            }
        }
        None => {
            if let Some(host) = transport.servers[server].host() {
                transport.organizer.on_copy_lost(id, host);
            }
        }
    }
}

/// Makes the copies that objects lack, and drops those that are to leave and have another.
pub fn place_all(transport: &mut RemoteTransport, now: Time) {
    debug_assert!(
        has_right_counts(transport),
        "the pages that servers have reserved are not those of their copies"
    );
    (0..transport.servers.len()).for_each(|server| permits::terminate_stale(transport, server));
    permits::enlarge_short(transport, now);
    request_waiting(transport, now);
    comply(transport, now);
    copying::start(transport);
    stripes::step(transport, now);
    for object in 0..transport.objects.len() {
        let of = transport.objects.get(object);
        if of.copies.is_empty() || of.is_creating() || of.readable() == 0 {
            continue;
        }
        let stays = |copy: &&ObjectCopy| !copy.is_leaving;
        let has_arrived = |copy: &ObjectCopy| copy.state == CopyState::Current;
        if lacks_copies(transport, object) {
            let paused = transport
                .copies_paused_until
                .max(transport.copies_full_until);
            if transport.copy.is_none() && now >= paused {
                place(transport, object, now);
            }
            continue;
        }
        let copies = &transport.objects.get(object).copies;
        if copies.iter().any(|copy| copy.is_leaving) && copies.iter().filter(stays).all(has_arrived)
        {
            let leaving = copies.iter().filter(|copy| copy.is_leaving);
            let servers: Vec<_> = leaving.map(|copy| copy.server).collect();
            for server in servers {
                // Where it has moved to may have just ended.
                if transport.has_other_in_reach(object, server) {
                    transport.drop_copy(object, server, "it has moved", now);
                }
            }
        }
    }
    improve(transport, now);
}

/// Moves objects to nearer servers, a few at a time.
fn improve(transport: &mut RemoteTransport, now: Time) {
    let is_busy = transport.copy.is_some() || !transport.moves.is_empty();
    if is_busy || now < transport.improved + IMPROVEMENT {
        return;
    }
    transport.improved = now;
    let unusable = unusable(transport, 0, now);
    for action in transport.organizer.improve(since_start(now)) {
        match action {
            OrganizerAction::Move { object, permit, .. } if unusable.contains(&permit.server) => {
                transport.organizer.on_move_ended(object, false);
            }
            action => _ = carry_out(transport, action, now),
        }
    }
}

/// A request for a permit is refused: the organizer has the next step.
pub fn on_refused(transport: &mut RemoteTransport, request: RequestId, why: Refusal, now: Time) {
    transport.awaited_permit.take_if(|id| *id == request);
    let next = transport
        .organizer
        .on_refused(request, why, since_start(now));
    if let Some(action) = next {
        proceed(transport, action, now);
    }
    transport.has_unsent = true;
}

/// Requests the permits that waited for another's answer: they may not be needed with it, and two at once
/// could be of one server, which has one permit for a client.
pub fn request_waiting(transport: &mut RemoteTransport, now: Time) {
    for _ in 0..transport.permit_queue.len() {
        if transport.awaited_permit.is_some() {
            return;
        }
        let Some(request) = transport.permit_queue.pop_front() else {
            return;
        };
        let next = transport.organizer.reconsider(request, since_start(now));
        if let Some(action) = next {
            proceed(transport, action, now);
        }
    }
}

/// Does what the organizer decided after an answer, and goes on with the object's further copies.
pub fn proceed(transport: &mut RemoteTransport, action: OrganizerAction, now: Time) {
    let bound = match &action {
        OrganizerAction::Bind { object, .. } => transport.objects.find(*object),
        _ => None,
    };
    if carry_out(transport, action, now)
        && let Some(object) = bound
    {
        place(transport, object, now);
    }
}

/// Complies with revocations: objects that may not stay move, and where no other server takes one in and
/// another copy in reach is current, this one is dropped, or the server would end the whole permit.
fn comply(transport: &mut RemoteTransport, now: Time) {
    for server in 0..transport.servers.len() {
        let to = &transport.servers[server];
        let (Some(keep_pages), Some(host)) = (to.keep_pages, to.host()) else {
            continue;
        };
        drop_revoked(transport, server, host, keep_pages, now);
        if transport.organizer.used_pages_at(host) <= keep_pages {
            transport.servers[server].keep_pages = None;
        } else if now >= transport.copies_full_until {
            let time = since_start(now);
            for action in transport.organizer.on_revocation(host, keep_pages, time) {
                carry_out(transport, action, now);
            }
        }
    }
}

/// Drops copies at a server beyond those that may stay, as far as another copy of each is current and in reach. Those that
/// move, or wait for a place, leave by themselves.
fn drop_revoked(
    transport: &mut RemoteTransport,
    server: usize,
    host: HostId,
    keep_pages: u64,
    now: Time,
) {
    let is_leaving = |transport: &mut RemoteTransport, object: usize| {
        let id = transport.objects.id(object);
        let moves = transport.moves.get(&object);
        moves.is_some_and(|moved| moved.from == server) || transport.organizer.is_placing(id)
    };
    let there: Vec<usize> = (0..transport.objects.len())
        .filter(|object| transport.objects.get(*object).copy_at(server).is_some())
        .collect();
    let mut stay = Vec::new();
    let mut used = transport.organizer.used_pages_at(host);
    for object in there {
        match is_leaving(transport, object) {
            true => used = used.saturating_sub(transport.objects.pages_of(object).end),
            false => stay.push(object),
        }
    }
    for object in stay {
        if used > keep_pages && transport.has_other_in_reach(object, server) {
            // It is short of memory: no copy is asked of it at once.
            transport.servers[server].full_until = now + FULL;
            transport.drop_copy(object, server, "its server takes it back", now);
            used = used.saturating_sub(transport.objects.pages_of(object).end);
        }
    }
}

/// Returns true if the pages that the organizer counts at each server are those of the copies there.
fn has_right_counts(transport: &RemoteTransport) -> bool {
    (0..transport.servers.len()).all(|server| {
        let Some(host) = transport.servers[server].host() else {
            return true;
        };
        let copies = transport.objects.iter().map(|(object, of)| {
            let there = of.copies.iter().any(|copy| copy.server == server);
            u64::from(there) * transport.objects.pages_of(object).end
        });
        transport.organizer.used_pages_at(host) == copies.sum::<u64>()
    })
}
