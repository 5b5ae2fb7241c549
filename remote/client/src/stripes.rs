//! Stripes: cold objects on one server each, four of them beside one or two objects of their parity.
//!
//! Not in *Adaptive Remote Paging for Mobile Computers*. Four objects that were not used for a while lose their second
//! copies once further servers have the parities of their pages ([`crate::stripe_code`]): five objects' pages in place
//! of eight, or six, where there are six servers. As many of the servers as there are parities may go: what they had is
//! made again of what the others have ([`crate::stripe_job`]). `remote_policy::redundancy::Stripe` decides; this carries
//! it out.

use crate::degraded;
use crate::objects::{CopyState, bit};
use crate::placement;
use crate::stripe_code::MEMBERS;
use crate::stripe_gathering;
use crate::stripe_job::{self, StripeJob};
use crate::transport::{RemoteTransport, connected, since_start};
use disk::time::{Nanos, Time};
use remote_broker::protocol::ObjectRedundancy;
use remote_policy::redundancy::{
    MAX_PARTS, PartCopies, PartLoss, ServerSet, Stripe, StripeRead, StripeState, StripeStep,
    StripeView, StripeWrite,
};
use std::time::Duration;

/// How long none is begun after one has ended.
const PAUSE: Nanos = Nanos::seconds(10);
/// How long no job is begun after one failed.
const RETRY: Nanos = Nanos::seconds(1);

/// A stripe of objects.
#[derive(Clone, Debug)]
pub struct StripedObjects {
    /// The objects of its parts: members first, then parities.
    pub parts: Vec<usize>,
    pub rules: Stripe,
}

impl StripedObjects {
    /// Which part an object is.
    pub fn part_of(&self, object: usize) -> Option<usize> {
        self.parts.iter().position(|part| *part == object)
    }
}

/// The stripes of a space.
#[derive(Default)]
pub struct Stripes {
    /// By the place of their parities after the objects of the space.
    pub list: Vec<Option<StripedObjects>>,
    pub job: Option<StripeJob>,
    /// How long an object is not used before it is cold; `None` where there are no stripes.
    pub after: Option<Duration>,
    pub paused_until: Time,
    /// When cold objects are looked for again.
    pub looked_until: Time,
    /// When a job is begun again after one failed.
    pub retry_at: Time,
    /// One may have changed since they were saved.
    pub is_changed: bool,
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
    pub fn get(&self, stripe: usize) -> Option<&StripedObjects> {
        self.list.get(stripe)?.as_ref()
    }
}

/// The stripe of an object, and which part of it the object is.
fn part_of(transport: &RemoteTransport, object: usize) -> Option<(usize, &StripedObjects, usize)> {
    let at = transport.objects.stripe_of(object)?;
    let stripe = transport.stripes.get(at)?;
    Some((at, stripe, stripe.part_of(object)?))
}

/// The copies of a stripe's parts.
fn copies_of(transport: &RemoteTransport, stripe: &StripedObjects) -> [PartCopies; MAX_PARTS] {
    let mut parts = [PartCopies::default(); MAX_PARTS];
    for (part, object) in parts.iter_mut().zip(&stripe.parts) {
        let of = transport.objects.at(*object);
        let mut copies = of.copies.iter();
        *part = PartCopies {
            current: of.readable(),
            all: of.servers(|_| true),
            filling: copies
                .find(|copy| copy.state == CopyState::Copying)
                .map(|copy| copy.server),
        };
    }
    parts
}

/// Calls a stripe with what is known of its parts.
fn ask<T>(
    transport: &mut RemoteTransport,
    at: usize,
    now: Time,
    ask: impl FnOnce(&mut Stripe, StripeView<'_>) -> T,
) -> Option<T> {
    let stripe = transport.stripes.get(at)?;
    let copies = copies_of(transport, stripe);
    let view = StripeView {
        parts: &copies[..stripe.parts.len()],
        connected: connected(&transport.servers),
        replicas: transport.replicas.into(),
        is_full: now < transport.copies_full_until,
    };
    let stripe = transport.stripes.list[at].as_mut()?;
    let state = stripe.rules.state();
    let answer = ask(&mut stripe.rules, view);
    if stripe.rules.state() != state {
        (transport.stripes.is_changed, transport.has_unsent) = (true, true);
    }
    Some(answer)
}

/// Likewise, of what does not change it.
fn look<T>(
    transport: &RemoteTransport,
    object: usize,
    look: impl FnOnce(&Stripe, usize, StripeView<'_>) -> T,
) -> Option<T> {
    let (_, stripe, part) = part_of(transport, object)?;
    let copies = copies_of(transport, stripe);
    let view = StripeView {
        parts: &copies[..stripe.parts.len()],
        connected: connected(&transport.servers),
        replicas: transport.replicas.into(),
        is_full: false,
    };
    Some(look(&stripe.rules, part, view))
}

/// Copies that an object is to have.
pub fn replicas(transport: &RemoteTransport, object: usize) -> usize {
    let usual = u32::from(transport.replicas);
    let of_stripe = part_of(transport, object);
    of_stripe.map_or(usual, |(_, stripe, part)| {
        stripe.rules.replicas(part, usual)
    }) as usize
}

/// What stands for an object's pages beside its copies.
pub fn redundancy(transport: &RemoteTransport, object: usize) -> ObjectRedundancy {
    match part_of(transport, object) {
        Some((_, stripe, _)) if !stripe.rules.protects() => ObjectRedundancy::Copies,
        Some((_, _, part)) if part < MEMBERS => ObjectRedundancy::Stripe,
        Some(_) => ObjectRedundancy::Parity,
        None => ObjectRedundancy::Copies,
    }
}

/// A write of an object is about to be sent. Returns true if it waits, since a parity depends on the page.
pub fn holds_write(transport: &mut RemoteTransport, object: usize, now: Time) -> bool {
    let Some(at) = transport.objects.stripe_of(object) else {
        return false;
    };
    let write = ask(transport, at, now, |rules, _| rules.on_write());
    if write == Some(StripeWrite::Releases) {
        release(transport, at, now);
    }
    write == Some(StripeWrite::Waits)
}

/// Has an object stay where it is, or leave its stripe first. Returns true if it may not move now.
pub fn holds_move(transport: &mut RemoteTransport, object: usize) -> bool {
    let Some(at) = transport.objects.stripe_of(object) else {
        return false;
    };
    ask(transport, at, Time(0), |rules, _| rules.dissolve());
    true
}

/// Returns true if an object whose copies are gone can be had from the others of its stripe.
pub fn can_rebuild(transport: &RemoteTransport, object: usize) -> bool {
    look(transport, object, Stripe::can_rebuild) == Some(true)
}

/// The parts that give another one, without some.
pub fn sources_of(
    transport: &RemoteTransport,
    object: usize,
    failed: &[usize],
) -> Option<Vec<usize>> {
    let of_part = |rules: &Stripe, part, view: StripeView<'_>| rules.sources(part, view, failed);
    look(transport, object, of_part)?
}

/// Whether the other parts of an object's stripe give its pages, those at some servers in particular. What `failed`
/// servers have does not.
pub fn read_of(
    transport: &RemoteTransport,
    object: usize,
    usable: ServerSet,
    failed: ServerSet,
) -> StripeRead {
    let of_part = |rules: &Stripe, part, view: StripeView<'_>| {
        let is_given = |by| rules.sources_at::<MEMBERS>(part, view, by).is_some();
        match (is_given(usable & !failed), is_given(!failed)) {
            (true, _) => StripeRead::Now,
            (false, true) => StripeRead::NotNow,
            (false, false) => StripeRead::Never,
        }
    };
    look(transport, object, of_part).unwrap_or_default()
}

/// The stripe of an object, which part it is, and as many others as give it that can be read at some servers.
pub fn usable_sources(
    transport: &RemoteTransport,
    object: usize,
    usable: ServerSet,
) -> Option<(usize, usize, [usize; MEMBERS])> {
    let (at, _, part) = part_of(transport, object)?;
    let of_part = |rules: &Stripe, part, view: StripeView<'_>| rules.sources_at(part, view, usable);
    Some((at, part, look(transport, object, of_part)??))
}

/// Returns true if a copy at a server that is away can be given up, since the rest of the stripe is connected.
pub fn survives(transport: &RemoteTransport, object: usize, server: usize) -> bool {
    let can_spare =
        |rules: &Stripe, part, view: StripeView<'_>| rules.can_spare(part, server, view);
    look(transport, object, can_spare) == Some(true)
}

/// The last copy of a part is gone. Returns true if nothing of its object is lost by it.
pub fn on_copies_gone(transport: &mut RemoteTransport, object: usize, now: Time) -> bool {
    let Some((at, stripe, part)) = part_of(transport, object) else {
        return false;
    };
    let parts = stripe.parts.clone();
    match ask(transport, at, now, |rules, view| {
        rules.on_part_gone(part, view)
    }) {
        Some(PartLoss::MadeAgain) => {
            let id = transport.objects.id(object);
            tracing::warn!("{id} is made again from the others of its stripe");
            true
        }
        Some(PartLoss::Ends(lost)) => {
            // What waited to be made again has too little left.
            for other in lost.iter().filter(|other| **other != part) {
                let member = parts[*other];
                transport.lose_object(member);
                for copy in std::mem::take(&mut transport.objects.get(member).copies) {
                    placement::on_copy_gone(transport, member, copy.server);
                }
            }
            release(transport, at, now);
            !lost.contains(&part)
        }
        None => false,
    }
}

/// Ends a stripe: its members are objects as others.
pub fn release(transport: &mut RemoteTransport, at: usize, now: Time) {
    let Some(stripe) = transport.stripes.list[at].take() else {
        return;
    };
    transport.stripes.is_changed = true;
    if let Some(job) = transport.stripes.job.take_if(|job| job.stripe == at) {
        stripe_job::cancel(transport, &job);
    }
    degraded::on_stripe_ended(transport, at, now);
    for object in stripe.parts {
        transport.objects.set_stripe(object, None);
        if object < transport.objects.data() {
            continue;
        }
        for copy in std::mem::take(&mut transport.objects.get(object).copies) {
            placement::on_copy_gone(transport, object, copy.server);
        }
        // The records of its pages stay: a stripe counts for the next process until its end is saved.
        transport.objects.get(object).has_pages = false;
    }
    transport.stripes.paused_until = now + PAUSE;
    transport.has_unsent = true;
}

/// Ends the stripes of which a client that goes on finds too little.
pub fn release_hopeless(transport: &mut RemoteTransport) {
    for at in 0..transport.stripes.list.len() {
        let is_hopeless = |object: &usize| {
            transport.objects.at(*object).readable() == 0 && !can_rebuild(transport, *object)
        };
        let parts = transport.stripes.get(at).map(|stripe| &stripe.parts);
        if parts.is_some_and(|parts| parts.iter().any(is_hopeless)) {
            release(transport, at, Time(0));
        }
    }
}

/// The next steps of all stripes.
pub fn step(transport: &mut RemoteTransport, now: Time) {
    if transport.stripes.after.is_none() {
        return;
    }
    remove_surplus(transport, now);
    let time = since_start(now);
    for at in 0..transport.stripes.list.len() {
        let Some(step) = ask(transport, at, now, |rules, view| rules.step(view, time)) else {
            continue;
        };
        let object_of = |part: usize| transport.stripes.get(at).map(|stripe| stripe.parts[part]);
        match step {
            StripeStep::Wait => {}
            StripeStep::Place { part, beside } => {
                if let Some(object) = object_of(part) {
                    stripe_gathering::place_beside(transport, object, beside, now);
                }
            }
            StripeStep::Compute => stripe_job::compute(transport, at),
            StripeStep::Rebuild { part, to } => stripe_job::rebuild(transport, at, (part, to), now),
            StripeStep::Release => release(transport, at, now),
        }
    }
    stripe_job::step(transport, now);
    stripe_gathering::begin(transport, now);
}

/// The parities are written: members keep the copy that counts for them.
pub fn on_computed(transport: &mut RemoteTransport, at: usize, now: Time) {
    match ask(transport, at, now, |rules, view| rules.on_computed(view)) {
        Some(true) => {
            let shape = transport.stripes.get(at).map(|stripe| stripe.rules.shape());
            let parities = shape.map_or(0, |shape| shape.parity);
            transport.progress.count_stripe();
            tracing::info!("a stripe has its parity, in {parities} objects");
        }
        _ => release(transport, at, now),
    }
}

/// A part is made again.
pub fn on_rebuilt(transport: &mut RemoteTransport, object: usize, to: usize) {
    if let Some((at, _, part)) = part_of(transport, object) {
        ask(transport, at, Time(0), |rules, _| {
            rules.on_rebuilt(part, to)
        });
    }
}

/// A job of a stripe failed: a parity is given up, and what is made again is begun anew.
pub fn on_job_failed(transport: &mut RemoteTransport, at: usize, now: Time) {
    transport.stripes.retry_at = now + RETRY;
    let is_computing = transport
        .stripes
        .get(at)
        .is_some_and(|stripe| stripe.rules.state() == StripeState::Computing);
    if is_computing {
        release(transport, at, now);
    }
}

/// Removes the copies that objects do not need any more: those that a stripe got to have servers of its own.
fn remove_surplus(transport: &mut RemoteTransport, now: Time) {
    let up = connected(&transport.servers);
    let replicas = u32::from(transport.replicas);
    for object in 0..transport.objects.len() {
        let of = transport.objects.at(object);
        let is_moving = transport.moves.contains_key(&object);
        if of.copies.len() < 2 || is_moving || of.copies.iter().any(|copy| copy.is_leaving) {
            continue;
        }
        let surplus = look(transport, object, Stripe::surplus).unwrap_or_else(|| {
            let (there, all) = (of.readable() & up, of.servers(|_| true));
            remote_policy::redundancy::surplus_copies(there, all, replicas)
        });
        for server in (0..transport.servers.len()).filter(|at| surplus & bit(*at) != 0) {
            transport.remove_copy(object, server, now);
        }
    }
}
