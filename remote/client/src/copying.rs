//! How a copy of an object gets its pages: from a current one, a run at a time, one object after the
//! other.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.4, step two of a move. Writes of the program go
//! to the copy from its creation on, with versions above those that are copied, so their order does not
//! matter.

use crate::background;
use crate::objects::{CopyState, ObjectMap, ServerSet, bit};
use crate::requests::{Purpose, Segment};
use crate::transport::{RemoteTransport, connected};
use disk::time::{Nanos, Time};
use iochannel::Op;
use remote_policy::identity::{Generation, PageNumber, Version};
use remote_wire::{Header, Kind};
use wired::PAGE;

/// How long nothing is copied after pages could not be read from any copy.
const COPY_PAUSE: Nanos = Nanos::millis(5000);
/// Most pages that a copy is made without: more are no single sectors that fail, but a disk.
pub const MOST_PASSED: usize = 16;

/// An object whose pages are being copied.
#[derive(Clone, Copy, Debug)]
pub struct CopyJob {
    object: usize,
    to: usize,
    /// The generation of the copy.
    generation: Generation,
    /// The next page to be read.
    next: u64,
    /// Writes that are not acknowledged.
    writing: usize,
    is_reading: bool,
    /// Pages below it are read one by one, since not all of them can be read.
    single_until: u64,
    /// Pages that were copied, and those passed over since they cannot be read.
    copied: u64,
    passed: u64,
}

impl CopyJob {
    /// Pages of the object that it has come past.
    pub fn pages(&self) -> u64 {
        self.next
    }

    /// The object, and the server that gets the copy.
    pub fn makes(&self) -> [usize; 2] {
        [self.object, self.to]
    }

    /// Returns true if this is a copy of an object to a server.
    pub fn is_of(&self, object: usize, to: usize) -> bool {
        (self.object, self.to) == (object, to)
    }

    /// Returns true if a read is for this copy, not for an earlier one to the same server.
    fn has_read(&self, read: &Segment) -> bool {
        let (to, generation) = (self.to, self.generation);
        read.object == self.object && read.purpose == Purpose::CopyRead { to, generation }
    }

    /// Returns true if this is a copy of an object.
    pub fn is_of_object(&self, object: usize) -> bool {
        self.object == object
    }
}

/// Starts copying the pages of a copy that was created, where a current one is in reach: one that is not would keep the
/// others waiting. Without any it is made again from its stripe.
pub fn start(transport: &mut RemoteTransport) {
    if transport.copy.is_some() {
        return;
    }
    transport.copy = next_copy(&transport.objects, connected(&transport.servers));
}

/// The first copy that lacks pages and has a source among the servers that are `up`.
fn next_copy(objects: &ObjectMap, up: ServerSet) -> Option<CopyJob> {
    let copying = objects.iter().find_map(|(object, of)| {
        let mut copies = of.copies.iter().filter(|_| of.readable() & up != 0);
        let copy = copies.find(|copy| copy.state == CopyState::Copying)?;
        Some((object, copy.server, copy.generation))
    });
    copying.map(|(object, to, generation)| CopyJob {
        object,
        to,
        generation,
        next: 0,
        writing: 0,
        is_reading: false,
        single_until: 0,
        copied: 0,
        passed: 0,
    })
}

/// Returns true if the next run is to be read.
pub fn awaits_run(transport: &RemoteTransport) -> bool {
    let idle = |job: CopyJob| !job.is_reading && job.writing == 0;
    transport.copy.is_some_and(idle)
}

/// Reads the next run, once the one before is written.
pub fn begin_run(transport: &mut RemoteTransport, now: Time) {
    let Some(mut job) = transport.copy.filter(|_| awaits_run(transport)) else {
        return;
    };
    let end = transport.objects.pages_of(job.object).end;
    while job.next < end && !transport.objects.is_held(job.object, job.next) {
        job.next += 1;
    }
    transport.copy = Some(job);
    if job.next == end {
        return complete(transport, job, now);
    }
    let most = match job.next < job.single_until {
        true => 1,
        false => background::run_pages(transport),
    };
    let most = job.next..end.min(job.next + most);
    // A run with a lost page cannot be read.
    let is_there = |page: &u64| !transport.objects.is_lost(job.object, *page);
    let count = most.take_while(is_there).count() as u64;
    let pages = job.next..job.next + count;
    let purpose = Purpose::CopyRead {
        to: job.to,
        generation: job.generation,
    };
    let read = Segment::new(purpose, Op::Read, job.object, pages, now);
    if let Some(slot) = transport.requests.add(read) {
        transport.copy = Some(CopyJob {
            is_reading: true,
            ..job
        });
        transport.route(slot, now);
    }
}

fn complete(transport: &mut RemoteTransport, job: CopyJob, now: Time) {
    if job.passed > job.copied {
        return pause(transport, now);
    }
    transport.copy = None;
    transport.progress.count_copy();
    if let Some(copy) = transport.objects.get(job.object).copy_at(job.to) {
        copy.state = CopyState::Current;
    }
    let (id, name) = (
        transport.objects.id(job.object),
        &transport.servers[job.to].name,
    );
    tracing::info!("{name} has a copy of {id}");
}

/// Pages for a copy were read: sends them on, each run of one version by itself.
pub fn on_read(
    transport: &mut RemoteTransport,
    read: &Segment,
    versions: &[u64],
    pages: &[u8],
    now: Time,
) {
    let Some(job) = transport.copy.filter(|job| job.has_read(read)) else {
        return;
    };
    let to = job.to;
    let mut job = CopyJob {
        is_reading: false,
        next: read.page,
        ..job
    };
    let mut at = 0;
    while at < versions.len() {
        let run = versions[at..]
            .iter()
            .take_while(|version| **version == versions[at])
            .count();
        // What has no room is read again.
        if versions[at] != 0
            && !send_copied(
                transport,
                read,
                (at, run),
                Version(versions[at]),
                to,
                pages,
                now,
            )
        {
            break;
        }
        if versions[at] != 0 {
            job.writing += 1;
            job.copied += run as u64;
        }
        at += run;
        job.next = read.page + at as u64;
    }
    transport.copy = Some(job);
}

fn send_copied(
    transport: &mut RemoteTransport,
    read: &Segment,
    (at, run): (usize, usize),
    version: Version,
    to: usize,
    pages: &[u8],
    now: Time,
) -> bool {
    let page = read.page + at as u64;
    let segment = Segment {
        version,
        awaited: bit(to),
        ..Segment::new(
            Purpose::CopyWrite,
            Op::Write,
            read.object,
            page..page + run as u64,
            now,
        )
    };
    let Some(slot) = transport.requests.add(segment) else {
        return false;
    };
    let header = Header {
        kind: Kind::Write,
        pages: run as u16,
        request: transport.requests.number(slot),
        object: transport.objects.id(read.object),
        page: PageNumber(page),
        version,
        generation: transport.objects.generation(read.object, to),
    };
    let bytes = &pages[at * PAGE..(at + run) * PAGE];
    let is_sent =
        transport.servers[to].send(&header, bytes.len(), |room| room.copy_from_slice(bytes));
    if !is_sent {
        transport.requests.end(slot, Ok(()));
    }
    is_sent
}

/// A run of a copy is written.
pub fn on_written(transport: &mut RemoteTransport) {
    if let Some(job) = &mut transport.copy {
        job.writing = job.writing.saturating_sub(1);
    }
}

/// Pages for a copy could not be read anywhere: they are read one by one, and those
/// that fail alone are passed over. They are lost if the other copies are, and the rest is not.
pub fn on_unreadable(transport: &mut RemoteTransport, read: &Segment, now: Time) {
    let Some(mut job) = transport.copy.filter(|job| job.has_read(read)) else {
        return;
    };
    job.is_reading = false;
    if read.count > 1 {
        job.single_until = read.page + read.count as u64;
    } else {
        (job.next, job.passed) = (read.page + 1, job.passed + 1);
        transport
            .objects
            .get(job.object)
            .unreadable
            .insert(read.page);
        let id = transport.objects.id(job.object);
        tracing::error!(
            "page {} of {id} is copied nowhere: no server can read it",
            read.page
        );
    }
    transport.copy = Some(job);
    if job.passed > MOST_PASSED as u64 {
        pause(transport, now);
    }
}

/// No server has answered a read for a copy.
pub fn on_late(transport: &mut RemoteTransport, read: &Segment, now: Time) {
    if transport.copy.is_some_and(|job| job.has_read(read)) {
        pause(transport, now);
    }
}

/// Too many pages could not be read. They are not read again at once.
fn pause(transport: &mut RemoteTransport, now: Time) {
    transport.copies_paused_until = now + COPY_PAUSE;
    on_failed(transport, now);
}

/// A request of the copy failed: the copy begins anew.
pub fn on_failed(transport: &mut RemoteTransport, now: Time) {
    if let Some(job) = transport.copy.take() {
        transport.drop_copy(job.object, job.to, "its pages could not be copied", now);
    }
}

/// A server is away: a copy to it begins anew later.
pub fn on_server_lost(transport: &mut RemoteTransport, server: usize, now: Time) {
    if transport.copy.is_some_and(|job| job.to == server) {
        on_failed(transport, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{ObjectCopy, SpaceSize};
    use crate::restore::tests::CLIENT;

    #[test]
    fn a_copy_without_a_source_in_reach_keeps_no_other_waiting() {
        let space = SpaceSize {
            bytes: 2 * crate::OBJECT_PAGES * PAGE as u64,
            has_stripes: false,
        };
        let state = ObjectMap::new_state(space, false).unwrap();
        let mut objects = ObjectMap::new(CLIENT.host, space, None, state);
        for (object, server, state) in [
            (0, 0, CopyState::Current),
            (0, 2, CopyState::Copying),
            (1, 1, CopyState::Current),
            (1, 2, CopyState::Copying),
        ] {
            objects.get(object).copies.push(ObjectCopy {
                server,
                state,
                is_leaving: false,
                generation: Generation(1 + server as u64),
            });
        }
        let begun = |up| next_copy(&objects, up).map(|job| job.makes());
        assert_eq!(begun(bit(0) | bit(1) | bit(2)), Some([0, 2]));
        assert_eq!(begun(bit(1) | bit(2)), Some([1, 2]));
        assert_eq!(begun(bit(2)), None);
    }
}
