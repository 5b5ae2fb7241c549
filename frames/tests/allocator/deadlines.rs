//! Deadlines and answers: late ones, wrong ones, and those of a busy machine.

use crate::machine::{Character, Character::*, KILLING, Machine, config};
use crate::{T, ms};
use frames::allocator::*;

/// A tenant has all frames, and half of them are demanded of it for another one.
fn demanded_of(character: Character) -> (Machine, TenantId, TenantId) {
    let mut machine = Machine::new(1000);
    let holder = machine.admit(1, (100, 1000), 10_000, character).unwrap();
    machine.fill(holder, 1000);
    let late = machine.admit(2, (500, 500), 100, Honest).unwrap();
    machine.request(late, 500).unwrap();
    (machine, holder, late)
}

#[test]
fn a_tenant_that_misses_its_deadline_is_killed_and_the_request_granted() {
    let (mut machine, _, late) = demanded_of(Refuser);
    machine.run_until(T);
    assert_eq!(
        (machine.n(late), machine.killed.len()),
        (0, 0),
        "it has until T"
    );
    machine.run_until(T + ms(1));
    let text = machine.killed[0].1.to_string();
    assert!(
        text.contains("500 demanded frames") && text.contains("100ms"),
        "{text}"
    );
    machine.run_until(T + KILLING + ms(1));
    assert_eq!((machine.n(late), machine.allocator.free()), (500, 500));
}

#[test]
fn a_tenant_whose_disk_time_changes_has_until_its_period_of_before_has_ended() {
    let mut machine = Machine::new(1000);
    let holder = machine.admit(1, (100, 1000), 10_000, Refuser).unwrap();
    machine.fill(holder, 1000);
    let late = machine.admit(2, (500, 500), 100, Honest).unwrap();
    for delay in [ms(5000), ms(100)] {
        let rate = CleaningRate {
            frames_per_second: 10_000,
            delay,
        };
        machine
            .allocator
            .set_cleaning(holder, rate, machine.now)
            .unwrap();
        machine.run_for(ms(1000));
    }
    machine.request(late, 500).unwrap();
    machine.run_for(ms(4000));
    assert_eq!(machine.killed.len(), 0);
    machine.run_for(ms(500));
    assert_eq!(machine.killed.len(), 1);
}

#[test]
fn a_tenant_that_reports_used_frames_as_unused_again_and_again_is_killed() {
    let (mut machine, liar, late) = demanded_of(Liar);
    machine.run_until(ms(1));
    let lie = Violation::FalseAnswer {
        answered: 500,
        found: 0,
        times: 9,
    };
    assert_eq!(machine.killed, [(liar, lie)]);
    machine.run_until(T);
    assert_eq!(machine.n(late), 500);
}

#[test]
fn frames_that_are_used_again_after_an_answer_are_demanded_again() {
    let (mut machine, tree, late) = demanded_of(Refuser);
    // It has them unused and answers; a process that it starts has 16 before they are taken.
    machine.holders.get_mut(&tree).unwrap().used = 516;
    let revocations = machine.revocations;
    let actions = machine.allocator.on_answer(tree, 500, machine.now);
    machine.execute(actions);
    assert_eq!((machine.n(late), machine.n(tree)), (484, 516));
    assert_eq!(machine.revocations, revocations + 1);
    machine.holders.get_mut(&tree).unwrap().used = 500;
    let actions = machine.allocator.on_answer(tree, 16, machine.now);
    machine.execute(actions);
    machine.run_for(T + ms(1));
    assert_eq!((machine.n(late), machine.killed.len()), (500, 0));
}

#[test]
fn a_tenant_that_owes_frames_is_granted_none_beyond_its_guarantee() {
    let mut machine = Machine::new(1000);
    let tree = machine.admit(1, (100, 2000), 10_000, Refuser).unwrap();
    let other = machine.admit(3, (100, 100), 100, Honest).unwrap();
    machine.fill(other, 100);
    machine.fill(tree, 900);
    let late = machine.admit(2, (300, 300), 100, Honest).unwrap();
    machine.request(late, 300).unwrap();
    machine.request(tree, 200).unwrap();
    machine.on_tenant_gone(late);
    machine.on_tenant_gone(other);
    assert_eq!(machine.n(tree), 900);
}

#[test]
fn a_deadline_does_not_run_while_threads_wait_for_a_processor() {
    let mut machine = Machine::new(1000);
    let slow = machine.admit(1, (100, 1000), 10_000, Refuser).unwrap();
    machine.fill(slow, 1000);
    machine.on_stalled(ms(7000));
    let late = machine.admit(2, (500, 500), 100, Honest).unwrap();
    machine.request(late, 500).unwrap();
    machine.on_stalled(ms(7300));
    machine.run_until(T + ms(300));
    assert_eq!(
        machine.killed.len(),
        0,
        "what was waited for before does not count"
    );
    // It releases them after all.
    machine.use_some(slow, 0, 0);
    machine.holders.get_mut(&slow).unwrap().used = 500;
    let actions = machine.allocator.on_answer(slow, 500, machine.now);
    machine.execute(actions);
    machine.run_for(ms(5000));
    assert_eq!((machine.n(late), machine.killed.len()), (500, 0));
}

#[test]
fn a_deadline_is_extended_by_a_bounded_time_however_busy_the_machine() {
    let (mut machine, _, late) = demanded_of(Refuser);
    machine.on_stalled(ms(60_000));
    let most = config(0).stall;
    machine.run_until(T + most);
    assert_eq!(machine.killed.len(), 0);
    machine.run_for(ms(1));
    assert!(matches!(machine.killed[..], [(_, Violation::Late { by, .. })] if by == T + most));
    machine.run_for(KILLING);
    assert_eq!(machine.n(late), 500);
}

#[test]
fn too_many_resident_frames_are_tolerated_while_threads_wait_for_a_processor() {
    let mut machine = Machine::new(1000);
    let tenant = machine.admit(1, (100, 100), 100, Slow).unwrap();
    machine.fill(tenant, 100);
    machine.fix_all(tenant);
    let resident = |machine: &mut Machine| {
        machine.run_for(ms(1000));
        let actions = machine.allocator.on_resident(tenant, 300, machine.now);
        machine.execute(actions);
        (machine.told.len(), machine.killed.len())
    };
    assert_eq!(resident(&mut machine), (0, 0));
    assert_eq!(resident(&mut machine), (1, 0));
    machine.on_stalled(ms(900));
    // Two seconds for 200 frames at 100 a second, and those it waited.
    assert_eq!(resident(&mut machine), (1, 0));
    assert_eq!(resident(&mut machine), (1, 0));
    assert_eq!(resident(&mut machine), (1, 1));
}

#[test]
fn frames_that_are_unused_at_the_deadline_are_taken_though_the_answer_is_on_its_way() {
    let (mut machine, slow, late) = demanded_of(Slow);
    machine.holders.get_mut(&slow).unwrap().used = 500;
    machine.report_usage();
    machine.run_for(ms(5000));
    assert_eq!((machine.n(late), machine.killed.len()), (500, 0));
}

#[test]
fn a_tenant_with_fewer_unused_frames_than_demanded_at_its_deadline_is_killed() {
    let (mut machine, refuser, late) = demanded_of(Refuser);
    machine.holders.get_mut(&refuser).unwrap().used = 501;
    machine.report_usage();
    machine.run_for(T + ms(1));
    let by = T;
    assert_eq!(
        machine.killed,
        [(refuser, Violation::Late { missing: 1, by })]
    );
    machine.run_for(KILLING);
    assert_eq!(machine.n(late), 500);
}
