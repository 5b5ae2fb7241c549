//! What of the state is shown where all of it is longer than a message.
//!
//! Rule: the hosts are always there, then come the clients, then each client's objects; what is left out is counted.

use crate::frame::MAX_MESSAGE;
use crate::protocol::{ClientSummary, ClusterStatus, ObjectPlace};
use postcard::ser_flavors::Size;
use serde::Serialize;

/// Bytes of a reply with a state beside what is counted here: the length of its lists, and its own kind.
const AROUND: usize = 64;

/// Leaves out what a message has no room for.
pub fn cut(status: ClusterStatus) -> ClusterStatus {
    cut_to(MAX_MESSAGE, status)
}

fn cut_to(most: usize, mut status: ClusterStatus) -> ClusterStatus {
    if AROUND + length_of(&status) <= most {
        return status;
    }
    let mut clients = std::mem::take(&mut status.clients);
    let lists: Vec<_> = clients
        .iter_mut()
        .map(|client| std::mem::take(&mut client.usage.objects))
        .collect();
    let mut room = most.saturating_sub(AROUND + length_of(&status));
    for (mut client, objects) in clients.into_iter().zip(&lists) {
        client.objects_left_out = objects.len() as u64;
        match room.checked_sub(length_of(&client)) {
            Some(rest) => {
                room = rest;
                status.clients.push(client);
            }
            None => status.clients_left_out += 1,
        }
    }
    let all = status.clients.len();
    let of_shown = lists.into_iter().take(all);
    for (number, (client, objects)) in status.clients.iter_mut().zip(of_shown).enumerate() {
        // The length of the list grows by two bytes at most.
        let share = (room / (all - number)).saturating_sub(2);
        let used = show_objects(client, objects, share);
        room = room.saturating_sub(used + 2);
    }
    status
}

/// Shows as many of a client's objects as have room. Returns their bytes.
fn show_objects(client: &mut ClientSummary, objects: Vec<ObjectPlace>, room: usize) -> usize {
    let mut used = 0;
    for object in objects {
        let length = length_of(&object);
        if used + length > room {
            break;
        }
        used += length;
        client.objects_left_out -= 1;
        client.usage.objects.push(object);
    }
    used
}

fn length_of(value: &impl Serialize) -> usize {
    // What cannot be serialized has no room.
    postcard::serialize_with_flavor(value, Size::default()).unwrap_or(usize::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use crate::protocol::{ClientUse, Cluster, MAX_OBJECTS, Reply};
    use remote_policy::identity::{HostId, Incarnation, ObjectId};

    fn client(number: u64, objects: usize) -> ClientSummary {
        let place = |number| ObjectPlace {
            object: ObjectId {
                client: HostId(u64::MAX),
                number,
            },
            redundancy: Default::default(),
            servers: vec![HostId(u64::MAX); 2],
            copying_to: Vec::new(),
        };
        ClientSummary {
            client: Incarnation::new(HostId(number), u128::MAX, u64::MAX),
            name: "a host's name".to_owned(),
            permits: vec![(HostId(u64::MAX), 1 << 40)],
            usage: ClientUse {
                objects: (0..objects as u64).map(place).collect(),
                ..ClientUse::default()
            },
            objects_left_out: 0,
        }
    }

    fn status(clients: u64, objects: usize) -> ClusterStatus {
        ClusterStatus {
            cluster: Cluster::default(),
            is_broker: true,
            servers: Vec::new(),
            clients: (0..clients).map(|number| client(number, objects)).collect(),
            clients_left_out: 0,
        }
    }

    fn left_out(status: &ClusterStatus) -> u64 {
        status.clients.iter().map(|it| it.objects_left_out).sum()
    }

    #[test]
    fn a_state_that_fits_is_whole() {
        let small = status(4, 100);
        assert_eq!(cut(small.clone()), small);
    }

    #[test]
    fn of_a_state_longer_than_a_message_each_client_has_a_part() {
        let whole = status(20, MAX_OBJECTS);
        assert!(frame::encode(&Reply::Status(whole.clone())).is_err());
        let shown = cut(whole);
        assert!(frame::encode(&Reply::Status(shown.clone())).is_ok());
        assert_eq!(shown.clients.len(), 20);
        let listed = shown.clients.iter().map(|it| it.usage.objects.len());
        assert!(listed.clone().all(|listed| listed > 500));
        let all = 20 * MAX_OBJECTS as u64;
        assert_eq!(left_out(&shown), all - listed.sum::<usize>() as u64);
    }

    #[test]
    fn clients_that_have_no_room_are_counted() {
        let shown = cut(status(100_000, 1));
        assert!(frame::encode(&Reply::Status(shown.clone())).is_ok());
        assert!(!shown.clients.is_empty());
        let all = shown.clients.len() as u64 + shown.clients_left_out;
        assert_eq!(all, 100_000);
    }
}
