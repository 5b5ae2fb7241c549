//! How cold objects become a stripe: which ones, and where a part gets a copy of its own.

use crate::objects::{CopyState, ObjectCopy, ObjectMap, ServerSet, bit};
use crate::placement;
use crate::stripe_code::{MEMBERS, PARITIES};
use crate::stripes::StripedObjects;
use crate::transport::{RemoteTransport, connected, since_start};
use disk::time::{Nanos, Time};
use remote_policy::identity::{HostId, ObjectId};
use remote_policy::lru_size::ObjectUse;
use remote_policy::redundancy::{ColdPolicy, Redundancy, Stripe, StripeChoice, StripeShape};

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
        .filter_map(|object| transport.organizer.use_of(transport.objects.id(object)))
        .collect();
    let stored = Redundancy::Replicas(transport.replicas);
    let select = |uses: &[ObjectUse]| policy.select(uses, stored, up, since_start(now));
    let eligible = |id| {
        let object = transport.objects.find(id);
        object.filter(|object| is_eligible(transport, *object))
    };
    if let Some((shape, members)) = choose(&uses, select, eligible) {
        gather(transport, at, &members, shape, now);
    }
}

/// The members of the next stripe. To look at an object reads all of its records, so of those that are cold only as many
/// are looked at as it takes.
fn choose(
    uses: &[ObjectUse],
    select: impl FnOnce(&[ObjectUse]) -> Vec<StripeChoice>,
    eligible: impl FnMut(ObjectId) -> Option<usize>,
) -> Option<(StripeShape, Vec<usize>)> {
    let cold = select(uses);
    let objects = cold.iter().map(|one| one.usage.object);
    let members: Vec<_> = objects.filter_map(eligible).take(MEMBERS).collect();
    let shape = cold.first()?.shape;
    (members.len() == MEMBERS).then_some((shape, members))
}

/// Begins a stripe of some members.
pub fn gather(
    transport: &mut RemoteTransport,
    at: usize,
    members: &[usize],
    shape: StripeShape,
    now: Time,
) {
    let first_parity = transport.objects.data() + at * PARITIES;
    let parities = first_parity..first_parity + usize::from(shape.parity);
    let parts: Vec<usize> = members.iter().copied().chain(parities).collect();
    for object in &parts {
        transport.objects.set_stripe(*object, Some(at));
    }
    // They have those of an earlier stripe, whose end is saved.
    for parity in &parts[MEMBERS..] {
        transport.objects.forget(*parity);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OBJECT_PAGES;
    use std::time::Duration;

    #[test]
    fn the_records_of_objects_that_are_not_cold_are_not_read() {
        let now = Duration::from_secs(1000);
        // Each is unused for 100 s longer than the one before.
        let used = |number: u64| ObjectUse {
            object: ObjectId {
                client: HostId(1),
                number,
            },
            size_pages: OBJECT_PAGES,
            last_used: now - Duration::from_secs(100 * number),
            faults: 0,
        };
        let uses: Vec<_> = (0..10).map(used).collect();
        let looked_at = |cold_after, servers| {
            let policy = ColdPolicy {
                idle: Duration::from_secs(cold_after),
                ..ColdPolicy::default()
            };
            let mut looked_at = Vec::new();
            let select =
                |uses: &[ObjectUse]| policy.select(uses, Redundancy::Replicas(2), servers, now);
            let chosen = choose(&uses, select, |id| {
                looked_at.push(id.number);
                (id.number != 8).then_some(id.number as usize)
            });
            (looked_at, chosen.map(|(_, members)| members))
        };
        assert_eq!(looked_at(1000, 6), (vec![], None));
        assert_eq!(looked_at(0, 4), (vec![], None));
        assert_eq!(looked_at(650, 6), (vec![9, 8, 7], None));
        let members = (vec![9, 8, 7, 6, 5], Some(vec![9, 7, 6, 5]));
        assert_eq!(looked_at(0, 6), members);
    }
}
