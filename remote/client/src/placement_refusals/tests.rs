//! How long refusals make writes wait.

use super::*;

fn at(millis: u64) -> Time {
    Time(0) + Nanos::millis(millis)
}

/// When the writes of an object fail, in milliseconds, if each round takes so long and is refused.
fn fails_at(round: u64) -> u64 {
    let mut refusals = PlacementRefusals::default();
    let mut now = 0;
    loop {
        // The client looks with each tick.
        while !refusals.may_place(7, at(now)) {
            now += 20;
        }
        now += round;
        if refusals.on_refused(7, at(now)) != RefusedWrites::Wait {
            return now;
        }
    }
}

#[test]
fn writes_fail_with_the_first_round_after_each_excluded_server_was_asked() {
    assert_eq!(fails_at(0), 5000);
    for round in [1, 50, 900, 4000, 9000] {
        let failed = fails_at(round);
        assert!(failed >= round + 5000 + round, "{failed}");
        assert!(failed <= round + 6020 + 2 * round, "{failed}");
    }
}

#[test]
fn a_place_is_requested_once_a_second() {
    let mut refusals = PlacementRefusals::default();
    let mut rounds = 0;
    for now in (0..4900).step_by(20) {
        if refusals.may_place(1, at(now)) {
            // A server was asked, and then another one.
            assert!(refusals.may_place(1, at(now)) && refusals.may_place(2, at(now)));
            rounds += 1;
            assert_eq!(refusals.on_refused(1, at(now)), RefusedWrites::Wait);
        }
    }
    assert_eq!(rounds, 5);
}

#[test]
fn a_write_after_one_that_failed_fails_at_once_unless_it_comes_seconds_later() {
    let mut refusals = PlacementRefusals::default();
    for second in 0..6 {
        assert!(refusals.may_place(1, at(second * 1000)));
        refusals.on_refused(1, at(second * 1000));
    }
    for now in [5001, 5010, 5990] {
        assert!(refusals.fails_at_once(1, at(now)) && !refusals.may_place(1, at(now)));
    }
    for now in [6000, 8000] {
        assert!(!refusals.fails_at_once(1, at(now)) && refusals.may_place(1, at(now)));
        let is_first = false;
        let failed = RefusedWrites::Fail { is_first };
        assert_eq!(refusals.on_refused(1, at(now)), failed);
    }
    assert!(refusals.may_place(1, at(13_500)));
    assert_eq!(refusals.on_refused(1, at(13_500)), RefusedWrites::Wait);
}

#[test]
fn a_full_copy_is_asked_once_a_second_and_its_writes_fail_after_some_seconds() {
    let mut refusals = PlacementRefusals::default();
    let mut now = 0;
    for second in 0..=5 {
        // The answer is refused, too, and so is the write after it.
        assert_eq!(refusals.on_full(1, 0, at(now)), FullWrite::RequestPages);
        let answered = at(now + 20);
        match refusals.on_full(1, 0, answered) {
            FullWrite::Hold(until) if second < 5 => now = (until - Time(0)).0 / 1_000_000,
            FullWrite::Fail if second == 5 => {}
            other => panic!("{other:?}"),
        }
    }
    // Those that follow do not ask for each page.
    for later in [30, 500, 900] {
        assert_eq!(refusals.on_full(1, 0, at(now + later)), FullWrite::Fail);
    }
    assert_eq!(
        refusals.on_full(1, 0, at(now + 1100)),
        FullWrite::RequestPages
    );
    refusals.on_room(1);
    assert_eq!(
        refusals.on_full(1, 0, at(now + 1200)),
        FullWrite::RequestPages
    );
    assert!(matches!(
        refusals.on_full(1, 0, at(now + 1300)),
        FullWrite::Hold(_)
    ));
    // Its write has failed otherwise meanwhile.
    assert_eq!(
        refusals.on_full(1, 0, at(now + 2300)),
        FullWrite::RequestPages
    );
    assert_eq!(
        refusals.on_full(1, 0, at(now + 32_300)),
        FullWrite::RequestPages
    );
    assert!(matches!(
        refusals.on_full(1, 0, at(now + 32_400)),
        FullWrite::Hold(_)
    ));
}

#[test]
fn an_outage_of_a_server_is_one_line_for_people() {
    let mut refusals = PlacementRefusals::default();
    let mut is_first = |server, now| refusals.on_write_failed(server, at(now));
    assert!(is_first(0, 0) && is_first(1, 0));
    assert!((1..100).all(|second| !is_first(0, second * 1000)));
    assert!(is_first(0, 200_000));
}

#[test]
fn objects_that_are_refused_one_after_the_other_wait_once() {
    let mut refusals = PlacementRefusals::default();
    for second in 0..=5 {
        assert!(refusals.may_place(1, at(second * 1000)));
        refusals.on_refused(1, at(second * 1000));
    }
    // A pager tries the pages of other objects.
    for (object, now) in [(2, 5100), (3, 5200), (4, 9000), (5, 13_900)] {
        assert!(refusals.may_place(object, at(now)));
        let is_first = true;
        let failed = RefusedWrites::Fail { is_first };
        assert_eq!(refusals.on_refused(object, at(now)), failed, "{object}");
    }
    // One is taken in: the others may be next.
    refusals.on_room(5);
    for object in [4, 6] {
        assert_eq!(refusals.on_refused(object, at(14_000)), RefusedWrites::Wait);
    }
}

#[test]
fn what_one_server_refuses_is_no_refusal_of_another() {
    let mut refusals = PlacementRefusals::default();
    for second in 0..=5 {
        assert_eq!(
            refusals.on_full(1, 0, at(second * 1000)),
            FullWrite::RequestPages
        );
        let answered = refusals.on_full(1, 0, at(second * 1000));
        assert_eq!(answered == FullWrite::Fail, second == 5);
    }
    for (object, server) in [(2, 0), (3, 1)] {
        let asked = refusals.on_full(object, server, at(5100));
        assert_eq!(asked, FullWrite::RequestPages);
        let answered = refusals.on_full(object, server, at(5200));
        assert_eq!(answered == FullWrite::Fail, server == 0);
    }
    assert_eq!(refusals.on_refused(4, at(5300)), RefusedWrites::Wait);
}

#[test]
fn an_object_that_had_a_copy_waits_again() {
    let mut refusals = PlacementRefusals::default();
    refusals.on_refused(1, at(0));
    assert!(refusals.may_place(1, at(4900)));
    refusals.on_room(1);
    refusals.on_refused(1, at(6000));
    assert!(refusals.may_place(1, at(7000)));
    assert_eq!(refusals.on_refused(1, at(7010)), RefusedWrites::Wait);
}
