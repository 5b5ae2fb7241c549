//! Requests of pages that wait to be sent, and their order: page-ins go before writes, and a write that has waited before
//! those that came later.

use crate::objects::{ObjectMap, ServerSet, bit};
use crate::requests::Segment;
use crate::transport::{RemoteTransport, connected};
use disk::time::Time;
use iochannel::Op;
use remote_policy::identity::PageNumber;
use remote_wire::{Header, Kind};
use wired::PAGE;

/// Sends what waits, as fast as the links take it.
pub(crate) fn send_and_flush(transport: &mut RemoteTransport, now: Time) {
    loop {
        let left = match transport.has_unsent {
            true => send_unsent(transport, now),
            false => 0,
        };
        transport.save();
        for server in 0..transport.servers.len() {
            if let Err(why) = transport.servers[server].flush(&transport.epoll, server) {
                transport.on_link_lost(server, now, &why.to_string());
            }
        }
        let mut servers = transport.servers.iter().enumerate();
        if !servers.any(|(at, server)| left & bit(at) != 0 && server.takes_pages()) {
            return;
        }
    }
}

/// Sends what is not sent yet to the servers that are connected, reads of processes first, as far as their links take
/// it. Returns the servers whose links do not take all of it.
fn send_unsent(transport: &mut RemoteTransport, now: Time) -> ServerSet {
    transport.has_unsent = false;
    for slot in transport.requests.slots() {
        let segment = transport.requests.get(slot);
        if segment.is_some_and(|segment| segment.awaits_route(now)) {
            // It waits for an object or a server.
            transport.route(slot, now);
        }
    }
    let up = connected(&transport.servers);
    let mut left = 0;
    let slots = transport.requests.slots_from(transport.next_unsent);
    let mut first_left = None;
    for is_first in [true, false] {
        for slot in slots.clone() {
            let is_due = |it: &Segment| (it.op == Op::Read && it.is_awaited()) == is_first;
            let Some(segment) = transport.requests.get(slot).copied().filter(is_due) else {
                continue;
            };
            let of_segment = send_to_all(transport, slot, &segment, segment.unsent & up, now);
            left |= of_segment;
            first_left = first_left.or((of_segment != 0).then_some(slot));
        }
    }
    transport.next_unsent = first_left.unwrap_or(0);
    transport.has_unsent |= left != 0;
    left
}

/// Sends a segment to servers. Returns those whose links do not take it.
fn send_to_all(
    transport: &mut RemoteTransport,
    slot: usize,
    segment: &Segment,
    servers: ServerSet,
    now: Time,
) -> ServerSet {
    let mut left = servers;
    for server in (0..transport.servers.len()).filter(|at| servers & bit(*at) != 0) {
        if !send(transport, slot, segment, server) {
            continue;
        }
        left &= !bit(server);
        if let Some(segment) = transport.requests.get(slot) {
            segment.unsent &= !bit(server);
            segment.sent = now;
        }
        if segment.is_awaited() {
            transport.recent = server;
        }
    }
    left
}

fn send(transport: &mut RemoteTransport, slot: usize, segment: &Segment, server: usize) -> bool {
    if segment.op == Op::Write && !transport.servers[server].takes_pages() {
        return false;
    }
    // The pages of other writes are sent as they are made.
    debug_assert!(segment.op == Op::Read || segment.is_own());
    let header = Header {
        kind: match segment.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
        },
        pages: segment.count as u16,
        request: transport.requests.number(slot),
        object: transport.objects.id(segment.object),
        page: PageNumber(segment.page),
        version: segment.version,
        generation: transport.objects.generation(segment.object, server),
    };
    let len = match segment.op {
        Op::Read => 0,
        Op::Write => segment.count * PAGE,
    };
    let (requests, records) = (&transport.requests, transport.objects.records());
    let first = ObjectMap::number(segment.object, segment.page);
    transport.servers[server].send(&header, len, |room| {
        let rooms = room.chunks_exact_mut(PAGE).zip(first..);
        for (page, (room, number)) in requests.pages(segment).zip(rooms) {
            // SAFETY: a page of the part, mapped until it is reaped. Its program may change it
            // meanwhile; what was copied is what is hashed and sent.
            unsafe { std::ptr::copy_nonoverlapping(page, room.as_mut_ptr(), PAGE) };
            records.on_write_sent(number, segment.version, room);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_link::OpenLink;
    use crate::requests::Purpose;
    use crate::restore::tests::{CLIENT, transport_of};
    use crate::server::Server;
    use crate::{OBJECT_PAGES, objects::SpaceSize};
    use remote_wire::{FrameReader, Link, MAX_RUN};
    use rustix::net::sockopt;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::channel;

    const NOW: Time = Time(0);
    const WRITES: usize = 12;

    /// A transport with a server whose socket takes little.
    fn with_server() -> (RemoteTransport, Link) {
        let space = SpaceSize {
            bytes: OBJECT_PAGES * PAGE as u64,
            has_stripes: false,
        };
        let state = ObjectMap::new_state(space, false).unwrap();
        let mut transport = transport_of(ObjectMap::new(CLIENT.host, space, None, state));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        sockopt::set_socket_recv_buffer_size(&listener, 1 << 16).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = Link::plain(listener.accept().unwrap().0).unwrap();
        let (link, reader) = (Link::plain(stream).unwrap(), FrameReader::new().unwrap());
        let mut server = Server::new("test".to_owned(), channel().0);
        server.open = Some(OpenLink::new(link, reader, &transport.epoll, 0).unwrap());
        transport.servers.push(server);
        (transport, peer)
    }

    fn add(transport: &mut RemoteTransport, op: Op, page: u64, count: usize) {
        let pages = page..page + count as u64;
        let segment = Segment {
            awaited: bit(0),
            unsent: bit(0),
            ..Segment::new(Purpose::Part(0), op, 0, pages, NOW)
        };
        transport.requests.add(segment).unwrap();
        transport.has_unsent = true;
    }

    /// The kinds and pages of what arrives, where later writes take the place of those that have.
    fn arrivals(
        transport: &mut RemoteTransport,
        peer: &mut Link,
        later: usize,
    ) -> Vec<(Kind, u64)> {
        let mut reader = FrameReader::new().unwrap();
        let (mut arrived, mut added) = (Vec::new(), 0);
        while arrived.len() < WRITES + 1 + later {
            send_and_flush(transport, NOW);
            let _ = reader.fill(peer);
            while let Some(frame) = reader.next_frame().unwrap() {
                arrived.push((frame.header.kind, frame.header.page.0));
                let slot = transport.requests.slot_of(frame.header.request).unwrap();
                assert_eq!(transport.requests.end(slot, Ok(())), None);
                if added < later {
                    let page = 1000 + added as u64;
                    add(transport, Op::Write, page, MAX_RUN);
                    added += 1;
                }
            }
        }
        arrived
    }

    #[test]
    fn a_page_in_goes_before_writes_that_wait() {
        let (mut transport, mut peer) = with_server();
        (0..WRITES).for_each(|at| add(&mut transport, Op::Write, at as u64 * 32, MAX_RUN));
        send_and_flush(&mut transport, NOW);
        add(&mut transport, Op::Read, 7, 1);
        let arrived = arrivals(&mut transport, &mut peer, 0);
        let read = arrived
            .iter()
            .position(|arrived| *arrived == (Kind::Read, 7));
        assert!(read.unwrap() < WRITES / 2, "{arrived:?}");
    }

    #[test]
    fn a_write_that_has_waited_goes_before_later_ones() {
        let (mut transport, mut peer) = with_server();
        (0..=WRITES).for_each(|at| add(&mut transport, Op::Write, at as u64 * 32, MAX_RUN));
        let arrived = arrivals(&mut transport, &mut peer, 40);
        let is_early = |(_, page): &(Kind, u64)| *page < 1000;
        assert!(arrived[..=WRITES].iter().all(is_early), "{arrived:?}");
    }
}
