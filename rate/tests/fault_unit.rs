//! fault_unit follows what faults cost, and not what spoils samples.

use proptest::prelude::*;
use rate::unit::{Class, OUTLIER, Units, WORDS};
use std::sync::atomic::AtomicU64;

fn words() -> Vec<AtomicU64> {
    (0..WORDS).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn one_spoiled_sample_in_a_hundred_moves_the_unit_by_less_than_a_tenth() {
    let words = words();
    let units = Units::new(&words);
    for i in 0..10_000u64 {
        let spoiled = i % 100 == 50;
        units.sample(Class::ZeroFill, if spoiled { 50_000_000 } else { 3_000 });
    }
    let unit = units.fault_unit();
    assert!((2_900..3_300).contains(&unit), "{unit}");
}

#[test]
fn a_cost_that_has_changed_is_followed() {
    let words = words();
    let units = Units::new(&words);
    units.begin_with(5_000);
    assert_eq!(units.fault_unit(), 5_000);
    (0..500).for_each(|_| units.sample(Class::Compressed, 2_000));
    assert!((2_000..2_100).contains(&units.fault_unit()));
    (0..500).for_each(|_| units.sample(Class::Compressed, 80_000));
    assert!((79_000..=80_000).contains(&units.fault_unit()));
    // What was measured is not forgotten for a guess.
    units.begin_with(1);
    assert!(units.fault_unit() > 79_000);
}

#[test]
fn classes_enter_as_often_as_they_come() {
    let words = words();
    let units = Units::new(&words);
    for i in 0..4000 {
        match i % 4 {
            0 => units.sample(Class::Disk, 20_000),
            _ => units.sample(Class::ZeroFill, 4_000),
        }
    }
    assert!((19_990..=20_000).contains(&units.of(Class::Disk)));
    assert!((4_000..4_010).contains(&units.of(Class::ZeroFill)));
    assert_eq!(units.of(Class::File), 0);
    let mean = (20_000 + 3 * 4_000) / 4;
    let unit = units.fault_unit();
    assert!(unit.abs_diff(mean) < mean / 10, "{unit}");
    assert_eq!(units.samples(), 4000);
}

proptest! {
    #[test]
    fn a_mean_lies_among_its_samples(samples in prop::collection::vec(1u64..1 << 40, 1..200)) {
        let words = words();
        let units = Units::new(&words);
        for sample in &samples {
            let before = units.of(Class::Disk);
            units.sample(Class::Disk, *sample);
            let after = units.of(Class::Disk);
            if before > 0 {
                prop_assert!(after <= before + before * OUTLIER / 16 + 2);
            }
        }
        let (least, most) = (samples.iter().min().unwrap(), samples.iter().max().unwrap());
        prop_assert!((*least..=*most + 1).contains(&units.of(Class::Disk)));
    }
}
