//! Contracts that end within their period: what they used ahead of their share is not given again.

mod common;

use common::contract;
use disk::atropos::{Atropos, ClientId, Decision, DiskContract, TransactionDesc, Utilization};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};
use proptest::prelude::*;

const COST: Nanos = Nanos::micros(500);

type Disk = Atropos<()>;

fn disk() -> Disk {
    Atropos::new(Utilization::WHOLE, Nanos::ZERO, ())
}

fn submit(disk: &mut Disk, now: Time, client: ClientId) {
    let job = TransactionDesc {
        op: Op::Read,
        bytes: 4096,
        cost: COST,
        tag: 0,
    };
    assert!(disk.submit(now, client, job));
}

/// Has the client do so many transactions, one after the other; returns when the last one ends.
fn work(disk: &mut Disk, mut now: Time, client: ClientId, count: u64) -> Time {
    for _ in 0..count {
        submit(disk, now, client);
        let Decision::Dispatch(start) = disk.next(now) else {
            panic!("it has time at {now:?}");
        };
        now = now + COST;
        disk.complete(now, start.ticket, COST);
    }
    now
}

/// A client leaves whenever it was charged for `stay`, and comes back at once, beside one that always has work and the rest of
/// the disk. Returns what both were charged in so long.
fn leave_and_return(contract: DiskContract, stay: Nanos, length: Time) -> [Nanos; 2] {
    let mut disk = disk();
    let share = contract.share().in_period(contract.period);
    let rest = DiskContract::new(contract.period - share, contract.period);
    let mut clients = [contract, rest].map(|one| disk.admit(Time(0), one).unwrap());
    let (mut now, mut charged) = (Time(0), [Nanos::ZERO; 2]);
    for client in clients {
        (0..4).for_each(|_| submit(&mut disk, now, client));
    }
    while now < length {
        match disk.next(now) {
            Decision::Dispatch(start) => {
                now = now + COST;
                disk.complete(now, start.ticket, COST);
                let of = clients.iter().position(|one| *one == start.client).unwrap();
                charged[of] += COST;
                submit(&mut disk, now, start.client);
                let state = disk.client(clients[0]).unwrap();
                if of == 0 && state.totals.charged >= stay {
                    disk.remove(now, clients[0]);
                    clients[0] = disk.admit(now, contract).unwrap();
                    (0..4).for_each(|_| submit(&mut disk, now, clients[0]));
                }
            }
            Decision::WaitUntil(until) => now = until,
            Decision::Full(_) | Decision::Idle => {
                panic!("both have work, and nothing is in flight")
            }
        }
    }
    charged
}

proptest! {
    #[test]
    fn a_client_that_leaves_and_comes_back_takes_nothing_of_others(
        period in 10u64..200,
        percent in 5u64..90,
        stay_percent in 5u64..150,
    ) {
        let contract = DiskContract::new(
            Nanos(period * 10_000 * percent),
            Nanos::millis(period),
        );
        let stay = Nanos(contract.slice.0 * stay_percent / 100);
        let length = Time(3_000_000_000);
        let [its, others] = leave_and_return(contract, stay, length);
        // A period that has not ended may have the whole of its slice.
        let most = contract.share().in_period(Nanos(length.0)) + contract.slice + COST + COST;
        prop_assert!(its <= most, "{its} of {most}");
        let least = Nanos(length.0) - most - contract.period;
        prop_assert!(others >= least, "{others} of {least}");
    }
}

#[test]
fn a_share_that_was_not_used_ahead_is_free_at_once() {
    let mut disk = disk();
    let first = disk.admit(Time(0), contract(50, 100, 0)).unwrap();
    work(&mut disk, Time(0), first, 20);
    // 10 ms of its 50 in 60 ms.
    let now = Time(60_000_000);
    disk.remove(now, first);
    let next = disk.admit(now, contract(100, 100, 0)).unwrap();
    work(&mut disk, now, next, 1);
}

#[test]
fn a_share_that_was_used_ahead_is_free_when_it_is_due() {
    let mut disk = disk();
    let first = disk.admit(Time(0), contract(50, 100, 0)).unwrap();
    let now = work(&mut disk, Time(0), first, 60);
    disk.remove(now, first);
    // The 30 ms that it used are due at 60 ms. What was not promised to it is free.
    let beside = disk.admit(now, contract(50, 100, 0)).unwrap();
    let now = work(&mut disk, now, beside, 1);
    let next = disk.admit(now, contract(50, 100, 0)).unwrap();
    submit(&mut disk, now, next);
    let due = Time(60_000_000);
    assert_eq!(disk.next(now), Decision::WaitUntil(due));
    assert!(matches!(disk.next(due), Decision::Dispatch(_)));
}

#[test]
fn a_contract_that_is_raised_waits_for_time_that_another_used_ahead() {
    for slice in [0, 50] {
        let mut disk = disk();
        let [first, other] = [50, slice]
            .map(|slice| contract(slice, 100, 0).with_slack())
            .map(|one| disk.admit(Time(0), one).unwrap());
        let now = work(&mut disk, Time(0), first, 100);
        disk.remove(now, first);
        let raised = contract(100, 100, 0);
        disk.change(now, other, raised).unwrap();
        submit(&mut disk, now, other);
        let due = Time(100_000_000);
        assert_eq!(disk.next(now), Decision::WaitUntil(due), "{slice}");
        assert!(matches!(disk.next(due), Decision::Dispatch(_)));
    }
}

#[test]
fn a_contract_of_a_small_slice_lends_no_transaction_each_time_that_it_returns() {
    let mut disk = disk();
    let large = TransactionDesc {
        op: Op::Read,
        bytes: 4096,
        cost: Nanos::millis(8),
        tag: 0,
    };
    disk.admit(Time(0), contract(90, 100, 0)).unwrap();
    let small = DiskContract::new(Nanos::micros(10), Nanos::millis(100));
    let (mut now, mut used) = (Time(0), Nanos::ZERO);
    while now < Time(10_000_000_000) {
        let client = disk.admit(now, small).unwrap();
        disk.submit(now, client, large);
        now = now + Nanos::millis(10);
        if let Decision::Dispatch(start) = disk.next(now) {
            used += large.cost;
            now = now + large.cost;
            disk.complete(now, start.ticket, large.cost);
        }
        disk.remove(now, client);
    }
    // A tenth of the disk is promised to no other contract.
    assert!(used <= Nanos::millis(1100), "{used}");
}

#[test]
fn a_lowered_contract_of_a_client_that_stays_idle_is_free_for_others() {
    let mut disk = disk();
    let idle = disk.admit(Time(0), contract(60, 100, 0)).unwrap();
    let now = work(&mut disk, Time(0), idle, 1);
    assert_eq!(disk.next(now), Decision::Idle);
    disk.change(now, idle, contract(10, 100, 0)).unwrap();
    assert!(disk.admit(now, contract(80, 100, 0)).is_err());
    let later = Time(200_000_000);
    assert!(disk.admit(later, contract(80, 100, 0)).is_ok());
}
