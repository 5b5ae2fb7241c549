//! The pages of a stripe's parity, and of a member that is made again: the exclusive or of four objects' pages, a
//! run at a time.
//!
//! Rule: what is written is checked. Each page that is read passes its record's check as a program's read does, and a
//! page that is made again is what its record says was written, or is lost and named.

use crate::objects::{ObjectCopy, ObjectMap, bit};
use crate::requests::{Purpose, Segment};
use crate::stripes;
use crate::transport::RemoteTransport;
use disk::time::Time;
use iochannel::Op;
use remote_policy::migration::{Generation, PageNumber};
use remote_wire::{Header, Kind, MAX_RUN};
use wired::PAGE;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// The parity.
    Parity,
    /// A copy of a member.
    Member { to: usize, generation: Generation },
}

/// A job of one stripe.
pub struct StripeJob {
    /// The stripe.
    pub stripe: usize,
    /// The object that is written.
    object: usize,
    target: Target,
    /// The objects that are read.
    sources: Vec<usize>,
    /// The run.
    next: u64,
    count: usize,
    /// The exclusive or of what was read of it.
    pages: Vec<u8>,
    /// The numbers of requests without a reply.
    reading: Vec<u32>,
    writing: Vec<u32>,
    has_read: bool,
}

impl StripeJob {
    fn new(stripe: usize, object: usize, target: Target, sources: Vec<usize>) -> Self {
        Self {
            stripe,
            object,
            target,
            sources,
            next: 0,
            count: 0,
            pages: vec![0; MAX_RUN * PAGE],
            reading: Vec::new(),
            writing: Vec::new(),
            has_read: false,
        }
    }
}

/// Has the parity of a stripe written, if no job is under way.
pub fn compute(transport: &mut RemoteTransport, at: usize) {
    if transport.stripes.job.is_none()
        && let Some(stripe) = transport.stripes.get(at)
    {
        let sources = stripe.members.to_vec();
        let job = StripeJob::new(at, stripe.parity, Target::Parity, sources);
        transport.stripes.job = Some(job);
    }
}

/// Has a copy of a member filled, if no job is under way.
pub fn rebuild(
    transport: &mut RemoteTransport,
    at: usize,
    (member, copy): (usize, &ObjectCopy),
    now: Time,
) {
    if transport.stripes.job.is_none()
        && now >= transport.stripes.retry_at
        && let Some(sources) = stripes::others_of(transport, member)
    {
        let target = Target::Member {
            to: copy.server,
            generation: copy.generation,
        };
        transport.stripes.job = Some(StripeJob::new(at, member, target, sources));
    }
}

/// Ends the requests of a job: their replies are late then.
pub fn cancel(transport: &mut RemoteTransport, job: &StripeJob) {
    for number in job.reading.iter().chain(&job.writing) {
        if let Some(slot) = transport.requests.slot_of(*number) {
            transport.requests.end(slot, Ok(()));
        }
    }
}

/// Goes on, or gives the job up where a request of it has failed.
pub fn step(transport: &mut RemoteTransport, now: Time) {
    let Some(mut job) = transport.stripes.job.take() else {
        return;
    };
    let is_lost = |number: &u32| transport.requests.slot_of(*number).is_none();
    let is_gone = match job.target {
        Target::Parity => transport.objects.at(job.object).readable() == 0,
        Target::Member { to, generation } => {
            transport.objects.generation(job.object, to) != generation
        }
    };
    if is_gone || job.reading.iter().chain(&job.writing).any(is_lost) {
        cancel(transport, &job);
        return stripes::on_job_failed(transport, job.stripe, now);
    }
    if job.reading.is_empty() && job.writing.is_empty() {
        if job.has_read && !write(transport, &mut job, now) {
            cancel(transport, &job);
            return stripes::on_job_failed(transport, job.stripe, now);
        }
        if job.writing.is_empty() && !read(transport, &mut job, now) {
            return complete(transport, &job, now);
        }
    }
    transport.stripes.job = Some(job);
}

/// Returns true if a page is to be made.
fn is_made(transport: &RemoteTransport, job: &StripeJob, page: u64) -> bool {
    match job.target {
        Target::Parity => {
            let mut sources = job.sources.iter();
            sources.any(|source| transport.objects.is_held(*source, page))
        }
        Target::Member { .. } => transport.objects.is_held(job.object, page),
    }
}

/// Reads the next run. Returns false if there is none.
fn read(transport: &mut RemoteTransport, job: &mut StripeJob, now: Time) -> bool {
    let end = transport.objects.pages_of(job.object).end;
    job.next += job.count as u64;
    while job.next < end && !is_made(transport, job, job.next) {
        job.next += 1;
    }
    let run = job.next..end.min(job.next + MAX_RUN as u64);
    let run = run.take_while(|page| is_made(transport, job, *page));
    job.count = run.count();
    job.pages.fill(0);
    job.has_read = job.count > 0;
    let pages = job.next..job.next + job.count as u64;
    for source in job.sources.clone() {
        let is_held = |page: u64| transport.objects.is_held(source, page);
        if !pages.clone().any(is_held) {
            continue;
        }
        let segment = Segment::new(Purpose::StripeRead, Op::Read, source, pages.clone(), now);
        match transport.requests.add(segment) {
            Some(slot) => {
                job.reading.push(transport.requests.number(slot));
                transport.route(slot, now);
            }
            // Found to be lost with the next step.
            None => job.reading.push(u32::MAX),
        }
    }
    job.has_read
}

/// Pages of a source have come.
pub fn on_read(transport: &mut RemoteTransport, slot: usize, versions: &[u64], pages: &[u8]) {
    let number = transport.requests.number(slot);
    let Some(job) = &mut transport.stripes.job else {
        return;
    };
    let Some(at) = job.reading.iter().position(|reading| *reading == number) else {
        return;
    };
    job.reading.swap_remove(at);
    let (from, to) = (pages.chunks_exact(PAGE), job.pages.chunks_exact_mut(PAGE));
    for ((version, from), to) in versions.iter().zip(from).zip(to) {
        // A page that was never written is zeros, whatever the server sent.
        if *version != 0 {
            to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
        }
    }
    transport.has_unsent = true;
}

/// Writes the run. Returns false if a server's buffer has no room for it.
fn write(transport: &mut RemoteTransport, job: &mut StripeJob, now: Time) -> bool {
    job.has_read = false;
    let (to, parity_version) = match job.target {
        Target::Parity => {
            let server = transport.objects.at(job.object).readable().trailing_zeros();
            (server as usize, Some(transport.take_version()))
        }
        Target::Member { to, .. } => (to, None),
    };
    for at in 0..job.count {
        let page = job.next + at as u64;
        let number = ObjectMap::number(job.object, page);
        let contents = &job.pages[at * PAGE..(at + 1) * PAGE];
        let records = transport.objects.records();
        let version = parity_version.unwrap_or(records.acknowledged(number));
        match job.target {
            Target::Parity => records.on_parity_sent(number, version, contents),
            Target::Member { .. } => {
                if let Err(why) = records.check(number, version, contents) {
                    let id = transport.objects.id(job.object);
                    tracing::error!("page {page} of {id} is lost: its stripe has {why}");
                    records.lose(number);
                    continue;
                }
            }
        }
        let segment = Segment {
            version,
            awaited: bit(to),
            ..Segment::new(
                Purpose::StripeWrite,
                Op::Write,
                job.object,
                page..page + 1,
                now,
            )
        };
        let Some(slot) = transport.requests.add(segment) else {
            return false;
        };
        let header = Header {
            kind: Kind::Write,
            pages: 1,
            request: transport.requests.number(slot),
            object: transport.objects.id(job.object),
            page: PageNumber(page),
            version,
            generation: transport.objects.generation(job.object, to),
        };
        let is_sent =
            transport.servers[to].send(&header, PAGE, |room| room.copy_from_slice(contents));
        if !is_sent {
            transport.requests.end(slot, Ok(()));
            return false;
        }
        job.writing.push(transport.requests.number(slot));
    }
    true
}

/// A page is written.
pub fn on_written(transport: &mut RemoteTransport, slot: usize, segment: &Segment) {
    let number = transport.requests.number(slot);
    if let Some(job) = &mut transport.stripes.job
        && let Some(at) = job.writing.iter().position(|writing| *writing == number)
    {
        job.writing.swap_remove(at);
        if job.target == Target::Parity {
            let (object, version) = (segment.object, segment.version);
            transport.objects.acknowledge(object, segment.page, version);
        }
    }
    transport.has_unsent = true;
}

fn complete(transport: &mut RemoteTransport, job: &StripeJob, now: Time) {
    match job.target {
        Target::Parity => stripes::on_computed(transport, job.stripe, now),
        Target::Member { to, .. } => {
            if let Some(copy) = transport.objects.get(job.object).copy_at(to) {
                copy.state = crate::objects::CopyState::Current;
            }
            transport.copies_made += 1;
            let id = transport.objects.id(job.object);
            tracing::info!("{id} was made again, at {}", transport.servers[to].name);
            transport.has_unsent = true;
        }
    }
}
