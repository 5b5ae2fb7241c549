//! The client's use of remote memory, as it is reported to the broker for people.

use crate::objects::{CopyState, ObjectCopy};
use crate::stripes;
use crate::transport::{RemoteTransport, since_start};
use disk::time::Time;
use remote_broker::protocol::{ClientUse, MAX_HOLDERS, MAX_OBJECTS, MAX_ROUND_TRIPS, ObjectPlace};

/// The use at a time.
pub fn of(transport: &RemoteTransport, now: Time) -> ClientUse {
    let time = since_start(now);
    let hosts = |copies: &[ObjectCopy], is_current: bool| {
        let is = |copy: &&ObjectCopy| (copy.state == CopyState::Current) == is_current;
        let host = |copy: &ObjectCopy| transport.servers[copy.server].host();
        let hosts = copies.iter().filter(is).filter_map(host);
        hosts.take(MAX_HOLDERS).collect()
    };
    let place = |(object, copies): (usize, &[ObjectCopy])| ObjectPlace {
        object: transport.objects.id(object),
        redundancy: stripes::redundancy(transport, object),
        servers: hosts(copies, true),
        copying_to: hosts(copies, false),
    };
    let held = transport
        .objects
        .iter()
        .map(|(object, of)| (object, &of.copies[..]));
    let held = held.filter(|(_, copies)| !copies.is_empty());
    let latencies = transport.organizer.latencies();
    let hosts = transport.servers.iter().filter_map(|server| server.host());
    ClientUse {
        objects: held.take(MAX_OBJECTS).map(place).collect(),
        round_trips: hosts
            .filter_map(|host| Some((host, latencies.of(host, time)?)))
            .take(MAX_ROUND_TRIPS)
            .collect(),
        copies_under_way: (transport.moves.len() as u32).max(transport.copy.is_some().into()),
        copies_made: transport.progress.copies_made(),
    }
}
