//! The arithmetic agrees with equations (1) to (4), and the roster with the arithmetic.

use proptest::prelude::*;
use rate::equations::{fault_limit, fault_pc, fits, most_fault_pc};
use rate::quantities::NoReservation;
use rate::roster::{FLOOR, Roster, Task, TaskId};
use rate::{Capacity, Reservation, Share};
use std::time::Duration;

const MS: u64 = 1_000_000;

#[test]
fn the_papers_example_of_a_reservation_is_a_tenth_of_a_processor() {
    let ten_of_hundred =
        Reservation::new(Duration::from_millis(10), Duration::from_millis(100)).unwrap();
    assert_eq!(ten_of_hundred.pc(), Capacity(100_000_000));
    // 0.95 of a processor less that, at 10 us a fault and 100 ms: 8500 faults.
    let whole = Share::default().of_processors(1);
    let limit = fault_limit(ten_of_hundred.pc(), whole, 100 * MS, 10_000);
    assert_eq!(limit, 8500);
    assert_eq!(fault_pc(limit, 100 * MS, 10_000), Capacity(850_000_000));
}

#[test]
fn reservations_that_cannot_be_are_refused_with_the_reason() {
    let ms = Duration::from_millis;
    let no = |runtime, period| Reservation::new(runtime, period).unwrap_err();
    assert_eq!(no(ms(1), ms(0)), NoReservation::NoPeriod);
    assert_eq!(no(ms(0), ms(10)), NoReservation::NoRuntime);
    assert!(no(ms(20), ms(10)).to_string().contains("20ms is longer"));
    assert!(no(ms(1), ms(5000)).to_string().contains("1ms to 4s"));
    for share in [0.0, -1.0, 1.5, f64::NAN] {
        assert_eq!(Share::new(share), None);
    }
}

#[test]
fn a_refusal_says_what_was_asked_and_what_there_is() {
    let mut roster = Roster::new(Share::default().of_processors(2), 10 * MS, 5_000);
    let reserve = |share: f64| Task {
        pc: Capacity((share * 1e9) as u64),
        weight: 1,
    };
    roster.admit(reserve(1.5)).unwrap();
    let text = roster.admit(reserve(0.5)).unwrap_err().to_string();
    // 1.9 - 1.5 - 8 faults of 5 us in 10 ms.
    for part in [
        "0.500 processors are asked",
        "0.396 processors can be",
        "of the 1.900",
        "1.500 processors are",
        "keep 0.004",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

fn tasks() -> impl Strategy<Value = Vec<Task>> {
    let reserved = (1u64..400_000_000).prop_map(Capacity);
    let pc = prop_oneof![3 => Just(Capacity::ZERO), 1 => reserved];
    let task = (pc, 1u32..1000).prop_map(|(pc, weight)| Task { pc, weight });
    prop::collection::vec(task, 1..24)
}

proptest! {
    #[test]
    fn the_limit_of_equation_4_is_the_greatest_that_equation_2_allows(
        reserved in 0u64..3_000_000_000,
        whole in 1u64..4_000_000_000,
        period in MS..10_000 * MS,
        unit in 100u64..10 * MS,
    ) {
        let (reserved, whole) = (Capacity(reserved), Capacity(whole));
        let limit = fault_limit(reserved, whole, period, unit);
        if reserved <= whole {
            prop_assert!(fits(reserved, fault_pc(limit, period, unit), whole));
            prop_assert!(!fits(reserved, fault_pc(limit + 1, period, unit), whole));
        } else {
            prop_assert_eq!(limit, 0);
        }
        prop_assert!(fault_pc(limit, period, unit) <= most_fault_pc(reserved, whole));
        // As the paper writes it, in real numbers.
        let real = (whole.less(reserved).0 as f64 / 1e9) / unit as f64 * period as f64;
        prop_assert!((limit as f64 - real).abs() <= 1.0 + real * 1e-9);
    }

    #[test]
    fn whoever_is_admitted_keeps_a_floor_and_the_sum_is_the_systems(
        asked in tasks(),
        processors in 1u32..8,
        period in 10 * MS..1000 * MS,
        unit in 1_000u64..200_000,
        leaving in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut roster = Roster::new(Share::default().of_processors(processors), period, unit);
        let mut there: Vec<TaskId> = Vec::new();
        let check = |roster: &Roster| {
            let limits: Vec<_> = roster.tasks().map(|(id, task)| (task, roster.limit_of(id))).collect();
            let sum: u64 = limits.iter().filter_map(|(_, limit)| *limit).map(u64::from).sum();
            assert!(sum <= roster.fault_limit());
            assert!(fits(roster.pc(), fault_pc(sum, period, unit), roster.whole()));
            assert!(!roster.is_over());
            let sharing = limits.iter().filter(|(_, limit)| limit.is_some()).count() as u64;
            if sharing > 0 {
                assert!(roster.fault_limit() - sum < sharing, "only roundings are left over");
            }
            for (task, limit) in &limits {
                assert_eq!(task.pc == Capacity::ZERO, limit.is_some());
                assert!(limit.is_none_or(|limit| limit >= FLOOR));
                for (other, others) in &limits {
                    if let (Some(limit), Some(others)) = (limit, others) {
                        assert!(task.weight < other.weight || limit >= others);
                    }
                }
            }
        };
        for task in asked {
            let fits = roster.check(task).is_ok();
            let before = roster.fault_limit();
            match roster.admit(task) {
                Ok(id) => there.push(id),
                Err(_) => assert_eq!(roster.fault_limit(), before),
            }
            prop_assert_eq!(fits, there.len() == roster.tasks().count() && roster.tasks().count() > 0 && fits);
            check(&roster);
        }
        for index in leaving {
            if !there.is_empty() {
                let gone = there.swap_remove(index.index(there.len()));
                prop_assert!(roster.leave(gone) && !roster.leave(gone));
                check(&roster);
            }
        }
    }

    #[test]
    fn a_reservation_that_comes_lowers_limits_and_one_that_goes_raises_them_again(
        pc in 1_000_000u64..900_000_000,
        weight in 1u32..10,
    ) {
        let mut roster = Roster::new(Share::default().of_processors(1), 100 * MS, 5_000);
        let pager = roster.admit(Task { pc: Capacity::ZERO, weight }).unwrap();
        let alone = roster.limit_of(pager).unwrap();
        let player = roster.admit(Task { pc: Capacity(pc), weight: 1 }).unwrap();
        let beside = roster.limit_of(pager).unwrap();
        prop_assert!(beside < alone);
        prop_assert_eq!(roster.limit_of(player), None);
        roster.leave(player);
        prop_assert_eq!(roster.limit_of(pager), Some(alone));
    }
}
