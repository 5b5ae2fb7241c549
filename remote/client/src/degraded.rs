//! Degraded reads: pages of a stripe's part whose server does not answer, from the stripe's other parts.
//!
//! Not in *Adaptive Remote Paging for Mobile Computers*. A read does not wait until the part is made again: its pages
//! are the sums of the same pages of four others ([`crate::stripe_code`]), which are read at once.
//!
//! Rule: a page that is handed over is what its record says was written. The stripe's parities count from the first
//! request to the last reply, since its end cancels the read, so no page that was read has changed meanwhile. The
//! buffers are made once, and a read that finds none waits.

use crate::objects::ObjectMap;
use crate::requests::{Purpose, Segment};
use crate::stripe_code::{MEMBERS, add_product, factors};
use crate::stripes;
use crate::transport::RemoteTransport;
use disk::time::{Nanos, Time};
use iochannel::Op;
use remote_policy::redundancy::ServerSet;
use remote_wire::MAX_RUN;
use rustix::io::Errno;
use std::ops::Range;
use wired::PAGE;

/// Degraded reads at once: four requests each.
const MOST: usize = 16;
/// How long a read waits before it goes on after its reconstruction failed.
const RETRY: Nanos = Nanos::millis(20);

/// One read, and what has come of it.
struct DegradedRead {
    /// The number of the read, while it is under way.
    parent: Option<u32>,
    stripe: usize,
    object: usize,
    pages: Range<u64>,
    factors: [u8; MEMBERS],
    /// The numbers of requests without a reply, by the place of their source.
    reading: [Option<u32>; MEMBERS],
    /// The sum of what has come.
    sum: Box<[u8]>,
}

impl DegradedRead {
    /// Returns true if no source is waited for.
    fn is_read(&self) -> bool {
        self.reading.iter().all(Option::is_none)
    }
}

/// The degraded reads under way.
#[derive(Default)]
pub struct DegradedReads {
    list: Vec<DegradedRead>,
}

impl DegradedReads {
    /// Room for degraded reads, where there are stripes.
    pub fn new(has_stripes: bool) -> Self {
        let unused = || DegradedRead {
            parent: None,
            stripe: 0,
            object: 0,
            pages: 0..0,
            factors: [0; MEMBERS],
            reading: [None; MEMBERS],
            sum: vec![0; MAX_RUN * PAGE].into_boxed_slice(),
        };
        let count = if has_stripes { MOST } else { 0 };
        Self {
            list: std::iter::repeat_with(unused).take(count).collect(),
        }
    }

    /// Returns true if one is under way.
    pub fn is_busy(&self) -> bool {
        self.list.iter().any(|read| read.parent.is_some())
    }
}

/// Begins to reconstruct what a read asks for, of parts at `usable` servers. Returns false if it has to wait.
pub fn begin(
    transport: &mut RemoteTransport,
    slot: usize,
    segment: &Segment,
    usable: ServerSet,
    now: Time,
) -> bool {
    let free = |read: &DegradedRead| read.parent.is_none();
    let Some(at) = transport.degraded.list.iter().position(free) else {
        return false;
    };
    let Some((stripe, part, sources)) = stripes::usable_sources(transport, segment.object, usable)
    else {
        return false;
    };
    let Some(factors) = factors(part, &sources) else {
        return false;
    };
    let pages = segment.page..segment.page + segment.count as u64;
    let read = &mut transport.degraded.list[at];
    read.parent = Some(transport.requests.number(slot));
    (read.stripe, read.object, read.pages) = (stripe, segment.object, pages.clone());
    (read.factors, read.reading) = (factors, [None; MEMBERS]);
    read.sum[..segment.count * PAGE].fill(0);
    for (place, source) in sources.into_iter().enumerate() {
        let Some(source) = transport.stripes.get(stripe).map(|it| it.parts[source]) else {
            continue;
        };
        // One that is shorter is zeros there.
        let end = transport.objects.pages_of(source).end;
        let pages = pages.start..pages.end.min(end);
        // A page that is lost was written, and is in the sums of the others.
        let is_written = |page: u64| transport.objects.version(source, page).0 != 0;
        if !pages.clone().any(is_written) {
            continue;
        }
        let purpose = Purpose::DegradedRead { at };
        let part = Segment::new(purpose, Op::Read, source, pages.clone(), now);
        let Some(slot) = transport.requests.add(part) else {
            end_requests(transport, at);
            return false;
        };
        transport.degraded.list[at].reading[place] = Some(transport.requests.number(slot));
    }
    if let Some(segment) = transport.requests.get(slot) {
        segment.is_reconstructed = true;
    }
    if transport.degraded.list[at].is_read() {
        // No source was ever written.
        complete(transport, at, now);
        return true;
    }
    transport.progress.count_degraded_read();
    // Their routes come with the next flush, as one that fails ends this read.
    transport.has_unsent = true;
    true
}

/// Pages of a source have come.
pub fn on_read<'a>(
    transport: &mut RemoteTransport,
    (slot, segment): (usize, &Segment),
    pages: impl Iterator<Item = (u64, &'a [u8])>,
    now: Time,
) {
    let Purpose::DegradedRead { at } = segment.purpose else {
        return;
    };
    let number = transport.requests.number(slot);
    transport.end(slot, Ok(()));
    let read = &mut transport.degraded.list[at];
    let Some(place) = read.reading.iter().position(|it| *it == Some(number)) else {
        return;
    };
    read.reading[place] = None;
    for ((version, from), to) in pages.zip(read.sum.chunks_exact_mut(PAGE)) {
        // A page that was never written is zeros, whatever the server sent.
        if version != 0 {
            add_product(read.factors[place], from, to);
        }
    }
    if read.is_read() {
        complete(transport, at, now);
    }
}

/// All sources have come: hands the pages over, if they are what was written.
fn complete(transport: &mut RemoteTransport, at: usize, now: Time) {
    let read = &mut transport.degraded.list[at];
    let Some(parent) = read
        .parent
        .and_then(|number| transport.requests.slot_of(number))
    else {
        // Its server has answered first.
        read.parent = None;
        return;
    };
    let Some(segment) = transport.requests.get(parent).copied() else {
        return;
    };
    let sum = std::mem::take(&mut read.sum);
    let outcome = hand_over(transport, &segment, &sum);
    transport.degraded.list[at].sum = sum;
    match outcome {
        Ok(()) => {
            transport.degraded.list[at].parent = None;
            transport.budget.on_answer();
            transport.end(parent, Ok(()));
        }
        Err(why) => {
            let id = transport.objects.id(segment.object);
            tracing::warn!("{id} cannot be read from the others of its stripe: {why}");
            fail(transport, at, ServerSet::MAX, now);
        }
    }
}

fn hand_over(transport: &RemoteTransport, segment: &Segment, sum: &[u8]) -> Result<(), String> {
    let pages = segment.page..segment.page + segment.count as u64;
    let records = transport.objects.records();
    let numbers = pages.map(|page| ObjectMap::number(segment.object, page));
    let bodies = numbers.clone().zip(sum.chunks_exact(PAGE));
    for (number, contents) in bodies.clone() {
        if records.is_lost(number) {
            return Err("a page of it is lost".to_owned());
        }
        let version = records.acknowledged(number);
        if version.0 != 0 {
            let checked = records.check(number, version, contents);
            checked.map_err(|why| why.to_string())?;
        }
    }
    let bodies = bodies.map(|(number, contents)| (records.acknowledged(number).0, contents));
    let opened = transport.hand_over(segment, bodies);
    opened.map_err(|why| why.to_string())
}

/// Returns true if there is a buffer for another degraded read.
pub fn has_room(transport: &RemoteTransport) -> bool {
    let mut list = transport.degraded.list.iter();
    list.any(|read| read.parent.is_none())
}

/// Returns true if a degraded read can be begun anew of parts at `usable` servers.
pub fn has_sources(transport: &RemoteTransport, at: usize, usable: ServerSet) -> bool {
    let object = transport.degraded.list[at].object;
    stripes::usable_sources(transport, object, usable).is_some()
}

/// A source of a degraded read was not read. Where none of its copies has the pages, they are read there once more, as
/// what a server sent may have been wrong once, and then of other parts only.
pub fn on_unread(
    transport: &mut RemoteTransport,
    at: usize,
    source: &Segment,
    result: Result<(), Errno>,
    now: Time,
) {
    let failed = match result {
        Err(Errno::IO) => transport.objects.at(source.object).readable(),
        _ => 0,
    };
    fail(transport, at, failed, now);
}

/// A source of a degraded read cannot be read now, or at `failed` servers: the read goes on as if it had not begun,
/// somewhat later.
pub fn fail(transport: &mut RemoteTransport, at: usize, failed: ServerSet, now: Time) {
    let parent = transport.degraded.list[at].parent;
    end_requests(transport, at);
    let slot = parent.and_then(|number| transport.requests.slot_of(number));
    if let Some(segment) = slot.and_then(|slot| transport.requests.get(slot)) {
        let [once, twice] = segment.failed_sources;
        segment.failed_sources = [once | failed, twice | once & failed];
        segment.is_reconstructed = false;
        segment.not_before = now + RETRY;
    }
    transport.has_unsent = true;
}

/// Ends the requests of a degraded read: their replies are late then.
fn end_requests(transport: &mut RemoteTransport, at: usize) {
    let read = &mut transport.degraded.list[at];
    read.parent = None;
    for number in std::mem::take(&mut read.reading).into_iter().flatten() {
        if let Some(slot) = transport.requests.slot_of(number) {
            transport.requests.end(slot, Ok(()));
        }
    }
}

/// A stripe ends: what is read of its parts is no sum of others any more.
pub fn on_stripe_ended(transport: &mut RemoteTransport, stripe: usize, now: Time) {
    for at in 0..transport.degraded.list.len() {
        let read = &transport.degraded.list[at];
        if read.parent.is_some() && read.stripe == stripe {
            fail(transport, at, 0, now);
        }
    }
}
