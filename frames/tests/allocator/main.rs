//! The frames allocator of the machine: admission, grants, revocation by deadline.

mod deadlines;
mod machine;
mod promises;
mod surplus;
mod unpaged;

use frames::Contract;
use frames::allocator::*;
use machine::{Character::*, KILLING, Machine, config};
use std::time::Duration;

const T: Duration = Duration::from_millis(100);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn guarantees_above_the_managed_memory_are_refused_with_the_numbers() {
    let mut machine = Machine::new(1000);
    machine.admit(1, (600, 900), 100, Honest).unwrap();
    let text = machine
        .admit(2, (500, 500), 100, Honest)
        .unwrap_err()
        .to_string();
    for part in [
        "guarantee 500 frames",
        "600 of 1000",
        "1 others",
        "at most 400 frames (1600KiB)",
    ] {
        assert!(text.contains(part), "{text}");
    }
    machine.admit(2, (400, 400), 100, Honest).unwrap();
    assert_eq!(
        machine.admit(2, (0, 1), 1, Honest),
        Err(AllocatorError::Known(TenantId(2)))
    );
    assert!(
        machine
            .admit(3, (5, 4), 1, Honest)
            .unwrap_err()
            .to_string()
            .contains("invalid contract")
    );
}

#[test]
fn guaranteed_frames_that_were_not_requested_are_lent_and_taken_back_at_once_where_unused() {
    let mut machine = Machine::new(1000);
    let hog = machine.admit(1, (100, 1000), 100, Honest).unwrap();
    let late = machine.admit(2, (500, 500), 100, Honest).unwrap();
    machine.request(hog, 1000).unwrap();
    assert_eq!(machine.n(hog), 1000);
    machine.request(late, 500).unwrap();
    assert_eq!((machine.n(hog), machine.n(late)), (500, 500));
    assert_eq!(machine.revocations, 0, "transparently");
}

#[test]
fn no_tenant_gets_more_than_x_or_loses_guaranteed_frames() {
    let mut machine = Machine::new(1000);
    let [one, other] = [1, 2].map(|id| machine.admit(id, (300, 400), 100, Honest).unwrap());
    machine.fill(one, 1000);
    assert_eq!(machine.n(one), 400);
    assert!(matches!(
        machine.request(one, 1),
        Err(AllocatorError::Most { x: 400, .. })
    ));
    machine.fill(other, 1000);
    let third = machine.admit(3, (400, 1000), 100, Honest).unwrap();
    machine.request(third, 1000).unwrap();
    machine.run_for(ms(5000));
    assert_eq!([one, other, third].map(|id| machine.n(id)), [300, 300, 400]);
}

#[test]
fn the_victim_is_the_tenant_with_the_largest_surplus() {
    let mut machine = Machine::new(1000);
    let one = machine.admit(1, (300, 1000), 10_000, Honest).unwrap();
    let other = machine.admit(2, (100, 1000), 10_000, Honest).unwrap();
    machine.fill(one, 500);
    machine.fill(other, 500);
    let late = machine.admit(3, (300, 300), 100, Honest).unwrap();
    machine.request(late, 300).unwrap();
    assert_eq!(machine.allocator.stats(other).unwrap().owed, 300);
    machine.run_for(T);
    assert_eq!([one, other, late].map(|id| machine.n(id)), [500, 200, 300]);
}

#[test]
fn a_victim_releases_what_its_slice_can_clean_and_others_release_the_rest() {
    let mut machine = Machine::new(1000);
    let slow = machine.admit(1, (0, 1000), 500, Honest).unwrap();
    let fast = machine.admit(2, (0, 1000), 5000, Honest).unwrap();
    machine.fill(slow, 600);
    machine.fill(fast, 400);
    let late = machine.admit(3, (300, 300), 100, Honest).unwrap();
    machine.request(late, 300).unwrap();
    let owed = [slow, fast].map(|id| machine.allocator.stats(id).unwrap().owed);
    assert_eq!(owed, [50, 250]);
    assert_eq!(machine.allocator.pending()[0].due, Some(T));
    machine.run_for(T);
    assert_eq!(machine.n(late), 300);
}

#[test]
fn frames_that_no_tenant_can_clean_in_time_follow_in_later_rounds() {
    let mut machine = Machine::new(1000);
    let slow = machine.admit(1, (0, 1000), 1000, Honest).unwrap();
    machine.fill(slow, 1000);
    let late = machine.admit(2, (300, 300), 100, Honest).unwrap();
    machine.request(late, 300).unwrap();
    let due: Vec<_> = machine
        .allocator
        .pending()
        .iter()
        .map(|w| (w.k, w.due))
        .collect();
    assert_eq!(due, [(100, Some(T)), (200, None)]);
    machine.run_for(ms(500));
    assert_eq!((machine.n(late), machine.killed.len()), (300, 0));
}

#[test]
fn a_small_request_does_not_wait_behind_a_large_one() {
    let mut machine = Machine::new(100_000);
    let hog = machine.admit(1, (0, 100_000), 1000, Honest).unwrap();
    machine.fill(hog, 100_000);
    let large = machine.admit(2, (50_000, 50_000), 100, Honest).unwrap();
    let small = machine.admit(3, (20, 20), 100, Honest).unwrap();
    machine.request(large, 50_000).unwrap();
    machine.run_for(ms(30));
    machine.request(small, 20).unwrap();
    machine.run_for(ms(300));
    assert_eq!(machine.n(small), 20);
}

#[test]
fn a_deadline_allows_for_a_slice_that_comes_late() {
    let mut machine = Machine::new(100);
    let cleaning = CleaningRate {
        frames_per_second: 50,
        delay: ms(225),
    };
    let slow = machine.admit_with(1, (0, 100), cleaning, Honest).unwrap();
    machine.fill(slow, 100);
    let late = machine.admit(2, (10, 10), 100, Honest).unwrap();
    machine.request(late, 10).unwrap();
    assert_eq!(machine.allocator.pending()[0].due, Some(ms(425)));
    machine.run_for(ms(5000));
    assert_eq!((machine.n(late), machine.killed.len()), (10, 0));
}

#[test]
fn optimistic_frames_are_granted_when_some_are_free_and_without_demands() {
    let mut machine = Machine::new(1000);
    let one = machine.admit(1, (100, 1000), 1000, Honest).unwrap();
    let other = machine.admit(2, (100, 1000), 1000, Honest).unwrap();
    machine.fill(other, 100);
    machine.fill(one, 900);
    machine.request(other, 300).unwrap();
    machine.run_for(ms(1000));
    assert_eq!((machine.n(other), machine.revocations), (100, 0));
    assert_eq!(machine.allocator.stats(other).unwrap().wished, 300);
    machine.on_tenant_gone(one);
    assert_eq!(machine.n(other), 400, "without a second request");
}

#[test]
fn a_tenant_that_cannot_clean_gets_no_optimistic_frames() {
    let mut machine = Machine::new(1000);
    let tenant = machine.admit(1, (100, 1000), 0, Honest).unwrap();
    machine.fill(tenant, 1000);
    assert_eq!(machine.n(tenant), 100);
    let refused = machine.request(tenant, 5).unwrap_err();
    assert_eq!(refused, AllocatorError::Irrevocable { asked: 5 });
}

#[test]
fn a_lowered_guarantee_stays_in_force_for_the_notice() {
    let mut machine = Machine::new(1000);
    let one = machine.admit(1, (800, 800), 10_000, Honest).unwrap();
    machine.fill(one, 800);
    machine.set_contract(one, (200, 200)).unwrap();
    let from = config(0).notice;
    let contract = Contract::from(200);
    assert_eq!(
        machine.told,
        [(one, TenantNotice::Contract { contract, from })]
    );
    assert!(
        machine.admit(2, (300, 300), 100, Honest).is_err(),
        "not yet"
    );
    machine.run_for(from / 2);
    machine.set_contract(one, (200, 200)).unwrap();
    assert_eq!(
        machine.told[1],
        (one, TenantNotice::Contract { contract, from }),
        "one that is set again keeps its time"
    );
    machine.run_for(from / 2 - ms(1));
    assert_eq!(machine.n(one), 800);
    machine.run_for(ms(1) + T);
    assert_eq!(machine.n(one), 200, "the frames above it are revoked");
    machine.admit(2, (800, 800), 100, Honest).unwrap();
}

#[test]
fn changed_times_hold_for_what_begins_later() {
    let mut machine = Machine::new(1000);
    let one = machine.admit(1, (800, 1000), 10_000, Refuser).unwrap();
    machine.fill(one, 1000);
    machine.allocator.set_times(ms(20), ms(50), machine.now);
    machine.set_contract(one, (200, 1000)).unwrap();
    let late = machine.admit(2, (200, 200), 100, Honest).unwrap();
    machine.request(late, 200).unwrap();
    machine.run_until(ms(20));
    assert_eq!(machine.killed.len(), 0);
    machine.run_until(ms(21));
    assert_eq!(machine.killed.len(), 1, "by the new deadline");
    let from = ms(50);
    let contract = Contract { g: 200, x: 1000 };
    assert_eq!(
        machine.told,
        [(one, TenantNotice::Contract { contract, from })]
    );
}

#[test]
fn a_raised_guarantee_is_in_force_at_once_if_it_fits() {
    let mut machine = Machine::new(1000);
    let one = machine.admit(1, (100, 100), 1000, Honest).unwrap();
    machine.admit(2, (500, 1000), 1000, Honest).unwrap();
    let refused = machine
        .set_contract(one, (600, 600))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("at most 500"), "{refused}");
    machine.set_contract(one, (500, 600)).unwrap();
    machine.request(one, 600).unwrap();
    assert_eq!(machine.n(one), 600);
}

#[test]
fn two_counts_of_too_many_resident_frames_notify_and_later_ones_kill() {
    let mut machine = Machine::new(1000);
    let tenant = machine.admit(1, (100, 100), 100, Slow).unwrap();
    machine.fill(tenant, 100);
    machine.fix_all(tenant);
    let resident = |machine: &mut Machine, frames| {
        machine.run_for(ms(1000));
        let actions = machine.allocator.on_resident(tenant, frames, machine.now);
        machine.execute(actions);
        (machine.told.len(), machine.killed.len())
    };
    assert_eq!(resident(&mut machine, 104), (0, 0), "within the allowance");
    assert_eq!(resident(&mut machine, 200), (0, 0), "once is nothing");
    assert_eq!(resident(&mut machine, 100), (0, 0));
    assert_eq!(resident(&mut machine, 300), (0, 0));
    assert_eq!(resident(&mut machine, 300), (1, 0));
    let by = machine.now + ms(2000);
    let over = TenantNotice::Over {
        resident: 300,
        n: 100,
        by,
    };
    assert_eq!(machine.told, [(tenant, over)], "200 frames at 100 a second");
    assert_eq!(resident(&mut machine, 250), (1, 0));
    assert_eq!(resident(&mut machine, 150), (1, 0));
    assert_eq!(resident(&mut machine, 150), (1, 1));
    machine.run_for(KILLING);
    assert_eq!(machine.allocator.free(), 1000);
}

#[test]
fn after_a_restart_tenants_reconnect_before_frames_are_lent() {
    let allocator = Allocator::restarted(config(1000), ms(2000));
    let mut machine = Machine::over(allocator);
    let early = machine.admit(1, (100, 1000), 1000, Honest).unwrap();
    machine.request(early, 500).unwrap();
    assert_eq!(machine.n(early), 100, "its guarantee alone");
    let cleaning = CleaningRate {
        frames_per_second: 1000,
        delay: Duration::ZERO,
    };
    let contract = Contract { g: 0, x: 800 };
    let back = |machine: &mut Machine, id, n| {
        machine
            .allocator
            .readmit(TenantId(id), contract, n, cleaning)
    };
    assert!(back(&mut machine, 2, 700).is_ok());
    assert_eq!(machine.allocator.next_timeout(), Some(ms(2000)));
    let actions = machine.allocator.tick(ms(2000));
    assert_eq!(
        actions,
        [Action::Grant {
            tenant: early,
            k: 200
        }]
    );
}

#[test]
fn a_tenant_that_reconnects_with_more_than_is_managed_releases_it_in_its_own_time() {
    let mut machine = Machine::over(Allocator::restarted(config(1000), ms(2000)));
    let one = machine.readmit(1, (100, 2000), 1500, 2000, Honest).unwrap();
    let other = machine.readmit(2, (300, 300), 300, 2000, Honest).unwrap();
    let view = machine.allocator.stats(one).unwrap();
    assert_eq!((view.n, machine.allocator.free()), (1500, 0));
    assert_eq!(view.beyond, 500, "none of them were the other tenant's");
    // A tenant with a guarantee does not wait for frames that will not be managed.
    let late = machine.admit(3, (400, 400), 2000, Honest).unwrap();
    machine.request(late, 400).unwrap();
    machine.run_for(ms(2000));
    assert_eq!((machine.n(other), machine.n(late)), (300, 400));
    assert_eq!((machine.n(one), machine.killed.len()), (300, 0));
    assert_eq!(machine.allocator.stats(one).unwrap().beyond, 0);
}

#[test]
fn a_tenant_that_reconnects_with_more_than_its_contract_releases_it_in_its_own_time() {
    let mut machine = Machine::over(Allocator::restarted(config(1000), ms(2000)));
    let one = machine.readmit(1, (100, 200), 700, 2000, Honest).unwrap();
    assert_eq!((machine.n(one), machine.allocator.free()), (700, 300));
    machine.run_for(ms(2000));
    assert_eq!((machine.n(one), machine.killed.len()), (200, 0));
}

#[test]
fn a_tenant_that_reconnects_with_too_much_and_keeps_it_is_killed() {
    let mut machine = Machine::over(Allocator::restarted(config(1000), ms(2000)));
    let one = machine.readmit(1, (100, 2000), 1500, 100, Refuser).unwrap();
    machine.run_until(T);
    assert_eq!(machine.n(one), 1500, "it has its time");
    machine.run_until(T + ms(1) + KILLING);
    assert!(matches!(machine.killed[..], [(_, Violation::Late { .. })]));
    assert_eq!(machine.allocator.free(), 1000);
}

#[test]
fn freed_frames_are_not_revoked_to_be_lent_again() {
    let mut machine = Machine::over(Allocator::restarted(config(1000), ms(1)));
    let ends = machine.readmit(1, (0, 900), 900, 100, Honest).unwrap();
    let one = machine.readmit(2, (0, 900), 900, 100, Honest).unwrap();
    machine.run_until(ms(2));
    machine.on_tenant_gone(ends);
    machine.run_for(ms(20_000));
    let n = machine.n(one);
    assert!((800..900).contains(&n), "only earlier demands: {n}");
}

#[test]
fn placements_that_the_machine_lacks_are_refused() {
    let mut machine = Machine::new(10_000);
    let tenant = machine.admit(1, (2000, 2000), 100, Honest).unwrap();
    let mut ask = |k, placement| {
        let request = FrameRequest { k, placement };
        machine
            .allocator
            .request(tenant, request, Duration::ZERO)
            .map_err(|e| e.to_string())
    };
    assert!(
        ask(500, Placement::Huge)
            .unwrap_err()
            .contains("multiple of 512")
    );
    assert!(ask(512, Placement::Huge).is_ok());
    assert!(
        ask(1, Placement::Node(1))
            .unwrap_err()
            .contains("no such NUMA node: 1; expected 0 to 0")
    );
    assert!(ask(1, Placement::Node(0)).is_ok());
}

#[test]
fn managed_memory_is_not_lowered_below_what_is_guaranteed_or_owned() {
    let mut machine = Machine::new(1000);
    let tenant = machine.admit(1, (100, 1000), 100, Honest).unwrap();
    machine.fill(tenant, 500);
    let refused = machine
        .allocator
        .set_managed(400, Duration::ZERO)
        .unwrap_err();
    assert!(refused.to_string().contains("500 owned"), "{refused}");
    machine.request(tenant, 1000).unwrap();
    let actions = machine.allocator.set_managed(2000, Duration::ZERO).unwrap();
    assert_eq!(actions, []);
}
