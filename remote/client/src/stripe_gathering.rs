//! How cold objects become a stripe: each gets a server of its own, and so does the parity.

use crate::objects::{CopyState, ObjectCopy, bit};
use crate::placement;
use crate::stripes::{MEMBERS, PARTS, Stripe, StripeState, release, stripe_of};
use crate::transport::{RemoteTransport, connected, since_start};
use disk::time::{Nanos, Time};
use remote_policy::identity::HostId;
use remote_policy::redundancy::{ColdPolicy, Redundancy};
use std::collections::BTreeSet;

/// How long a stripe may gather.
const GATHERING: Nanos = Nanos::seconds(60);
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
    let is_gathering = |stripe: &Stripe| !stripe.protects();
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
    let cold = policy.select(&uses, stored, up.min(PARTS), since_start(now));
    let cold = cold
        .iter()
        .filter_map(|one| transport.objects.find(one.usage.object));
    let cold: Vec<usize> = cold.take(MEMBERS).collect();
    let Ok(members) = <[usize; MEMBERS]>::try_from(cold) else {
        return;
    };
    let parity = transport.objects.data() + at;
    members
        .into_iter()
        .chain([parity])
        .for_each(|object| transport.objects.set_stripe(object, Some(at)));
    transport.stripes.list[at] = Some(Stripe {
        members,
        parity,
        state: StripeState::Gathering,
        servers: [None; PARTS],
        begun: now,
    });
}

/// Returns true if an object may become a member.
fn is_eligible(transport: &RemoteTransport, object: usize) -> bool {
    let of = transport.objects.at(object);
    let pages = transport.objects.pages_of(object);
    let is_current = |copy: &ObjectCopy| copy.state == CopyState::Current && !copy.is_leaving;
    of.has_pages
        && of.unreadable.is_empty()
        && of.copies.len() >= usize::from(transport.replicas)
        && of.copies.iter().all(is_current)
        && stripe_of(transport, object).is_none()
        && !transport.requests.has_write(object)
        && !pages
            .into_iter()
            .any(|page| transport.objects.is_lost(object, page))
}

/// Gives each member, and then the parity, a server that no other part has.
pub fn gather(transport: &mut RemoteTransport, at: usize, now: Time) {
    let Some(mut stripe) = transport.stripes.list[at].clone() else {
        return;
    };
    if now >= stripe.begun + GATHERING {
        return release(transport, at, now);
    }
    stripe.servers = [None; PARTS];
    let parts = stripe.members.into_iter().chain([stripe.parity]);
    for (part, object) in parts.enumerate() {
        let taken: BTreeSet<usize> = stripe.servers.iter().copied().flatten().collect();
        let current = transport.objects.at(object).readable() & connected(&transport.servers);
        let own = (0..transport.servers.len())
            .find(|server| current & bit(*server) != 0 && !taken.contains(server));
        stripe.servers[part] = own;
        if own.is_none() {
            return place_beside(transport, object, &taken, now);
        }
    }
    stripe.state = StripeState::Computing;
    transport.stripes.list[at] = Some(stripe);
}

/// Makes a copy of an object at a server that has no other part of its stripe, if none is being made.
pub fn place_beside(
    transport: &mut RemoteTransport,
    object: usize,
    taken: &BTreeSet<usize>,
    now: Time,
) {
    let id = transport.objects.id(object);
    let of = transport.objects.at(object);
    let is_making = of
        .copies
        .iter()
        .any(|copy| copy.state != CopyState::Current);
    if is_making || transport.organizer.is_placing(id) || now < transport.copies_full_until {
        return;
    }
    let mut exclude = placement::unusable(transport, now);
    let hosts = taken
        .iter()
        .filter_map(|server| transport.servers[*server].host());
    exclude.extend(hosts.collect::<Vec<HostId>>());
    let pages = transport.objects.pages_of(object).end;
    let action = transport
        .organizer
        .place(id, pages, &exclude, since_start(now));
    placement::carry_out(transport, action, now);
}
