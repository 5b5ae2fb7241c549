//! Which servers get copies of objects.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.3: binding is late, and servers in use are
//! preferred. A server may ask for a copy to be moved away (section 3.4): then another is made first, as
//! it is where one was lost.

use crate::copying;
use crate::objects::{CopyState, OBJECT_PAGES, ObjectCopy, bit};
use crate::permits;
use crate::transport::{RemoteTransport, since_start};
use disk::time::Time;
use remote_policy::redundancy::{Redundancy, ServerOffer, choose_servers};
use std::collections::BTreeSet;

/// Makes copies of an object that has none.
pub fn place(transport: &mut RemoteTransport, object: usize, now: Time) {
    let held = BTreeSet::new();
    let copies = || (1..=transport.replicas).rev();
    // One that is avoided is better than none.
    let chosen = copies()
        .find_map(|copies| choose(transport, copies, &held, now, false))
        .or_else(|| copies().find_map(|copies| choose(transport, copies, &held, now, true)));
    let any_full = transport
        .servers
        .iter()
        .any(|server| server.is_up() && now < server.full_until);
    match chosen {
        Some(servers) => servers
            .into_iter()
            .for_each(|to| transport.create_copy(object, to, now)),
        None if any_full => transport.fail_writes(object),
        // No server is connected: the write waits.
        None => {}
    }
}

/// Servers for a number of copies beside those in `held`; those that are avoided only if `any` will do.
fn choose(
    transport: &RemoteTransport,
    copies: u8,
    held: &BTreeSet<usize>,
    now: Time,
    any: bool,
) -> Option<Vec<usize>> {
    let host_of = |server: usize| transport.servers[server].host();
    let offers: Vec<_> = (0..transport.servers.len())
        .filter(|at| transport.servers[*at].is_up() && now >= transport.servers[*at].full_until)
        .filter(|at| any || !transport.servers[*at].is_avoided(now))
        .filter_map(|at| {
            let server = host_of(at)?;
            Some(ServerOffer {
                server,
                // Its answer decides: it may have more by now.
                free_pages: transport.servers[at]
                    .spare_pages()
                    .saturating_add(transport.servers[at].lendable_pages.max(OBJECT_PAGES)),
                is_in_use: transport.servers[at].reserved_pages > 0,
                round_trip: transport.latencies.of(server, since_start(now)),
            })
        })
        .collect();
    let held = held.iter().filter_map(|at| host_of(*at)).collect();
    let chosen = choose_servers(Redundancy::Replicas(copies), OBJECT_PAGES, &offers, &held).ok()?;
    let index = |host| (0..transport.servers.len()).find(|at| host_of(*at) == Some(host));
    Some(chosen.into_iter().filter_map(index).collect())
}

/// Makes one more copy of an object, beside those at the servers in `held`.
fn add_copy(transport: &mut RemoteTransport, object: usize, held: &BTreeSet<usize>, now: Time) {
    let chosen = choose(transport, held.len() as u8 + 1, held, now, false);
    for to in chosen.into_iter().flatten() {
        transport.create_copy(object, to, now);
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
    copying::start(transport);
    copying::step(transport, now);
    for object in 0..transport.objects.len() {
        let of = transport.objects.get(object);
        if of.copies.is_empty() || of.is_creating() || of.readable() == 0 {
            continue;
        }
        let stays = |copy: &&ObjectCopy| !copy.is_leaving;
        let is_kept = |copy: &ObjectCopy| !copy.is_leaving && copy.state == CopyState::Current;
        if of.copies.iter().filter(stays).count() < usize::from(transport.replicas) {
            let held = of.copies.iter().map(|copy| copy.server).collect();
            if drop_revoked(transport, object, &held, now) {
                continue;
            }
            if transport.copy.is_none() && now >= transport.copies_paused_until {
                add_copy(transport, object, &held, now);
            }
        } else if of.copies.iter().any(|copy| copy.is_leaving) && of.copies.iter().any(is_kept) {
            let leaving = of.copies.iter().filter(|copy| copy.is_leaving);
            let servers: Vec<_> = leaving.map(|copy| copy.server).collect();
            for server in servers {
                transport.drop_copy(object, server, "it has moved", now);
            }
        }
    }
}

/// Drops a copy that its server has revoked where another is current and no other server takes one in:
/// the server would end the whole permit. Returns true if it did.
fn drop_revoked(
    transport: &mut RemoteTransport,
    object: usize,
    held: &BTreeSet<usize>,
    now: Time,
) -> bool {
    let of = transport.objects.get(object);
    let readable = of.readable();
    let leaving: Vec<_> = of
        .copies
        .iter()
        .filter(|copy| copy.is_leaving)
        .copied()
        .collect();
    let revoked = leaving.iter().find(|copy| {
        let server = &transport.servers[copy.server];
        let is_over = |keep: u64| server.reserved_pages > keep;
        let has_other = readable & !bit(copy.server) != 0;
        has_other && server.keep_pages.is_some_and(is_over)
    });
    let Some(revoked) = revoked else {
        return false;
    };
    if choose(transport, held.len() as u8 + 1, held, now, false).is_some() {
        return false;
    }
    let to = &mut transport.servers[revoked.server];
    // It is short of memory: no copy is asked of it at once.
    to.full_until = now + permits::FULL;
    transport.drop_copy(object, revoked.server, "its server takes it back", now);
    let to = &mut transport.servers[revoked.server];
    to.keep_pages = to.keep_pages.filter(|keep| to.reserved_pages > *keep);
    true
}

/// Returns true if the pages that each server has reserved are those of its copies.
fn has_right_counts(transport: &RemoteTransport) -> bool {
    (0..transport.servers.len()).all(|server| {
        let copies = transport.objects.iter().flat_map(|(_, of)| &of.copies);
        let there = copies.filter(|copy| copy.server == server).count() as u64;
        transport.servers[server].reserved_pages == there * OBJECT_PAGES
    })
}
