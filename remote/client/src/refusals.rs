//! Requests of pages that a server refuses: whether they are sent again, go elsewhere or fail.

use crate::objects::bit;
use crate::outage::STALLED;
use crate::permits;
use crate::placement_refusals::FullWrite;
use crate::requests::Segment;
use crate::transport::RemoteTransport;
use disk::time::{Nanos, Time};
use iochannel::Op;
use remote_wire::Status;
use rustix::io::Errno;

/// How long a write is held that is refused at the only current copy in reach. The servers of others are given up after
/// [`outage::GRACE`](crate::outage::GRACE), or are back.
const HOLD: Nanos = Nanos::millis(100);

/// Why a server refuses a request.
#[derive(Clone, Copy, Debug)]
pub struct PageRefusal<'a> {
    /// `None` where it has a code that this client does not know.
    pub status: Option<Status>,
    /// For people.
    pub text: &'a str,
}

/// Handles the refusal of a request in a slot.
pub fn on_refused(
    transport: &mut RemoteTransport,
    (slot, segment): (usize, Segment),
    server: usize,
    reason: &PageRefusal<'_>,
    now: Time,
) {
    let segment = &segment;
    let &PageRefusal { status, text } = reason;
    // The server has no such object any more.
    let is_gone = matches!(status, Some(Status::NoObject | Status::Generation));
    // The pages of a copy's or a stripe's write are not here any more.
    let is_copied = segment.op == Op::Write && !segment.is_own();
    match segment.op {
        // It is sent again with the next tick, or with other requests.
        _ if status == Some(Status::Busy) && !is_copied && now < segment.begun + STALLED => {
            send_again(transport, slot, server);
        }
        // Its reply to the permit that it is shown says whether the object is still there.
        Op::Write
            if status == Some(Status::NoPermit)
                && !is_copied
                && transport.servers[server].awaits_present() =>
        {
            send_again(transport, slot, server);
        }
        // The server took back pages of the permit that no write had used.
        Op::Write if status == Some(Status::Full) && !is_copied => {
            on_full(transport, (slot, segment), server, reason, now);
        }
        Op::Read if is_gone => {
            transport.drop_copy(segment.object, server, text, now);
            transport.retry_elsewhere(slot, server, now);
        }
        Op::Read => transport.on_bad_copy(slot, segment, server, text, now),
        Op::Write
            if !is_gone
                && transport
                    .objects
                    .get(segment.object)
                    .is_only_current(server) =>
        {
            fail_write(transport, (slot, segment), server, reason, now);
        }
        Op::Write if is_gone => transport.drop_copy(segment.object, server, text, now),
        Op::Write if segment.is_own() && !transport.can_spare(segment.object, server) => {
            hold(transport, slot, now + HOLD);
        }
        Op::Write => drop_refused(transport, segment.object, server, text, now),
    }
}

/// A server refuses a write of a copy that is not the only one: it goes on without the copy, and the next one is made
/// elsewhere, or later. At the same server it would be refused as soon as it is filled.
fn drop_refused(
    transport: &mut RemoteTransport,
    object: usize,
    server: usize,
    why: &str,
    now: Time,
) {
    transport.servers[server].on_write_refused(now);
    transport.drop_copy(object, server, why, now);
}

/// Has a request sent again with the next tick, or with other requests.
fn send_again(transport: &mut RemoteTransport, slot: usize, server: usize) {
    if let Some(segment) = transport.requests.get(slot) {
        segment.unsent |= bit(server);
    }
}

/// Has a write be sent at a time, to all copies that there are then.
fn hold(transport: &mut RemoteTransport, slot: usize, until: Time) {
    if let Some(segment) = transport.requests.get(slot) {
        (segment.awaited, segment.unsent) = (0, 0);
        segment.not_before = until;
    }
}

/// A permit has no room for a write. At the only current copy in reach the write waits for some seconds, in which more
/// pages are asked for; with another one it goes on without this one where it is not known that they were taken back.
fn on_full(
    transport: &mut RemoteTransport,
    (slot, segment): (usize, &Segment),
    server: usize,
    reason: &PageRefusal<'_>,
    now: Time,
) {
    let object = segment.object;
    if permits::is_requesting_pages(transport, object, server) {
        return send_again(transport, slot, server);
    }
    if transport.can_spare(object, server) {
        return match permits::request_pages_again(transport, object, server, now) {
            true => send_again(transport, slot, server),
            false => drop_refused(transport, object, server, reason.text, now),
        };
    }
    match transport.placement_refusals.on_full(object, server, now) {
        FullWrite::RequestPages => {
            transport.servers[server].short_of = Some(object);
            send_again(transport, slot, server);
        }
        FullWrite::Hold(until) => hold(transport, slot, until),
        FullWrite::Fail => return fail_write(transport, (slot, segment), server, reason, now),
    }
    if let Some(segment) = transport.requests.get(slot) {
        segment.is_short = true;
    }
}

/// The only current copy refuses a write. It still has the pages written before, so the write
/// fails and the copy stays. The first one of an outage is an error for people to see.
fn fail_write(
    transport: &mut RemoteTransport,
    (slot, segment): (usize, &Segment),
    server: usize,
    &PageRefusal { status, text }: &PageRefusal<'_>,
    now: Time,
) {
    if !segment.is_own() {
        // A parity, which is made anew.
        transport.servers[server].on_write_refused(now);
    }
    let (id, name) = (
        transport.objects.id(segment.object),
        &transport.servers[server].name,
    );
    let line = format_args!("a write of {id} at {name}, its only copy, fails: {text}");
    match transport.placement_refusals.on_write_failed(server, now) {
        true => tracing::error!("{line}"),
        false => tracing::debug!("{line}"),
    }
    let errno = match status {
        Some(Status::Full | Status::NoPages) => Errno::NOSPC,
        _ => Errno::IO,
    };
    transport.end(slot, Err(errno));
}
