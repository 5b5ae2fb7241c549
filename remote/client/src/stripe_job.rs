//! The pages of a stripe's parities, and of a part that is made again: sums of four parts' pages, a run at a time.
//!
//! Rule: what is written is checked. Each page that is read passes its record's check as a program's read does, and a
//! page that is made again is what its record says was written, or is lost and named.

use crate::background;
use crate::objects::{CopyState, ObjectMap, bit};
use crate::requests::{Purpose, Segment};
use crate::stripe_code::{MEMBERS, add_product, factors};
use crate::stripes;
use crate::transport::RemoteTransport;
use disk::time::Time;
use iochannel::Op;
use remote_policy::identity::{Generation, PageNumber, Version};
use remote_wire::{Header, Kind, MAX_RUN};
use std::ops::Range;
use wired::PAGE;

mod unreadable;

pub use unreadable::on_unreadable;

/// An object that is written.
#[derive(Clone, Copy, Debug)]
struct Target {
    object: usize,
    /// The server of its copy, and the copy's generation.
    to: usize,
    generation: Generation,
    /// Which part it is, and the factors of the sources' pages.
    part: usize,
    factors: [u8; MEMBERS],
}

/// A job of one stripe.
pub struct StripeJob {
    /// The stripe.
    pub stripe: usize,
    /// Its parities, or a part that is made again.
    targets: Vec<Target>,
    /// The parities are written for the first time.
    is_first: bool,
    /// The objects that are read, and the parts of which the next page cannot be read.
    sources: [usize; MEMBERS],
    failed: Vec<usize>,
    /// Pages below it are read one by one, since not all of them can be read.
    single_until: u64,
    /// Pages that were made, and those passed over with the source of which each cannot be read.
    made: u64,
    passed: Vec<(u64, usize)>,
    /// The run, and the version that its parities' pages get.
    next: u64,
    count: usize,
    version: Option<Version>,
    /// For each target the sum of what was read of it.
    sums: Vec<Vec<u8>>,
    /// The numbers of requests without a reply; those of reads with the place of their source.
    reading: Vec<(u32, usize)>,
    writing: Vec<u32>,
    /// The run's pages that are not sent yet, target by target.
    unsent: Range<usize>,
}

impl StripeJob {
    /// Pages of its parts that it has come past.
    pub fn pages(&self) -> u64 {
        self.next
    }

    /// A job that writes parts, by their objects, from others. `None` if these are too few, or a part has no copy there.
    fn new(
        transport: &RemoteTransport,
        stripe: usize,
        written: &[(usize, usize)],
        sources: &[usize],
    ) -> Option<Self> {
        let parts = &transport.stripes.get(stripe)?.parts;
        let target = |(part, to): &(usize, usize)| {
            Some(Target {
                object: parts[*part],
                to: *to,
                generation: transport.objects.generation(parts[*part], *to),
                part: *part,
                factors: factors(*part, sources)?,
            })
        };
        let targets: Vec<_> = written.iter().map(target).collect::<Option<_>>()?;
        let objects: Vec<_> = sources.iter().map(|source| parts[*source]).collect();
        Some(Self {
            stripe,
            is_first: false,
            sources: objects.try_into().ok()?,
            failed: Vec::new(),
            single_until: 0,
            made: 0,
            passed: Vec::new(),
            next: 0,
            count: 0,
            version: None,
            sums: vec![vec![0; MAX_RUN * PAGE]; targets.len()],
            targets,
            reading: Vec::new(),
            writing: Vec::new(),
            unsent: 0..0,
        })
    }
}

/// Has the parities of a stripe written, if no job is under way.
pub fn compute(transport: &mut RemoteTransport, at: usize) {
    let Some(stripe) = transport.stripes.get(at) else {
        return;
    };
    if transport.stripes.job.is_some() {
        return;
    }
    let server_of = |part: usize| Some((part, stripe.rules.server_of(part)?));
    let parities = (MEMBERS..stripe.parts.len()).map(server_of);
    let Some(parities) = parities.collect::<Option<Vec<_>>>() else {
        return;
    };
    let members: [usize; MEMBERS] = std::array::from_fn(|member| member);
    let job = StripeJob::new(transport, at, &parities, &members);
    transport.stripes.job = job.map(|job| StripeJob {
        is_first: true,
        ..job
    });
}

/// Has a copy of a part filled, if no job is under way.
pub fn rebuild(transport: &mut RemoteTransport, at: usize, (part, to): (usize, usize), now: Time) {
    let Some(stripe) = transport.stripes.get(at) else {
        return;
    };
    if transport.stripes.job.is_none()
        && now >= transport.stripes.retry_at
        && let Some(sources) = stripes::sources_of(transport, stripe.parts[part], &[])
    {
        transport.stripes.job = StripeJob::new(transport, at, &[(part, to)], &sources);
    }
}

/// Ends the requests of a job: their replies are late then.
pub fn cancel(transport: &mut RemoteTransport, job: &StripeJob) {
    let reading = job.reading.iter().map(|(number, _)| number);
    for number in reading.chain(&job.writing) {
        if let Some(slot) = transport.requests.slot_of(*number) {
            transport.requests.end(slot, Ok(()));
        }
    }
}

/// Returns true if the next run is to be read.
pub fn awaits_run(transport: &RemoteTransport) -> bool {
    let job = transport.stripes.job.as_ref();
    job.is_some_and(|job| job.reading.is_empty() && job.writing.is_empty() && job.unsent.is_empty())
}

/// The objects that a job reads, and those that it writes.
pub fn counts(transport: &RemoteTransport) -> (usize, usize) {
    let job = transport.stripes.job.as_ref();
    job.map_or((0, 0), |job| (job.sources.len(), job.targets.len()))
}

/// Reads the next run, or ends the job if there is none.
pub fn begin_run(transport: &mut RemoteTransport, now: Time) {
    step(transport, now);
    if !awaits_run(transport) {
        return;
    }
    let Some(mut job) = transport.stripes.job.take() else {
        return;
    };
    match read(transport, &mut job, now) {
        true => transport.stripes.job = Some(job),
        false => complete(transport, &job, now),
    }
}

/// Writes what was read, or gives the job up where a request of it has failed.
pub fn step(transport: &mut RemoteTransport, now: Time) {
    let Some(mut job) = transport.stripes.job.take() else {
        return;
    };
    let is_lost = |number: &u32| transport.requests.slot_of(*number).is_none();
    let is_gone = |target: &Target| {
        transport.objects.generation(target.object, target.to) != target.generation
    };
    let mut reading = job.reading.iter().map(|(number, _)| number);
    if job.targets.iter().any(is_gone) || reading.any(is_lost) || job.writing.iter().any(is_lost) {
        cancel(transport, &job);
        return stripes::on_job_failed(transport, job.stripe, now);
    }
    if job.reading.is_empty() {
        write(transport, &mut job, now);
    }
    transport.stripes.job = Some(job);
}

/// Returns true if a page is to be made.
fn is_made(transport: &RemoteTransport, job: &StripeJob, page: u64) -> bool {
    let is_held = |object: usize| transport.objects.is_held(object, page);
    match job.is_first {
        true => job.sources.into_iter().any(is_held),
        false => job.targets.iter().any(|target| is_held(target.object)),
    }
}

/// Reads the next run. Returns false if there is none.
fn read(transport: &mut RemoteTransport, job: &mut StripeJob, now: Time) -> bool {
    let written = job.targets.iter().map(|target| target.object);
    let ends = written.map(|object| transport.objects.pages_of(object).end);
    let end = ends.max().unwrap_or(0);
    if job.count > 0 {
        (job.next, job.made) = (job.next + job.count as u64, job.made + job.count as u64);
        job.failed.clear();
    }
    while job.next < end && !is_made(transport, job, job.next) {
        job.next += 1;
    }
    let most = match job.next < job.single_until {
        true => 1,
        false => background::run_pages(transport),
    };
    let run = job.next..end.min(job.next + most);
    let run = run.take_while(|page| is_made(transport, job, *page));
    job.count = run.count();
    job.sums.iter_mut().for_each(|pages| pages.fill(0));
    job.unsent = 0..job.targets.len() * job.count;
    job.version = job.is_first.then(|| transport.take_version());
    let pages = job.next..job.next + job.count as u64;
    for (at, source) in job.sources.into_iter().enumerate() {
        // One that is shorter is zeros there.
        let end = transport.objects.pages_of(source).end;
        let pages = pages.start..pages.end.min(end);
        // A page that is lost was written, and is in the sums of the others.
        let is_written = |page: u64| transport.objects.version(source, page).0 != 0;
        if !pages.clone().any(is_written) {
            continue;
        }
        let segment = Segment::new(Purpose::StripeRead, Op::Read, source, pages.clone(), now);
        // Without a slot it is found to be lost with the next step.
        let slot = transport.requests.add(segment);
        let number = slot.map_or(u32::MAX, |slot| transport.requests.number(slot));
        job.reading.push((number, at));
    }
    // Their routes come with the next flush, as one that fails changes this job.
    transport.has_unsent = true;
    job.count > 0
}

/// Pages of a source have come.
pub fn on_read(transport: &mut RemoteTransport, slot: usize, versions: &[u64], pages: &[u8]) {
    let number = transport.requests.number(slot);
    let Some(job) = &mut transport.stripes.job else {
        return;
    };
    let Some(at) = job.reading.iter().position(|reading| reading.0 == number) else {
        return;
    };
    let (_, source) = job.reading.swap_remove(at);
    for (target, sum) in job.targets.iter().zip(&mut job.sums) {
        let (from, to) = (pages.chunks_exact(PAGE), sum.chunks_exact_mut(PAGE));
        for ((version, from), to) in versions.iter().zip(from).zip(to) {
            // A page that was never written is zeros, whatever the server sent.
            if *version != 0 {
                add_product(target.factors[source], from, to);
            }
        }
    }
    transport.has_unsent = true;
}

/// Writes the pages of the run that its servers' buffers have room for. The others follow with the next step.
fn write(transport: &mut RemoteTransport, job: &mut StripeJob, now: Time) {
    while let Some(at) = job.unsent.next() {
        let (target, place) = (&job.targets[at / job.count], at % job.count);
        let contents = &job.sums[at / job.count][place * PAGE..(place + 1) * PAGE];
        let page = job.next + place as u64;
        let number = ObjectMap::number(target.object, page);
        let records = transport.objects.records();
        let version = job.version.unwrap_or(records.acknowledged(number));
        if job.is_first {
            records.on_parity_sent(number, version, contents);
        } else if let Err(why) = records.check(number, version, contents) {
            let id = transport.objects.id(target.object);
            tracing::error!("page {page} of {id} is lost: its stripe has {why}");
            records.lose(number);
            continue;
        }
        match write_page(transport, target, (page, version), contents, now) {
            Some(request) => job.writing.push(request),
            None => {
                job.unsent.start = at;
                return;
            }
        }
    }
}

/// Writes a page. Returns the number of its request; `None` if there is no room for it.
fn write_page(
    transport: &mut RemoteTransport,
    target: &Target,
    (page, version): (u64, Version),
    contents: &[u8],
    now: Time,
) -> Option<u32> {
    let &Target {
        object,
        to,
        generation,
        ..
    } = target;
    let segment = Segment {
        version,
        awaited: bit(to),
        ..Segment::new(Purpose::StripeWrite, Op::Write, object, page..page + 1, now)
    };
    let slot = transport.requests.add(segment)?;
    let header = Header {
        kind: Kind::Write,
        pages: 1,
        request: transport.requests.number(slot),
        object: transport.objects.id(object),
        page: PageNumber(page),
        version,
        generation,
    };
    if !transport.servers[to].send(&header, PAGE, |room| room.copy_from_slice(contents)) {
        transport.requests.end(slot, Ok(()));
        return None;
    }
    Some(header.request)
}

/// A page is written.
pub fn on_written(transport: &mut RemoteTransport, slot: usize, segment: &Segment) {
    let number = transport.requests.number(slot);
    if let Some(job) = &mut transport.stripes.job
        && let Some(at) = job.writing.iter().position(|writing| *writing == number)
    {
        job.writing.swap_remove(at);
        if job.is_first {
            let (object, version) = (segment.object, segment.version);
            transport.objects.acknowledge(object, segment.page, version);
        }
    }
    transport.has_unsent = true;
}

/// Removes the other copies of parities: they lack what was written, and count as whole.
fn remove_unwritten(transport: &mut RemoteTransport, job: &StripeJob, now: Time) {
    for target in &job.targets {
        let copies = transport.objects.at(target.object).servers(|_| true);
        let others = copies & !bit(target.to);
        for server in (0..transport.servers.len()).filter(|at| others & bit(*at) != 0) {
            transport.remove_copy(target.object, server, now);
        }
    }
}

fn complete(transport: &mut RemoteTransport, job: &StripeJob, now: Time) {
    if job.is_first {
        remove_unwritten(transport, job, now);
        return stripes::on_computed(transport, job.stripe, now);
    }
    if job.passed.len() as u64 > job.made {
        return stripes::on_job_failed(transport, job.stripe, now);
    }
    for target in &job.targets {
        unreadable::name_passed(transport, job, target.object);
        if let Some(copy) = transport.objects.get(target.object).copy_at(target.to) {
            copy.state = CopyState::Current;
        }
        stripes::on_rebuilt(transport, target.object, target.to);
        transport.progress.count_copy();
        let id = transport.objects.id(target.object);
        let name = &transport.servers[target.to].name;
        tracing::info!("{id} was made again, at {name}");
    }
    transport.has_unsent = true;
}

#[cfg(test)]
mod tests;
