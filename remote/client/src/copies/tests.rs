//! How long writes wait, in a time of the tests' own.

use super::*;
use crate::objects::{ObjectMap, SpaceSize};
use crate::restore::tests::{CLIENT, transport_of};
use crate::stripes::{StripedObjects, Stripes};
use disk::usd::Transport;
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

#[test]
fn a_request_that_no_server_answers_ends_with_an_errno_of_its_own() {
    let mut transport = dissolving();
    let mut page = vec![0; PAGE];
    let pieces = [iochannel::IoVec::page(page.as_mut_ptr())];
    let id = PartId::new(0, 0);
    let part = transport.requests.add_part(id, &pieces, 1).unwrap();
    let write = Segment::new(Purpose::Part(part), Op::Write, 0, 0..1, at(0));
    transport.requests.add(write).unwrap();
    transport.give_up_late(at(31));
    let late = -Errno::TIMEDOUT.raw_os_error();
    assert_eq!(transport.reap(at(31)), Some((id, late)));
}
