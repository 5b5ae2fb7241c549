//! Transactions that the device does not complete: what they cost their client, and the others.

mod common;

use common::contract;
use disk::atropos::{Atropos, ClientId, Decision, DiskContract, InFlightId};
use disk::atropos::{TransactionDesc, Utilization, WORKERS};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};

type Disk = Atropos<()>;

const BOUND: Nanos = Nanos::millis(10);

fn at(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

/// Submits transactions that are modelled to take a millisecond.
fn submit(disk: &mut Disk, now: Time, client: ClientId, count: u64) {
    let job = TransactionDesc {
        op: Op::Read,
        bytes: 4096,
        cost: Nanos::millis(1),
        tag: 0,
    };
    (0..count).for_each(|_| assert!(disk.submit(now, client, job)));
}

/// Starts all that may be started: whose they are, and what was decided last.
fn start(disk: &mut Disk, now: Time) -> (Vec<(ClientId, InFlightId)>, Decision) {
    let mut started = Vec::new();
    loop {
        match disk.next(now) {
            Decision::Dispatch(start) => started.push((start.client, start.ticket)),
            other => return (started, other),
        }
    }
}

fn extra(slice: u64) -> DiskContract {
    contract(slice, 100, 0).with_slack()
}

#[test]
fn a_client_whose_transactions_do_not_complete_keeps_others_from_the_disk_for_a_moment() {
    for (bound, most) in [(BOUND, 20), (Nanos::ZERO, 1)] {
        let mut disk = Disk::new(Utilization::WHOLE, bound, ());
        let locked = disk.admit(Time(0), extra(50)).unwrap();
        let other = disk.admit(Time(0), contract(50, 100, 0)).unwrap();
        submit(&mut disk, at(0), locked, 200);
        let (mut stuck, decided) = start(&mut disk, at(0));
        assert!(stuck.iter().all(|&(client, _)| client == locked));
        submit(&mut disk, at(1), other, 1000);
        assert_eq!(start(&mut disk, at(1)), (vec![], decided));
        // For ten seconds the other one is served each millisecond, but for the first.
        let mut served = 0;
        for millis in 2..10_000 {
            for (client, ticket) in start(&mut disk, at(millis)).0 {
                match client == locked {
                    true => stuck.push((client, ticket)),
                    false => {
                        served += 1;
                        disk.complete(at(millis), ticket, Nanos::millis(1));
                    }
                }
            }
            let queued = disk.client(other).unwrap().queued as u64;
            submit(&mut disk, at(millis), other, 1000 - queued);
        }
        assert!(served > 4_800, "{served} of 5000 at {bound}");
        assert!(stuck.len() <= most, "{} at {bound}", stuck.len());
        // Then it goes on as it did.
        for (_, ticket) in stuck {
            disk.complete(at(10_000), ticket, Nanos::seconds(10));
        }
        let (started, _) = start(&mut disk, at(10_000));
        assert!(started.iter().any(|&(client, _)| client == locked));
    }
}

#[test]
fn a_user_that_lets_go_and_begins_again_delays_the_others_by_two_bounds_whatever_its_contracts() {
    let mut disk = Disk::new(Utilization::WHOLE, BOUND, ());
    let mut now = at(0);
    let mut locked = disk.admit_for(now, 7, extra(90)).unwrap();
    for round in 0..4 {
        if round > 1 {
            disk.remove(now, locked);
            locked = disk.admit_for(now, 7, extra(90)).unwrap();
        }
        submit(&mut disk, now, locked, 10);
        let (stuck, decided) = start(&mut disk, now);
        assert_eq!(stuck.len(), 10);
        submit(&mut disk, now, locked, 1);
        let Decision::Full(until) = disk.next(now) else {
            panic!("{decided:?}");
        };
        let bounds = if round == 0 { 8 } else { 2 };
        let least = now + Nanos(bounds * BOUND.0);
        assert!(
            until >= least && until - least < Nanos::millis(1),
            "{until:?}"
        );
        assert_eq!(disk.next(until), Decision::Idle);
        now = until;
        for (_, ticket) in stuck {
            disk.complete(now, ticket, Nanos::millis(80));
        }
        let (rest, _) = start(&mut disk, now);
        assert_eq!(rest.len(), 1);
        disk.complete(now, rest[0].1, Nanos::millis(1));
    }
}

/// How much longer than two bounds one transaction of user 7 may count.
fn patience(disk: &mut Disk, now: Time) -> Nanos {
    let client = disk.admit_for(now, 7, extra(50)).unwrap();
    submit(disk, now, client, 20);
    let (started, Decision::Full(until)) = start(disk, now) else {
        panic!("twice the bound is queued");
    };
    disk.remove(now, client);
    for (_, ticket) in started {
        disk.complete(now, ticket, Nanos::ZERO);
    }
    until - now - Nanos(2 * BOUND.0)
}

#[test]
fn a_user_has_its_patience_again_however_long_it_held_its_file() {
    let mut disk = Disk::new(Utilization::WHOLE, BOUND, ());
    assert_eq!(patience(&mut disk, at(0)), Nanos::millis(60));
    let client = disk.admit_for(at(0), 7, extra(50)).unwrap();
    submit(&mut disk, at(0), client, 20);
    let (stuck, _) = start(&mut disk, at(0));
    assert_eq!(start(&mut disk, at(80)).0, []);
    // Another user has its own.
    let other = disk.admit_for(at(80), 8, contract(10, 100, 0)).unwrap();
    submit(&mut disk, at(80), other, 20);
    let (started, Decision::Full(until)) = start(&mut disk, at(80)) else {
        panic!("twice the bound is queued");
    };
    assert_eq!(until, at(160));
    for (_, ticket) in started {
        disk.complete(at(81), ticket, Nanos::millis(1));
    }
    disk.remove(at(81), other);
    assert!(patience(&mut disk, at(81)) < Nanos::millis(1));
    for (_, ticket) in stuck {
        disk.complete(at(60_000), ticket, Nanos::seconds(60));
    }
    disk.remove(at(60_000), client);
    assert_eq!(patience(&mut disk, at(60_000)), Nanos::millis(60));
}

#[test]
fn users_whose_transactions_wait_leave_workers_to_each_other() {
    // So much that nothing is late.
    let mut disk = Disk::new(Utilization::WHOLE, Nanos::seconds(100), ());
    let mut started = Vec::new();
    for user in 0..100 {
        // Ended contracts count, too.
        for _ in 0..3 {
            let client = disk.admit_for(at(0), user, extra(0)).unwrap();
            submit(&mut disk, at(0), client, 2000);
            let (own, _) = start(&mut disk, at(0));
            assert!(own.len() <= WORKERS as usize / 6, "{}", own.len());
            started.push(own);
            disk.remove(at(0), client);
        }
        assert!(!started[user as usize * 3].is_empty(), "user {user}");
    }
    assert!(disk.in_flight() <= WORKERS as usize / 4 * 3 + 100);
    // The device alone delays this one's.
    let other = disk.admit(Time(0), extra(0)).unwrap();
    submit(&mut disk, at(0), other, 2000);
    assert!(start(&mut disk, at(0)).0.len() > WORKERS as usize / 8);
    disk.remove(at(0), other);
    // A user goes on when there is room.
    let last = disk.admit_for(at(0), 0, extra(0)).unwrap();
    submit(&mut disk, at(0), last, 1);
    assert_eq!(start(&mut disk, at(0)).0, []);
    for (_, ticket) in started.into_iter().flatten() {
        disk.complete(at(1), ticket, Nanos::millis(1));
    }
    assert_eq!(start(&mut disk, at(1)).0.len(), 1);
}

#[test]
fn a_client_with_one_overdue_transaction_goes_on_with_its_others() {
    let mut disk = Disk::new(Utilization::WHOLE, BOUND, ());
    let client = disk.admit(Time(0), extra(50)).unwrap();
    submit(&mut disk, at(0), client, 1);
    let (lost, _) = start(&mut disk, at(0));
    for millis in (100..1000).step_by(10) {
        submit(&mut disk, at(millis), client, 10);
        let (started, _) = start(&mut disk, at(millis));
        assert_eq!(started.len(), 10);
        for (_, ticket) in started {
            disk.complete(at(millis + 9), ticket, Nanos::millis(9));
        }
    }
    assert_eq!(disk.in_flight(), 1);
    disk.complete(at(1000), lost[0].1, Nanos::seconds(1));
    assert_eq!((disk.in_flight(), disk.cost_in_flight()), (0, Nanos::ZERO));
}

#[test]
fn a_client_that_was_blocked_repays_what_it_used_beyond_its_slice() {
    let mut disk = Disk::new(Utilization::WHOLE, BOUND, ());
    let client = disk.admit(at(0), contract(1, 100, 0)).unwrap();
    let large = TransactionDesc {
        op: Op::Read,
        bytes: 4096,
        cost: BOUND,
        tag: 0,
    };
    disk.submit(at(0), client, large);
    let (stuck, _) = start(&mut disk, at(0));
    // All of the bound is overdue: the client is blocked.
    start(&mut disk, at(400));
    disk.complete(at(450), stuck[0].1, Nanos::millis(450));
    // The same contract again changes nothing of that.
    disk.change(at(450), client, contract(1, 100, 0)).unwrap();
    submit(&mut disk, at(450), client, 1);
    // It has had four slices since, and was charged for more.
    assert_eq!(start(&mut disk, at(450)).0, []);
    for millis in (460..10_000).step_by(10) {
        for (_, ticket) in start(&mut disk, at(millis)).0 {
            disk.complete(at(millis + 1), ticket, Nanos::millis(1));
            submit(&mut disk, at(millis + 1), client, 1);
        }
    }
    let charged = disk.client(client).unwrap().totals.charged;
    assert!(
        charged > Nanos::millis(80) && charged <= Nanos::millis(101),
        "{charged}"
    );
}

#[test]
fn a_client_that_is_removed_while_it_has_too_much_overdue_leaves_nothing() {
    let mut disk = Disk::new(Utilization::WHOLE, BOUND, ());
    let locked = disk.admit(Time(0), extra(50)).unwrap();
    submit(&mut disk, at(0), locked, 15);
    let (stuck, _) = start(&mut disk, at(0));
    start(&mut disk, at(200));
    assert_eq!(disk.remove(at(200), locked).len() + disk.in_flight(), 15);
    for (_, ticket) in stuck {
        disk.complete(at(300), ticket, Nanos::millis(300));
    }
    let next = disk.admit(at(300), extra(50)).unwrap();
    submit(&mut disk, at(300), next, 5);
    assert_eq!(start(&mut disk, at(300)).0.len(), 5);
}

#[test]
fn a_stall_of_the_device_costs_its_client_a_slice_at_most() {
    let mut disk = Disk::new(Utilization::WHOLE, Nanos::ZERO, ());
    let client = disk.admit(Time(0), contract(25, 250, 0)).unwrap();
    submit(&mut disk, at(0), client, 2);
    let (stuck, _) = start(&mut disk, at(0));
    disk.complete(at(30_000), stuck[0].1, Nanos::seconds(30));
    let state = disk.client(client).unwrap();
    assert_eq!(state.totals.charged, Nanos::millis(25));
    let due = match disk.next(at(30_000)) {
        Decision::WaitUntil(due) => due,
        Decision::Dispatch(_) => at(30_000),
        other => panic!("{other:?}"),
    };
    assert!(due - at(30_000) <= Nanos::millis(250), "{due:?}");
}
