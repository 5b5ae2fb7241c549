//! Stripes under any order of writes, reads, losses, late answers, refusals and restarts.
//!
//! The plain model is one number a page: the last write that was acknowledged. A read has that, or a write that began
//! later. A page is lost only where no servers have what gives it, and no step of the client's own makes it easier to
//! lose. In the end each server has what the client counts there, and no more.

mod copies;
mod requests;
mod servers;
mod striping;
mod truth;
mod world;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use servers::PAGES;
use world::{Fault, World};

#[derive(Clone, Debug)]
enum Event {
    /// The client does what is due.
    Tick,
    /// A message arrives, of those under way; the others are late.
    Deliver(usize),
    /// A message is refused.
    Refuse(usize),
    Write {
        member: usize,
        page: usize,
    },
    Read {
        member: usize,
        page: usize,
    },
    /// The client makes no stripes, or makes them again.
    Striping(bool),
    /// The next stripe is as old as a stripe may gather.
    Age,
    /// No server has room, or all have.
    Full(bool),
    Restart,
    Fault(usize, Fault),
}

fn event(servers: usize) -> impl Strategy<Value = Event> {
    let page = || (0..world::MEMBERS, 0..PAGES);
    let fault = prop_oneof![
        1 => Just(Fault::Kill),
        1 => Just(Fault::Cut),
        2 => Just(Fault::GiveUp),
        3 => Just(Fault::Back),
    ];
    prop_oneof![
        30 => Just(Event::Tick),
        60 => any::<usize>().prop_map(Event::Deliver),
        1 => any::<usize>().prop_map(Event::Refuse),
        2 => page().prop_map(|(member, page)| Event::Write { member, page }),
        4 => page().prop_map(|(member, page)| Event::Read { member, page }),
        1 => any::<bool>().prop_map(Event::Striping),
        1 => Just(Event::Age),
        1 => any::<bool>().prop_map(Event::Full),
        1 => Just(Event::Restart),
        3 => (0..servers, fault).prop_map(|(server, fault)| Event::Fault(server, fault)),
    ]
}

fn happen(world: &mut World, event: &Event) -> Result<(), TestCaseError> {
    match event {
        Event::Tick => world.tick(),
        Event::Deliver(at) => world.deliver(*at, false),
        Event::Refuse(at) => world.deliver(*at, true),
        Event::Write { member, page } => world.write(*member, *page),
        Event::Read { member, page } => world.read(*member, *page),
        Event::Striping(is_on) => world.makes_stripes = *is_on,
        Event::Age => world.age(),
        Event::Full(is_full) => world.is_full = *is_full,
        Event::Restart => world.restart(),
        Event::Fault(server, fault) => world.fault(*server, *fault),
    }
    world.take_defect()
}

/// Has events happen, from a state in which the members are a stripe, and then everything recover.
fn survives(servers: usize, events: &[Event], is_striped: bool) -> Result<(), TestCaseError> {
    let mut world = World::new(servers);
    truth::settle(&mut world)?;
    prop_assert!(world.is_whole(), "no stripe in peace");
    if !is_striped {
        world.makes_stripes = false;
        (0..world::MEMBERS).for_each(|member| world.write(member, 0));
        truth::settle(&mut world)?;
        world.makes_stripes = true;
    }
    for event in events {
        let before = truth::margins(&mut world);
        happen(&mut world, event)?;
        truth::check_reconstruction(&mut world)?;
        if matches!(event, Event::Tick | Event::Deliver(_) | Event::Write { .. }) {
            truth::check_margins(&mut world, &before)?;
        }
    }
    world.recover();
    truth::settle(&mut world)?;
    truth::check_settled(&world)?;
    world.makes_stripes = false;
    (0..world::MEMBERS).for_each(|member| world.write(member, 1));
    truth::settle(&mut world)?;
    truth::check_settled(&world)?;
    prop_assert!(!world.is_whole());
    truth::check_no_parity_is_kept(&world)
}

fn cases() -> impl Strategy<Value = (usize, Vec<Event>, bool)> {
    (5usize..9).prop_flat_map(|servers| {
        let events = prop::collection::vec(event(servers), 1..200);
        (Just(servers), events, any::<bool>())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_events_agrees_with_the_plain_model((servers, events, is_striped) in cases()) {
        survives(servers, &events, is_striped)?;
    }

    #[test]
    fn as_many_servers_as_there_are_parities_may_be_lost_at_once(
        servers in 5usize..9,
        lost in prop::collection::btree_set(0usize..9, 0..3),
        delivered in 0usize..400,
    ) {
        let mut world = World::new(servers);
        truth::settle(&mut world)?;
        let parities = world.parities();
        let lost: Vec<_> = lost.into_iter().filter(|server| *server < servers).take(parities).collect();
        lost.iter().for_each(|server| world.fault(*server, Fault::Kill));
        lost.iter().for_each(|server| world.fault(*server, Fault::GiveUp));
        for at in 0..delivered {
            world.tick();
            world.deliver(at, false);
        }
        truth::settle(&mut world)?;
        prop_assert_eq!(world.lost_pages(), 0);
        (0..world::MEMBERS).for_each(|member| world.read(member, 0));
        truth::settle(&mut world)?;
        prop_assert_eq!(world.failed_reads, 0);
    }
}

#[test]
fn more_servers_make_a_stripe_of_more_parities() {
    for (servers, parities) in [(5, 1), (6, 2), (8, 2)] {
        let mut world = World::new(servers);
        truth::settle(&mut world).unwrap();
        assert_eq!((world.is_whole(), world.parities()), (true, parities));
    }
}
