//! Stripes: cold objects on one server each, four of them beside one object of their parity.
//!
//! Not in *Adaptive Remote Paging for Mobile Computers*. Four objects that were not used for a while lose their second
//! copies once a fifth server has the exclusive or of their pages: five objects' pages in place of eight. Any one of
//! the five servers may go: what it had is the exclusive or of what the others have ([`crate::stripe_job`]).
//!
//! | state | copies of a member | a write of a member |
//! |---|---|---|
//! | gathering: each member gets a server of its own | as without a stripe | ends the stripe |
//! | computing: the parity is written | as without a stripe | ends the stripe |
//! | whole | one | waits, and has the stripe dissolved |
//! | dissolving: members get second copies | becoming as without a stripe | waits |
//!
//! Rule: no page of a member changes while its parity counts, so a stripe is never written in place, and no two
//! of its five parts are at one server.

use crate::objects::{CopyState, ServerSet, bit};
use crate::placement;
use crate::stripe_gathering;
use crate::stripe_job::{self, StripeJob};
use crate::transport::{RemoteTransport, connected};
use disk::time::{Nanos, Time};
use remote_policy::redundancy::StripeShape;
use std::collections::BTreeSet;
use std::time::Duration;

/// Members of a stripe.
pub const MEMBERS: usize = StripeShape::FOUR_ONE.data as usize;
/// Servers of a stripe.
pub const PARTS: usize = MEMBERS + StripeShape::FOUR_ONE.parity as usize;
/// How long none is begun after one has ended.
const PAUSE: Nanos = Nanos::seconds(10);
/// How long no job is begun after one failed.
const RETRY: Nanos = Nanos::seconds(1);

/// How far a stripe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeState {
    /// Its members get servers of their own.
    Gathering,
    /// Its parity is being written.
    Computing,
    /// Its parity protects its members.
    Whole,
    /// Likewise, and its members get second copies.
    Dissolving,
}

/// A stripe.
#[derive(Clone, Debug)]
pub struct Stripe {
    pub members: [usize; MEMBERS],
    /// The object of its parity.
    pub parity: usize,
    pub state: StripeState,
    /// The server of each member, and of the parity.
    pub servers: [Option<usize>; PARTS],
    pub begun: Time,
}

impl Stripe {
    pub fn protects(&self) -> bool {
        matches!(self.state, StripeState::Whole | StripeState::Dissolving)
    }
}

/// The stripes of a space.
#[derive(Default)]
pub struct Stripes {
    /// By the number of their parity's object.
    pub list: Vec<Option<Stripe>>,
    pub job: Option<StripeJob>,
    /// How long an object is not used before it is cold; `None` where there are no stripes.
    pub after: Option<Duration>,
    pub paused_until: Time,
    /// When cold objects are looked for again.
    pub looked_until: Time,
    /// When a job is begun again after one failed.
    pub retry_at: Time,
}

impl Stripes {
    /// Room for so many stripes, of objects that were not used for a time.
    pub fn new(room: usize, after: Option<Duration>) -> Self {
        Self {
            list: vec![None; room],
            after,
            ..Self::default()
        }
    }

    /// A stripe.
    pub fn get(&self, stripe: usize) -> Option<&Stripe> {
        self.list.get(stripe)?.as_ref()
    }
}

/// The stripe of an object, a member or the parity.
pub fn stripe_of(transport: &RemoteTransport, object: usize) -> Option<usize> {
    transport.objects.stripe_of(object)
}

/// Copies that an object is to have.
pub fn replicas(transport: &RemoteTransport, object: usize) -> usize {
    let stripe = stripe_of(transport, object).and_then(|at| transport.stripes.get(at));
    match stripe {
        Some(stripe) if object == stripe.parity || stripe.state == StripeState::Whole => 1,
        _ => usize::from(transport.replicas),
    }
}

/// A write of an object is about to be sent. Returns true if it waits, since a parity depends on the page.
pub fn holds_write(transport: &mut RemoteTransport, object: usize, now: Time) -> bool {
    let Some(at) = stripe_of(transport, object) else {
        return false;
    };
    let Some(stripe) = transport.stripes.list[at].as_ref() else {
        return false;
    };
    if !stripe.protects() {
        release(transport, at, now);
        return false;
    }
    dissolve(transport, at);
    true
}

/// Has the members of a stripe get second copies.
pub fn dissolve(transport: &mut RemoteTransport, at: usize) {
    if let Some(stripe) = transport.stripes.list[at].as_mut()
        && stripe.state == StripeState::Whole
    {
        stripe.state = StripeState::Dissolving;
        transport.has_unsent = true;
    }
}

/// Has an object stay where it is, or leave its stripe first. Returns true if it may not move now.
pub fn holds_move(transport: &mut RemoteTransport, object: usize) -> bool {
    let at = stripe_of(transport, object);
    if let Some(at) = at {
        dissolve(transport, at);
    }
    at.is_some()
}

/// Returns true if an object whose copies are gone can be had from the others of its stripe.
pub fn can_rebuild(transport: &RemoteTransport, object: usize) -> bool {
    others_of(transport, object).is_some_and(|others| {
        let mut others = others.into_iter();
        others.all(|other| transport.objects.at(other).readable() != 0)
    })
}

/// The objects that give the pages of a member: the other members, and the parity.
pub fn others_of(transport: &RemoteTransport, object: usize) -> Option<Vec<usize>> {
    let stripe = transport.stripes.get(stripe_of(transport, object)?)?;
    let is_member = stripe.protects() && stripe.members.contains(&object);
    let others = stripe.members.into_iter().chain([stripe.parity]);
    is_member.then(|| others.filter(|other| *other != object).collect())
}

/// Returns true if a copy at a server that is away can be given up, since the rest of the stripe is connected.
pub fn survives(transport: &RemoteTransport, object: usize, server: usize) -> bool {
    let Some(at) = stripe_of(transport, object) else {
        return false;
    };
    if transport
        .stripes
        .get(at)
        .is_some_and(|it| it.parity == object)
    {
        return true;
    }
    let up: ServerSet = connected(&transport.servers) & !bit(server);
    others_of(transport, object).is_some_and(|others| {
        let mut others = others.into_iter();
        others.all(|other| transport.objects.at(other).readable() & up != 0)
    })
}

/// The last copy of a member, or that of a parity, is gone. Returns true if nothing is lost by it.
pub fn on_copies_gone(transport: &mut RemoteTransport, object: usize, now: Time) -> bool {
    let Some(at) = stripe_of(transport, object) else {
        return false;
    };
    let Some(stripe) = transport.stripes.list[at].clone() else {
        return false;
    };
    if !stripe.protects() {
        release(transport, at, now);
        return object == stripe.parity;
    }
    let is_rebuilt = can_rebuild(transport, object);
    if is_rebuilt {
        let id = transport.objects.id(object);
        tracing::warn!("{id} is made again from the others of its stripe");
        return true;
    }
    // What waited to be made again has too little left.
    for member in stripe.members {
        if member != object && transport.objects.at(member).readable() == 0 {
            transport.lose_object(member);
            for copy in std::mem::take(&mut transport.objects.get(member).copies) {
                placement::on_copy_gone(transport, member, copy.server);
            }
        }
    }
    release(transport, at, now);
    object == stripe.parity
}

/// Ends a stripe: its members are objects as others.
pub fn release(transport: &mut RemoteTransport, at: usize, now: Time) {
    let Some(stripe) = transport.stripes.list[at].take() else {
        return;
    };
    if let Some(job) = transport.stripes.job.take_if(|job| job.stripe == at) {
        stripe_job::cancel(transport, &job);
    }
    for object in stripe.members.into_iter().chain([stripe.parity]) {
        transport.objects.set_stripe(object, None);
    }
    for copy in std::mem::take(&mut transport.objects.get(stripe.parity).copies) {
        placement::on_copy_gone(transport, stripe.parity, copy.server);
    }
    transport.objects.forget(stripe.parity);
    for member in stripe.members {
        remove_surplus(transport, member, now);
    }
    transport.stripes.paused_until = now + PAUSE;
    transport.has_unsent = true;
}

/// Removes a copy that a member got to have a server of its own.
fn remove_surplus(transport: &mut RemoteTransport, member: usize, now: Time) {
    let current = transport.objects.at(member).readable();
    if current.count_ones() > u32::from(transport.replicas) {
        transport.remove_copy(member, current.ilog2() as usize, now);
    }
}

/// The next steps of all stripes.
pub fn step(transport: &mut RemoteTransport, now: Time) {
    if transport.stripes.after.is_none() {
        return;
    }
    for at in 0..transport.stripes.list.len() {
        match transport.stripes.list[at].as_ref().map(|it| it.state) {
            Some(StripeState::Gathering) => stripe_gathering::gather(transport, at, now),
            Some(StripeState::Computing) => stripe_job::compute(transport, at),
            Some(StripeState::Whole) => rebuild(transport, at, now),
            Some(StripeState::Dissolving) => {
                rebuild(transport, at, now);
                release_if_copied(transport, at, now);
            }
            None => {}
        }
    }
    stripe_job::step(transport, now);
    stripe_gathering::begin(transport, now);
}

/// Has a member that lost its copy made again, at a server that has no other part.
fn rebuild(transport: &mut RemoteTransport, at: usize, now: Time) {
    let Some(stripe) = transport.stripes.list[at].clone() else {
        return;
    };
    for member in stripe.members {
        let of = transport.objects.at(member);
        if of.readable() != 0 || !can_rebuild(transport, member) {
            continue;
        }
        let copying = of
            .copies
            .iter()
            .find(|copy| copy.state == CopyState::Copying);
        match copying.copied() {
            Some(copy) => stripe_job::rebuild(transport, at, (member, &copy), now),
            None => {
                let parts = stripe.members.into_iter().chain([stripe.parity]);
                let servers = parts.flat_map(|part| transport.objects.at(part).copies.iter());
                let mut taken: BTreeSet<usize> = servers.map(|copy| copy.server).collect();
                if (connected(&transport.servers).count_ones() as usize) < PARTS {
                    // No server is left that has no other part: the stripe ends once each member is whole.
                    taken.clear();
                    dissolve(transport, at);
                }
                stripe_gathering::place_beside(transport, member, &taken, now);
            }
        }
        return;
    }
    // A stripe without its parity protects nothing.
    if transport.objects.at(stripe.parity).readable() == 0 {
        release(transport, at, now);
    }
}

/// Ends a stripe whose members have second copies, or cannot have any for want of room.
fn release_if_copied(transport: &mut RemoteTransport, at: usize, now: Time) {
    let Some(stripe) = transport.stripes.get(at) else {
        return;
    };
    let has = |member: usize, count: usize| {
        transport.objects.at(member).readable().count_ones() as usize >= count
    };
    let wanted = usize::from(transport.replicas);
    let is_full = now < transport.copies_full_until;
    let is_done = |member: usize| has(member, wanted) || is_full && has(member, 1);
    if stripe.members.into_iter().all(is_done) {
        release(transport, at, now);
    }
}

/// The parity is written: members keep the copy that is counted for them.
pub fn on_computed(transport: &mut RemoteTransport, at: usize, now: Time) {
    let Some(stripe) = transport.stripes.list[at].clone() else {
        return;
    };
    let is_there = |(object, server): (usize, Option<usize>)| {
        server.is_some_and(|server| transport.objects.at(object).readable() & bit(server) != 0)
    };
    let parts = stripe.members.into_iter().chain([stripe.parity]);
    if !parts.zip(stripe.servers).all(is_there) {
        return release(transport, at, now);
    }
    if let Some(stripe) = transport.stripes.list[at].as_mut() {
        stripe.state = StripeState::Whole;
    }
    for (member, kept) in stripe.members.into_iter().zip(stripe.servers) {
        let copies = &transport.objects.at(member).copies;
        let others = copies.iter().filter(|copy| Some(copy.server) != kept);
        let others: Vec<usize> = others.map(|copy| copy.server).collect();
        for server in others {
            transport.remove_copy(member, server, now);
        }
    }
    tracing::info!("a stripe of {MEMBERS} objects has its parity");
}

/// A job of a stripe failed: a parity is given up, and what is made again is begun anew.
pub fn on_job_failed(transport: &mut RemoteTransport, at: usize, now: Time) {
    transport.stripes.retry_at = now + RETRY;
    let is_computing = transport
        .stripes
        .get(at)
        .is_some_and(|stripe| !stripe.protects());
    if is_computing {
        release(transport, at, now);
    }
}
