//! Frames above a guarantee: no more than their holder gives back in time, however slowly it answers.

use crate::machine::{Character::*, Machine};
use crate::ms;
use frames::allocator::*;
use proptest::prelude::*;

fn rate(frames_per_second: u32, delay: u64) -> CleaningRate {
    let delay = ms(delay);
    CleaningRate {
        frames_per_second,
        delay,
    }
}

/// Two fifths of a disk that takes 14 us a page, as the daemon trusts it.
fn large() -> CleaningRate {
    rate(1785, 400)
}

/// A tenth, less than a hundredth, and slices that come every 4 s and every minute.
fn slices() -> [CleaningRate; 5] {
    [
        rate(446, 475),
        rate(17, 499),
        rate(1, 7999),
        rate(1, 119_986),
        rate(1, 400_000),
    ]
}

/// A tenant that answers at its deadlines uses all that it is granted of 100,000 frames, beside
/// one that is guaranteed 90,000 of them.
fn beside(cleaning: CleaningRate) -> (Machine, TenantId, TenantId) {
    let mut machine = Machine::new(100_000);
    let hog = machine.admit_with(1, (4, 100_000), cleaning, Unhurried);
    let hog = hog.unwrap();
    let good = machine.admit_with(2, (90_000, 90_000), large(), Honest);
    machine.fill(hog, 100_000);
    (machine, hog, good.unwrap())
}

#[test]
fn a_guarantee_is_met_in_time_whatever_slice_the_holder_of_its_frames_has() {
    for cleaning in slices() {
        let (mut machine, hog, good) = beside(cleaning);
        let lent = machine.n(hog);
        machine.request(good, 90_000).unwrap();
        machine.run_for(MAX_REVOCATION);
        assert_eq!(
            machine.n(good),
            90_000,
            "{cleaning:?}, which was lent {lent}"
        );
    }
}

#[test]
fn an_ordinary_slice_is_lent_what_it_asks_for() {
    for (cleaning, mib) in [
        (large(), 2048),
        (rate(446, 475), 500),
        (rate(178, 490), 200),
    ] {
        let frames = mib * 256;
        let mut machine = Machine::new(frames);
        let tenant = machine.admit_with(1, (0, frames), cleaning, Honest);
        let tenant = tenant.unwrap();
        machine.fill(tenant, frames);
        assert_eq!(machine.n(tenant), frames, "{mib} MiB at {cleaning:?}");
    }
}

#[test]
fn a_request_for_more_than_is_given_back_in_time_is_refused_with_the_numbers() {
    let (mut machine, hog, _) = beside(rate(1, 7999));
    let lent = machine.n(hog) - 4;
    assert!((200..400).contains(&lent), "{lent}");
    let refused = machine.request(hog, 100).unwrap_err().to_string();
    for part in [
        "100 more",
        "guarantee of 4",
        &format!("back {lent} in 600 s"),
    ] {
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn a_holder_of_many_frames_above_its_guarantee_keeps_the_slice_that_gives_them_back() {
    let (mut machine, hog, good) = beside(large());
    let (slow, now) = (rate(1, 7999), machine.now);
    assert_eq!(machine.n(hog), 100_000);
    let refused = machine.allocator.set_cleaning(hog, slow, now).unwrap_err();
    let text = refused.to_string();
    for part in ["99996 frames", "600 s", "tenant 1"] {
        assert!(text.contains(part), "{text}");
    }
    let less = rate(446, 475);
    machine.allocator.set_cleaning(hog, less, now).unwrap();
    machine.holders.get_mut(&hog).unwrap().cleaning = less;
    machine.request(good, 90_000).unwrap();
    machine.run_for(MAX_REVOCATION);
    assert_eq!(machine.n(good), 90_000);
    // It has 10,000 now.
    machine.give_back(hog, 9900);
    let now = machine.now;
    machine.allocator.set_cleaning(hog, slow, now).unwrap();
    machine.request(hog, 1000).unwrap();
    assert!(machine.n(hog) < 500, "{}", machine.n(hog));
}

#[test]
fn a_lowered_guarantee_is_promised_to_others_as_its_frames_come_back() {
    let mut machine = Machine::new(100_000);
    let slow = rate(17, 499);
    let one = machine.admit_with(1, (100_000, 100_000), slow, Unhurried);
    let one = one.unwrap();
    machine.fill(one, 100_000);
    machine.set_contract(one, (4, 100_000)).unwrap();
    machine.run_for(ms(10_001));
    assert!(
        machine
            .admit_with(2, (90_000, 90_000), large(), Honest)
            .is_err(),
        "they would come too late"
    );
    while machine
        .admit_with(2, (90_000, 90_000), large(), Honest)
        .is_err()
    {
        machine.run_for(MAX_REVOCATION);
    }
    machine.request(TenantId(2), 90_000).unwrap();
    machine.run_for(MAX_REVOCATION);
    assert_eq!(machine.n(TenantId(2)), 90_000);
}

fn any_rate() -> impl Strategy<Value = CleaningRate> {
    let frames = prop_oneof![1u32..20, 1u32..1000, 100u32..20_000];
    let delay = prop_oneof![Just(0), 0u64..500, 0u64..300_000];
    (frames, delay).prop_map(|(frames, delay)| rate(frames, delay))
}

/// `holder` is given `other` disk time and takes what it is lent for that, and more demands keep it
/// busy. Returns what the tenant that is guaranteed 90,000 frames has in time.
fn guaranteed_beside_other_disk_time(holder: CleaningRate, other: CleaningRate) -> u32 {
    let (mut machine, hog, good) = beside(holder);
    let now = machine.now;
    machine.allocator.set_cleaning(hog, other, now).unwrap();
    machine.holders.get_mut(&hog).unwrap().cleaning = other;
    machine.fill(hog, 100_000);
    machine.request(good, 1).unwrap();
    machine.run_for(ms(1));
    machine.request(good, 90_000).unwrap();
    machine.run_for(MAX_REVOCATION);
    machine.n(good)
}

#[test]
fn a_holder_with_more_disk_time_is_lent_no_more_than_it_gives_back_once_it_has_it() {
    let (slow, fast) = (rate(1, 160_751), rate(467, 35_886));
    assert_eq!(guaranteed_beside_other_disk_time(slow, fast), 90_000);
}

#[test]
fn a_holder_is_lent_more_once_it_has_more_disk_time() {
    let (mut machine, hog, _) = beside(rate(1, 160_751));
    let (now, fast) = (machine.now, rate(467, 35_886));
    machine.allocator.set_cleaning(hog, fast, now).unwrap();
    machine.request(hog, 100_000).unwrap();
    let first = machine.n(hog);
    machine.run_for(ms(160_752));
    machine.request(hog, 100_000).unwrap();
    assert!(first < machine.n(hog), "{first}, {}", machine.n(hog));
}

#[test]
fn fewer_managed_frames_are_refused_while_a_lowered_guarantee_cannot_be_given_back_in_time() {
    let mut machine = Machine::new(1000);
    let slow = machine
        .admit_with(1, (600, 600), rate(1, 119_986), Unhurried)
        .unwrap();
    machine.fill(slow, 600);
    let late = machine.admit(2, (400, 400), 1000, Honest).unwrap();
    machine.set_contract(slow, (0, 600)).unwrap();
    machine.run_for(ms(60_000));
    let now = machine.now;
    assert!(machine.allocator.set_managed(600, now).is_err());
    machine.request(late, 400).unwrap();
    machine.run_for(MAX_REVOCATION);
    assert_eq!(machine.n(late), 400);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Holders that answer each demand at its deadline, or as fast as they can, take all that they are lent
    /// and are given other slices; small requests keep them busy. A guarantee is met in time all
    /// the same.
    #[test]
    fn a_guarantee_is_met_in_time_whatever_the_others_do(
        holders in prop::collection::vec((any_rate(), any_rate(), 1u64..5000, any::<bool>()), 1..6),
        first in 1u32..50,
    ) {
        let mut machine = Machine::new(100_000);
        let late = machine.admit(0, (90_000, 90_000), 1000, Honest).unwrap();
        for (id, (cleaning, _, _, hurried)) in (1..).zip(&holders) {
            let character = if *hurried { Honest } else { Unhurried };
            let tenant = machine.admit_with(id, (4, 100_000), *cleaning, character).unwrap();
            machine.fill(tenant, 100_000);
        }
        for (id, (_, cleaning, wait, _)) in (1..).map(TenantId).zip(&holders) {
            let now = machine.now;
            let owed = machine.allocator.stats(id).unwrap().owed;
            if owed == 0 && machine.allocator.set_cleaning(id, *cleaning, now).is_ok() {
                machine.holders.get_mut(&id).unwrap().cleaning = *cleaning;
                let _ = machine.request(id, 100_000);
                machine.use_all(id);
            }
            machine.request(late, first).unwrap();
            machine.run_for(ms(*wait));
        }
        machine.request(late, 90_000).unwrap();
        machine.run_for(MAX_REVOCATION);
        let left: Vec<_> = machine.allocator.all_stats().map(|s| (s.tenant, s.n, s.owed)).collect();
        prop_assert_eq!(machine.n(late), 90_000, "{:?}", left);
    }
}
