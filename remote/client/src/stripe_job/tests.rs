use super::*;
use crate::objects::{ObjectCopy, ServerSet, SpaceSize};
use crate::restore::tests::{CLIENT, transport_of};
use crate::server::Server;
use crate::stripes::{StripedObjects, Stripes};
use remote_policy::redundancy::{PartCopies, Stripe, StripeShape, StripeStep, StripeView};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The copies of a stripe's parts. A member's second server has a parity, too, which so got another copy while the first
/// one of the member was away.
const COPIES: [&[usize]; 5] = [&[0], &[1], &[2, 4], &[3], &[4, 5]];

fn transport() -> RemoteTransport {
    let space = SpaceSize {
        bytes: MEMBERS as u64 * crate::OBJECT_PAGES * PAGE as u64,
        has_stripes: true,
    };
    let state = ObjectMap::new_state(space, false).unwrap();
    let mut transport = transport_of(ObjectMap::new(CLIENT.host, space, None, state));
    for number in 0..6 {
        let server = Server::new(format!("server{number}"), channel().0);
        transport.servers.push(server);
    }
    for (object, servers) in COPIES.iter().enumerate() {
        transport.objects.set_stripe(object, Some(0));
        let copies = servers.iter().map(|server| ObjectCopy {
            server: *server,
            state: CopyState::Current,
            is_leaving: false,
            generation: Generation(1),
        });
        transport.objects.get(object).copies.extend(copies);
    }
    transport
}

#[test]
fn a_parity_is_written_to_the_copy_that_stays() {
    let mut transport = transport();
    let of_servers = |servers: &&[usize]| {
        let current = servers.iter().fold(0, |set, at| set | bit(*at));
        PartCopies {
            current,
            all: current,
            filling: None,
        }
    };
    let parts: Vec<_> = COPIES.iter().map(of_servers).collect();
    let view = StripeView {
        parts: &parts,
        connected: ServerSet::MAX & !bit(2),
        replicas: 2,
        is_full: false,
    };
    let mut rules = Stripe::new(StripeShape::FOUR_ONE, Duration::ZERO);
    let step = rules.step(view, Duration::ZERO);
    assert_eq!(step, StripeStep::Compute);
    transport.stripes = Stripes::new(1, Some(Duration::ZERO));
    transport.stripes.list[0] = Some(StripedObjects {
        parts: (0..COPIES.len()).collect(),
        rules,
    });
    compute(&mut transport, 0);
    let job = transport.stripes.job.take().unwrap();
    complete(&mut transport, &job, Time(0));
    let stripe = transport.stripes.get(0).unwrap();
    assert!(stripe.rules.protects());
    // The other one, which is empty, would be read in its place.
    let copies = transport.objects.at(MEMBERS).readable();
    assert_eq!((job.targets[0].to, copies), (5, bit(5)));
}
