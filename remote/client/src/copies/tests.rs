//! How long writes wait, in a time of the tests' own.

use super::*;
use crate::objects::{ObjectMap, SpaceSize};
use crate::restore::tests::{CLIENT, transport_of};
use crate::stripes::{StripedObjects, Stripes};
use remote_policy::redundancy::{Stripe, StripeShape};
use wired::PAGE;

fn at(seconds: u64) -> Time {
    Time(0) + Nanos::seconds(seconds)
}

/// A space of four objects that are a stripe, which dissolves.
fn dissolving() -> RemoteTransport {
    let space = SpaceSize {
        bytes: 4 * crate::OBJECT_PAGES * PAGE as u64,
        has_stripes: true,
    };
    let state = ObjectMap::new_state(space, false).unwrap();
    let mut objects = ObjectMap::new(CLIENT.host, space, None, state);
    (0..5).for_each(|part| objects.set_stripe(part, Some(0)));
    let mut transport = transport_of(objects);
    transport.stripes = Stripes::new(1, None);
    transport.stripes.list[0] = Some(StripedObjects {
        parts: (0..5).collect(),
        rules: Stripe::restored(StripeShape::FOUR_ONE, true),
    });
    transport
}

#[test]
fn a_write_waits_for_the_end_of_its_stripe_while_copies_are_made() {
    let mut transport = dissolving();
    let write = Segment::new(Purpose::Part(0), Op::Write, 0, 0..1, at(0));
    let slot = transport.requests.add(write).unwrap();
    let mut waits = |seconds, has_copied| {
        if has_copied {
            transport.progress.count_copy();
        }
        transport.give_up_late(at(seconds));
        transport.requests.get(slot).is_some()
    };
    assert!(waits(25, true) && waits(50, true) && waits(79, false));
    assert!(!waits(80, false), "nothing is copied any more");
}
