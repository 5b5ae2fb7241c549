//! The transport of a client whose process was killed, from what it left.
//!
//! Requests that were under way are in their channels still and are served again; their pages get later versions than
//! any that was sent, so that what the earlier process sent last never covers them. Copies that were being made are
//! made again.
//!
//! What is lost with the process: which pages some copies lack, since no server could read them (such a copy is given
//! up at the first read of one, and made again), and a permit that was granted and had not arrived, whose pages stay
//! granted until the client's lease ends.

use crate::client_state::SavedServer;
use crate::objects::ObjectMap;
use crate::server::Server;
use crate::stripe_state;
use crate::stripes;
use crate::transport::RemoteTransport;
use disk::time::Time;
use remote_policy::migration::Version;

/// Requests for permits, and channels, of each process of a client are numbered from a multiple of this.
pub const REQUESTS: u64 = 1 << 32;

/// Restores the servers at their indexes: they are connected to as at the start, and given up if they are not there.
pub fn restore_servers(transport: &mut RemoteTransport) -> std::io::Result<()> {
    for SavedServer {
        address,
        incarnation,
        permit,
    } in transport.objects.state().servers()
    {
        let index = transport.servers.len();
        let reconnect = transport.connectors.start(index, &address)?;
        let mut server = Server::new(address, reconnect);
        (server.incarnation, server.permit) = (incarnation, permit);
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
    last
}
