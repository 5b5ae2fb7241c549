//! Shares of faults as tenants join, report and end.

use super::*;

fn task(pc: u64, weight: u32) -> Task {
    Task {
        pc: Capacity(pc),
        weight,
    }
}

#[test]
fn a_new_reservation_and_its_end_change_the_shares_of_all() {
    let mut rates = FaultRates::new(Faults::default());
    rates.admit(1, 1, task(0, 1), None, false).unwrap();
    rates.admit(2, 2, task(0, 3), None, false).unwrap();
    let first = rates.changed_shares();
    assert_eq!(first.len(), 2);
    assert!(rates.changed_shares().is_empty());
    let limit = |changed: &[(TenantNumber, FaultShare)], of| {
        changed
            .iter()
            .find(|(number, _)| *number == of)
            .unwrap()
            .1
            .limit
    };
    assert!(limit(&first, 2) > 2 * limit(&first, 1));
    rates
        .admit(3, 3, task(500_000_000, 1), None, false)
        .unwrap();
    let beside = rates.changed_shares();
    assert!(limit(&beside, 1) < limit(&first, 1));
    assert_eq!(
        limit(&beside, 3),
        0,
        "its faults are within its reservation"
    );
    assert!(rates.remove(3));
    assert_eq!(limit(&rates.changed_shares(), 1), limit(&first, 1));
}

#[test]
fn a_reservation_that_comes_and_goes_is_sent_to_others_once_in_an_interval() {
    let mut rates = FaultRates::new(Faults::default());
    rates.admit(1, 1, task(0, 1), None, false).unwrap();
    let mut now = Instant::now();
    let mut sent = 0;
    for change in 0..1000 {
        match change % 2 {
            0 => rates
                .admit(2, 2, task(500_000_000, 1), None, false)
                .unwrap(),
            _ => _ = rates.remove(2),
        }
        rates.is_changed = true;
        let shares = rates.due_shares(now);
        sent += shares.iter().filter(|(number, _)| *number == 1).count();
        now += SHARE_INTERVAL / 100;
    }
    assert!((1..=11).contains(&sent), "{sent}");
    let last = rates.due_shares(now + SHARE_INTERVAL);
    let share = rates.share_of(rates.entries[&1].task);
    let held = last
        .first()
        .map_or(rates.entries[&1].sent, |(_, share)| Some(*share));
    assert_eq!(held, Some(share), "the last change is sent");
}

#[test]
fn one_tenant_with_false_reports_changes_no_share() {
    let mut rates = FaultRates::new(Faults::default());
    (1..=3).for_each(|number| {
        rates
            .admit(number, number, task(0, 1), None, false)
            .unwrap()
    });
    let before: Vec<_> = rates.changed_shares();
    rates.report(2, 1);
    assert!(rates.changed_shares().is_empty());
    rates.report(2, u64::MAX);
    assert!(rates.changed_shares().is_empty());
    (1..=3).for_each(|number| rates.report(number, nanos(Faults::default().initial_cost.0) / 2));
    let after = rates.changed_shares();
    assert!(after[0].1.limit > before[0].1.limit * 3 / 2);
}

#[test]
fn a_reservation_over_capacity_is_refused_with_the_figures_and_others_keep_theirs() {
    let mut rates = FaultRates::new(Faults::default());
    let whole = rates.table.total().0;
    rates.admit(1, 1, task(whole / 2, 1), None, false).unwrap();
    let why = rates
        .admit(2, 2, task(whole / 2, 1), None, false)
        .unwrap_err()
        .to_string();
    assert!(why.contains("can be reserved"), "{why}");
    // A tenant that is refused more keeps what it had.
    let reserved = rates.table.pc();
    let more = rates.admit(1, 1, task(2 * whole, 1), None, false);
    assert!(more.is_err() && rates.table.pc() == reserved);
    // A tenant of an earlier daemon is not refused, though nothing is left for floors.
    rates.admit(2, 2, task(whole / 2, 1), None, true).unwrap();
    assert!(!rates.table.is_overcommitted());
    rates.admit(3, 3, task(0, 1), None, true).unwrap();
    assert!(rates.table.is_overcommitted());
}

#[test]
fn a_person_with_many_tenants_has_one_persons_part_and_counts_once_for_the_cost() {
    let mut rates = FaultRates::new(Faults::default());
    rates.admit(1, 1, task(0, 1), None, false).unwrap();
    rates.admit(2, 2, task(0, 1), None, false).unwrap();
    let faults = rates.table.fault_limit();
    let part = |rates: &FaultRates, number| rates.share_of(rates.entries[&number].task).limit;
    let before = part(&rates, 1);
    (3..30).for_each(|number| rates.admit(number, 2, task(0, 1), None, false).unwrap());
    let floors = 27 * rate::reservations::FAULT_FLOOR;
    assert!(
        part(&rates, 1) + floors >= before,
        "except the floors of the other tenants"
    );
    assert!(part(&rates, 2) < before / 8);
    rates.admit(30, 3, task(0, 1), None, false).unwrap();
    (2..30).for_each(|number| rates.report(number, u64::MAX));
    assert_eq!(rates.table.fault_limit(), faults, "one of three persons");
    (2..30).for_each(|number| _ = rates.remove(number));
    assert!(part(&rates, 1) >= before);
}
