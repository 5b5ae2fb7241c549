//! The arithmetic agrees with equations (1) to (4), and the reservation table with the arithmetic.

use proptest::prelude::*;
use rate::equations::{fault_limit, fault_pc, fits, max_fault_pc};
use rate::reservations::{FAULT_FLOOR, ReservationTable, Task, TaskId};
use rate::units::InvalidReservation;
use rate::{Capacity, Reservation, Utilization};
use std::time::Duration;

const MS: u64 = 1_000_000;

#[test]
fn the_papers_example_of_a_reservation_is_a_tenth_of_a_processor() {
    let ten_of_hundred =
        Reservation::new(Duration::from_millis(10), Duration::from_millis(100)).unwrap();
    assert_eq!(ten_of_hundred.pc(), Capacity(100_000_000));
    // 0.95 of a processor less that, at 10 us a fault and 100 ms: 8500 faults.
    let total = Utilization::default().of_processors(1);
    let limit = fault_limit(ten_of_hundred.pc(), total, 100 * MS, 10_000);
    assert_eq!(limit, 8500);
    assert_eq!(fault_pc(limit, 100 * MS, 10_000), Capacity(850_000_000));
}

#[test]
fn invalid_reservations_are_refused_with_the_reason() {
    let ms = Duration::from_millis;
    let no = |runtime, period| Reservation::new(runtime, period).unwrap_err();
    assert_eq!(no(ms(1), ms(0)), InvalidReservation::NoPeriod);
    assert_eq!(no(ms(0), ms(10)), InvalidReservation::NoRuntime);
    assert!(no(ms(20), ms(10)).to_string().contains("20ms is longer"));
    assert!(no(ms(1), ms(5000)).to_string().contains("1ms to 4s"));
    for share in [0.0, -1.0, 1.5, f64::NAN] {
        assert_eq!(Utilization::new(share), None);
    }
}

#[test]
fn a_refusal_names_what_was_asked_and_what_is_left() {
    let mut table = ReservationTable::new(Utilization::default().of_processors(2), 10 * MS, 5_000);
    let reserve = |share: f64| Task {
        pc: Capacity((share * 1e9) as u64),
        weight: 1,
    };
    table.admit(reserve(1.5)).unwrap();
    let text = table.admit(reserve(0.5)).unwrap_err().to_string();
    // 1.9 - 1.5 - 8 faults of 5 us in 10 ms.
    for part in [
        "cannot reserve 0.500 processors",
        "0.396 processors can be",
        "of the 1.900",
        "1.500 processors are",
        "0.004 processors are kept for page faults",
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

#[test]
fn processor_time_that_comes_with_disk_time_is_neither_reserved_nor_promised_twice() {
    let half = Capacity(500_000_000);
    let mut table = ReservationTable::new(Capacity(1_000_000_000), 100 * MS, 5_000);
    table.check_paging(half).unwrap();
    table.set_paging(half);
    let reserve = |pc| Task { pc, weight: 1 };
    let player = table.admit(reserve(half)).unwrap();
    let why = table.check(reserve(Capacity(1))).unwrap_err().to_string();
    assert!(why.contains("comes with disk time"), "{why}");
    let why = table.check_paging(Capacity(1)).unwrap_err().to_string();
    assert!(
        why.contains("0.500 processors come with disk time"),
        "{why}"
    );
    // Faults use that time, so their limit is as before.
    assert_eq!(table.fault_limit(), 10_000);
    table.remove(player);
    table.check_paging(half).unwrap();
}

proptest! {
    #[test]
    fn the_limit_of_equation_4_is_the_greatest_that_equation_2_allows(
        reserved in 0u64..3_000_000_000,
        total in 1u64..4_000_000_000,
        period in MS..10_000 * MS,
        unit in 100u64..10 * MS,
    ) {
        let (reserved, total) = (Capacity(reserved), Capacity(total));
        let limit = fault_limit(reserved, total, period, unit);
        if reserved <= total {
            prop_assert!(fits(reserved, fault_pc(limit, period, unit), total));
            prop_assert!(!fits(reserved, fault_pc(limit + 1, period, unit), total));
        } else {
            prop_assert_eq!(limit, 0);
        }
        prop_assert!(fault_pc(limit, period, unit) <= max_fault_pc(reserved, total));
        // As the paper writes it, in real numbers.
        let real = (total.less(reserved).0 as f64 / 1e9) / unit as f64 * period as f64;
        prop_assert!((limit as f64 - real).abs() <= 1.0 + real * 1e-9);
    }

    #[test]
    fn admitted_tasks_keep_a_floor_and_their_limits_sum_to_the_systems(
        asked in tasks(),
        processors in 1u32..8,
        period in 10 * MS..1000 * MS,
        unit in 1_000u64..200_000,
        leaving in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut table = ReservationTable::new(Utilization::default().of_processors(processors), period, unit);
        let mut there: Vec<TaskId> = Vec::new();
        let check = |table: &ReservationTable| {
            let limits: Vec<_> = table.tasks().map(|(id, task)| (task, table.limit_of(id))).collect();
            let sum: u64 = limits.iter().filter_map(|(_, limit)| *limit).map(u64::from).sum();
            assert!(sum <= table.fault_limit());
            assert!(fits(table.pc(), fault_pc(sum, period, unit), table.total()));
            assert!(!table.is_overcommitted());
            let sharing = limits.iter().filter(|(_, limit)| limit.is_some()).count() as u64;
            if sharing > 0 {
                assert!(table.fault_limit() - sum < sharing, "only rounding is left over");
            }
            for (task, limit) in &limits {
                assert_eq!(task.pc == Capacity::ZERO, limit.is_some());
                assert!(limit.is_none_or(|limit| limit >= FAULT_FLOOR));
                for (other, others) in &limits {
                    if let (Some(limit), Some(others)) = (limit, others) {
                        assert!(task.weight < other.weight || limit >= others);
                    }
                }
            }
        };
        for task in asked {
            let fits = table.check(task).is_ok();
            let before = table.fault_limit();
            match table.admit(task) {
                Ok(id) => there.push(id),
                Err(_) => assert_eq!(table.fault_limit(), before),
            }
            prop_assert_eq!(fits, there.len() == table.tasks().count() && table.tasks().count() > 0 && fits);
            check(&table);
        }
        for index in leaving {
            if !there.is_empty() {
                let removed = there.swap_remove(index.index(there.len()));
                prop_assert!(table.remove(removed) && !table.remove(removed));
                check(&table);
            }
        }
    }

    #[test]
    fn a_new_reservation_lowers_limits_and_its_end_restores_them(
        pc in 1_000_000u64..900_000_000,
        weight in 1u32..10,
    ) {
        let mut table = ReservationTable::new(Utilization::default().of_processors(1), 100 * MS, 5_000);
        let pager = table.admit(Task { pc: Capacity::ZERO, weight }).unwrap();
        let alone = table.limit_of(pager).unwrap();
        let player = table.admit(Task { pc: Capacity(pc), weight: 1 }).unwrap();
        let beside = table.limit_of(pager).unwrap();
        prop_assert!(beside < alone);
        prop_assert_eq!(table.limit_of(player), None);
        table.remove(player);
        prop_assert_eq!(table.limit_of(pager), Some(alone));
    }
}
