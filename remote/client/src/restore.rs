//! The transport of a client whose process was killed, from what it left.
//!
//! Requests that were under way are in their channels still and are served again; their pages get later versions than
//! any that was sent, so that what the earlier process sent last never covers them. Copies that were being made are
//! made again.
//!
//! What is lost with the process: which pages some copies lack, since no server could read them (such a copy is given
//! up at the first read of one, and made again), and a permit that was granted and had not arrived, whose pages stay
//! granted until the client's lease ends. Pages that have no copy any more are lost and named; the object's next copy has
//! what is written from then on.

use crate::client_state::SavedServer;
use crate::objects::ObjectMap;
use crate::server::Server;
use crate::stripe_state;
use crate::stripes;
use crate::transport::RemoteTransport;
use disk::time::Time;
use remote_policy::identity::Version;

/// Requests for permits, and channels, of each process of a client are numbered from a multiple of this.
pub const REQUESTS: u64 = 1 << 32;

/// Restores the servers at their indexes: they are connected to as at the start, and given up if they are not there.
pub fn restore_servers(transport: &mut RemoteTransport) -> std::io::Result<()> {
    for SavedServer {
        address,
        control,
        incarnation,
        permit,
    } in transport.objects.state().servers()
    {
        let index = transport.servers.len();
        let reconnect = transport.connectors.start(index, &address)?;
        let mut server = Server::new(address, reconnect);
        (server.incarnation, server.permit) = (incarnation, permit);
        server.control = control;
        server.presence.on_disconnected(Time(0));
        transport.servers.push(server);
    }
    Ok(())
}

/// Restores the stripes whose parities count. Those that were being made are made anew.
fn restore_stripes(transport: &mut RemoteTransport) {
    let data = transport.objects.data();
    for at in 0..transport.stripes.list.len() {
        let Some(stripe) = stripe_state::find(transport.objects.state(), at, data) else {
            continue;
        };
        for object in &stripe.parts {
            transport.objects.set_stripe(*object, Some(at));
        }
        transport.stripes.list[at] = Some(stripe);
    }
}

/// Restores the objects and what the organizer knows of them. Returns the version of the last write.
pub fn restore_objects(transport: &mut RemoteTransport, starts: u64) -> Version {
    let mut last = Version(1);
    let mut bound = Vec::new();
    restore_stripes(transport);
    for object in 0..transport.objects.len() {
        let (latest, mut copies) = transport.objects.state().object(object);
        let is_parity = object >= transport.objects.data();
        if is_parity && transport.objects.stripe_of(object).is_none() {
            copies.clear();
            transport.objects.forget(object);
        }
        // Without a permit there the copy is gone.
        copies.retain(|copy| {
            let server = transport.servers.get(copy.server);
            server.is_some_and(|server| server.permit.is_some() && server.host().is_some())
        });
        if latest.0 == 0 {
            continue;
        }
        let pages = transport.objects.pages_of(object);
        let id = transport.objects.id(object);
        for copy in &copies {
            let host = transport.servers[copy.server].host();
            bound.extend(host.map(|host| (id, pages.end, host)));
        }
        // What was being made, or was to be removed, is of no use.
        for (index, server) in transport.servers.iter_mut().enumerate() {
            if server.permit.is_some() && !copies.iter().any(|copy| copy.server == index) {
                server.stale.push(object);
            }
        }
        let mut numbers = pages.clone().map(|page| ObjectMap::number(object, page));
        let has_pages = pages
            .clone()
            .any(|page| transport.objects.is_held(object, page));
        let records = transport.objects.records();
        last = numbers
            .by_ref()
            .map(|page| records.issued(page))
            .fold(last, Ord::max);
        let of = transport.objects.get(object);
        (of.latest, of.copies, of.has_pages) = (latest, copies, has_pages);
    }
    let permits = transport.servers.iter().filter_map(|server| server.permit);
    let permits: Vec<_> = permits.map(|sealed| sealed.permit).collect();
    transport
        .organizer
        .restore(permits, bound, starts * REQUESTS);
    stripes::release_hopeless(transport);
    lose_unreachable(transport);
    last
}

/// Marks the pages lost of objects that have no copy any more. Without that each copy that is made later would wait for
/// theirs, and no write of the object would be read again.
fn lose_unreachable(transport: &mut RemoteTransport) {
    for object in 0..transport.objects.data() {
        let of = transport.objects.at(object);
        if of.has_pages && of.readable() == 0 && !stripes::can_rebuild(transport, object) {
            transport.lose_object(object);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::arrival::Arrivals;
    use crate::connector::Connectors;
    use crate::objects::{CopyState, ObjectCopy, SpaceSize, bit};
    use remote_policy::identity::{Generation, HostId, Incarnation};
    use rustix::event::{EventfdFlags, eventfd};
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use wired::PAGE;

    pub(crate) const CLIENT: Incarnation = Incarnation::new(HostId(1), 1, 1);

    /// A transport of a space, without servers.
    pub(crate) fn transport_of(objects: ObjectMap) -> RemoteTransport {
        let (queue, arrived) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let connectors = Connectors {
            client: CLIENT,
            name: "client".to_owned(),
            keys: None,
            arrivals: Arrivals { queue, bell },
        };
        RemoteTransport::new(objects, Vec::new(), 2, None, connectors, arrived).unwrap()
    }

    /// A space of two objects, as a process of the client has left it.
    fn left_by(act: impl FnOnce(&mut ObjectMap)) -> RemoteTransport {
        let space = SpaceSize {
            bytes: 2 * crate::OBJECT_PAGES * PAGE as u64,
            has_stripes: false,
        };
        let state = ObjectMap::new_state(space, false).unwrap();
        let mut before = ObjectMap::new(CLIENT.host, space, None, state.clone());
        act(&mut before);
        before.save(|_| ());
        let mut transport = transport_of(ObjectMap::new(CLIENT.host, space, None, state));
        transport.restore(1).unwrap();
        transport
    }

    fn copy(state: CopyState) -> ObjectCopy {
        ObjectCopy {
            server: 0,
            state,
            is_leaving: false,
            generation: Generation(4),
        }
    }

    /// Has one page of the first object written, whose only copy was at a server that is not known any more.
    fn without_a_copy() -> RemoteTransport {
        left_by(|objects| {
            objects.records().on_write_begun(7, Version(9));
            objects.acknowledge(0, 7, Version(9));
            objects.get(0).latest = Generation(4);
            objects.get(0).copies.push(copy(CopyState::Current));
        })
    }

    #[test]
    fn a_page_whose_only_copy_is_gone_is_lost_and_one_never_written_is_absent() {
        let transport = without_a_copy();
        assert!(transport.objects.is_lost(0, 7));
        assert!(!transport.objects.is_lost(0, 6));
        assert_eq!(transport.objects.version(0, 6), Version(0));
        assert!(!transport.objects.is_held(0, 7));
    }

    #[test]
    fn what_is_written_to_an_object_without_a_copy_is_read_again() {
        let mut transport = without_a_copy();
        let of = transport.objects.get(0);
        assert_eq!((of.latest, of.has_pages), (Generation(4), false));
        // A server creates the next copy.
        let next = ObjectCopy {
            generation: Generation(5),
            ..copy(CopyState::Creating)
        };
        of.copies.push(next);
        transport.on_created(0, 0, 5);
        assert_eq!(transport.objects.at(0).readable(), bit(0));
        transport.objects.acknowledge(0, 7, Version(10));
        assert!(transport.objects.is_held(0, 7));
    }
}
