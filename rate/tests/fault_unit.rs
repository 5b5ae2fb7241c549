//! fault_unit follows the cost of faults, and not outliers.

use proptest::prelude::*;
use rate::fault_unit::{FaultClass, FaultUnits, OUTLIER_FACTOR, WORDS};
use std::sync::atomic::AtomicU64;

fn words() -> Vec<AtomicU64> {
    (0..WORDS).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn one_outlier_in_a_hundred_moves_the_unit_by_less_than_a_tenth() {
    let words = words();
    let units = FaultUnits::new(&words);
    for i in 0..10_000u64 {
        let outlier = i % 100 == 50;
        units.sample(
            FaultClass::ZeroFill,
            if outlier { 50_000_000 } else { 3_000 },
        );
    }
    let unit = units.fault_unit();
    assert!((2_900..3_300).contains(&unit), "{unit}");
}

#[test]
fn a_changed_cost_is_followed() {
    let words = words();
    let units = FaultUnits::new(&words);
    units.set_initial(5_000);
    assert_eq!(units.fault_unit(), 5_000);
    (0..500).for_each(|_| units.sample(FaultClass::Compressed, 2_000));
    assert!((2_000..2_100).contains(&units.fault_unit()));
    (0..500).for_each(|_| units.sample(FaultClass::Compressed, 80_000));
    assert!((79_000..=80_000).contains(&units.fault_unit()));
    // A measured mean is not replaced by an initial value.
    units.set_initial(1);
    assert!(units.fault_unit() > 79_000);
}

#[test]
fn classes_weigh_as_often_as_they_are_sampled() {
    let words = words();
    let units = FaultUnits::new(&words);
    for i in 0..4000 {
        match i % 4 {
            0 => units.sample(FaultClass::Disk, 20_000),
            _ => units.sample(FaultClass::ZeroFill, 4_000),
        }
    }
    assert!((19_990..=20_000).contains(&units.of(FaultClass::Disk)));
    assert!((4_000..4_010).contains(&units.of(FaultClass::ZeroFill)));
    assert_eq!(units.of(FaultClass::File), 0);
    let mean = (20_000 + 3 * 4_000) / 4;
    let unit = units.fault_unit();
    assert!(unit.abs_diff(mean) < mean / 10, "{unit}");
    assert_eq!(units.samples(), 4000);
}

proptest! {
    #[test]
    fn a_mean_lies_among_its_samples(samples in prop::collection::vec(1u64..1 << 40, 1..200)) {
        let words = words();
        let units = FaultUnits::new(&words);
        for sample in &samples {
            let before = units.of(FaultClass::Disk);
            units.sample(FaultClass::Disk, *sample);
            let after = units.of(FaultClass::Disk);
            if before > 0 {
                prop_assert!(after <= before + before * OUTLIER_FACTOR / 16 + 2);
            }
        }
        let (least, most) = (samples.iter().min().unwrap(), samples.iter().max().unwrap());
        prop_assert!((*least..=*most + 1).contains(&units.of(FaultClass::Disk)));
    }
}
