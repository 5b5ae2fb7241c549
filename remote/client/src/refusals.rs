//! Requests of pages that a server refuses: whether they are sent again, go elsewhere or fail.

use crate::objects::bit;
use crate::outage::STALLED;
use crate::permits;
use crate::requests::{Purpose, Segment};
use crate::transport::RemoteTransport;
use disk::time::Time;
use iochannel::Op;
use remote_wire::Status;
use rustix::io::Errno;

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
    // The pages of a copy's write are not here any more.
    let is_copied = segment.purpose == Purpose::CopyWrite;
    match segment.op {
        // It is sent again with the next tick, or with other requests.
        _ if status == Some(Status::Busy) && !is_copied && now < segment.begun + STALLED => {
            if let Some(segment) = transport.requests.get(slot) {
                segment.unsent |= bit(server);
            }
        }
        // Its reply to the permit that it is shown says whether the object is still there.
        Op::Write
            if status == Some(Status::NoPermit)
                && !is_copied
                && transport.servers[server].awaits_present() =>
        {
            if let Some(segment) = transport.requests.get(slot) {
                segment.unsent |= bit(server);
            }
        }
        // The server took back pages of the permit that no write had used.
        Op::Write
            if status == Some(Status::Full)
                && !is_copied
                && permits::on_short(transport, segment.object, server, now) =>
        {
            if let Some(segment) = transport.requests.get(slot) {
                segment.unsent |= bit(server);
            }
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
            fail_write(transport, (slot, segment), server, reason);
        }
        Op::Write => transport.drop_copy(segment.object, server, text, now),
    }
}

/// The only current copy refuses a write. It still has the pages written before, so the write
/// fails and the copy stays.
fn fail_write(
    transport: &mut RemoteTransport,
    (slot, segment): (usize, &Segment),
    server: usize,
    &PageRefusal { status, text }: &PageRefusal<'_>,
) {
    let (id, name) = (
        transport.objects.id(segment.object),
        &transport.servers[server].name,
    );
    tracing::error!("a write of {id} at {name}, its only copy, fails: {text}");
    let errno = match status {
        Some(Status::Full | Status::NoPages) => Errno::NOSPC,
        _ => Errno::IO,
    };
    transport.end(slot, Err(errno));
}
