//! How cold objects become a stripe: which ones, and where a part gets a copy of its own.

use crate::objects::{CopyState, ObjectCopy, ObjectMap, ServerSet, bit};
use crate::placement;
use crate::stripe_code::{MEMBERS, PARITIES};
use crate::stripes::StripedObjects;
use crate::transport::{RemoteTransport, connected, since_start};
use disk::time::{Nanos, Time};
use remote_policy::identity::HostId;
use remote_policy::redundancy::{ColdPolicy, Redundancy, Stripe};

/// How often cold objects are looked for.
const LOOK: Nanos = Nanos::seconds(1);

/// Begins a stripe of objects that are cold, one at a time.
pub fn begin(transport: &mut RemoteTransport, now: Time) {
    let is_busy = transport.copy.is_some()
        || !transport.moves.is_empty()
        || now < transport.copies_full_until
        || now
            < transport
                .stripes
                .paused_until
                .max(transport.stripes.looked_until);
    let is_gathering = |stripe: &StripedObjects| !stripe.rules.protects();
    if is_busy || transport.stripes.list.iter().flatten().any(is_gathering) {
        return;
    }
    let Some(at) = transport.stripes.list.iter().position(Option::is_none) else {
        return;
    };
    transport.stripes.looked_until = now + LOOK;
    let up = connected(&transport.servers).count_ones() as usize;
    let policy = ColdPolicy {
        idle: transport.stripes.after.unwrap_or_default(),
        ..ColdPolicy::default()
    };
    let uses: Vec<_> = (0..transport.objects.data())
        .filter(|object| is_eligible(transport, *object))
        .filter_map(|object| transport.organizer.use_of(transport.objects.id(object)))
        .collect();
    let stored = Redundancy::Replicas(transport.replicas);
    let cold = policy.select(&uses, stored, up, since_start(now));
    let Some(shape) = cold.first().map(|one| one.shape) else {
        return;
    };
    let members = cold.iter().take(MEMBERS);
    let members = members.filter_map(|one| transport.objects.find(one.usage.object));
    let first_parity = transport.objects.data() + at * PARITIES;
    let parities = first_parity..first_parity + usize::from(shape.parity);
    let parts: Vec<usize> = members.chain(parities).collect();
    if parts.len() < shape.parts() {
        return;
    }
    for object in &parts {
        transport.objects.set_stripe(*object, Some(at));
    }
    let rules = Stripe::new(shape, since_start(now));
    transport.stripes.list[at] = Some(StripedObjects { parts, rules });
}

/// Returns true if an object may become a member. Its parity is computed of one copy, which need not be the one that stays:
/// where a write has failed they may differ, until the page is written again.
fn is_eligible(transport: &RemoteTransport, object: usize) -> bool {
    let of = transport.objects.at(object);
    let is_settled = |page| {
        let page = ObjectMap::number(object, page);
        transport.objects.records().is_settled(page)
    };
    let is_current = |copy: &ObjectCopy| copy.state == CopyState::Current && !copy.is_leaving;
    of.has_pages
        && of.unreadable.is_empty()
        && of.copies.len() >= usize::from(transport.replicas)
        && of.copies.iter().all(is_current)
        && transport.objects.stripe_of(object).is_none()
        && !transport.requests.has_write(object)
        && transport.objects.pages_of(object).all(is_settled)
}

/// Makes a copy of a part at a server that is not one of some, if none is being made.
pub fn place_beside(transport: &mut RemoteTransport, object: usize, beside: ServerSet, now: Time) {
    let id = transport.objects.id(object);
    let of = transport.objects.at(object);
    let is_making = of
        .copies
        .iter()
        .any(|copy| copy.state != CopyState::Current);
    if is_making
        || transport.organizer.is_placing(id)
        || now < transport.copies_full_until
        || !placement::may_place(transport, object, now)
    {
        return;
    }
    let mut exclude = placement::unusable(transport, beside, now);
    let taken = (0..transport.servers.len()).filter(|server| beside & bit(*server) != 0);
    let hosts = taken.filter_map(|server| transport.servers[server].host());
    exclude.extend(hosts.collect::<Vec<HostId>>());
    let pages = transport.objects.pages_of(object).end;
    let action = transport
        .organizer
        .place(id, pages, &exclude, since_start(now));
    placement::carry_out(transport, action, now);
}
