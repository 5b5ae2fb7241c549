//! The allocator's invariants, under random tenants of every character.

use crate::machine::{Character, KILLING, Machine};
use frames::allocator::*;
use proptest::prelude::*;
use std::time::Duration;

const T: Duration = Duration::from_millis(100);

fn character() -> impl Strategy<Value = Character> {
    prop_oneof![
        6 => Just(Character::Honest),
        1 => Just(Character::Slow),
        1 => Just(Character::Liar),
        1 => Just(Character::Refuser),
    ]
}

/// An event.
#[derive(Clone, Debug)]
enum Step {
    Admit {
        g: u32,
        extra: u32,
        rate: u32,
        delay: u64,
        character: Character,
    },
    Request {
        which: usize,
        k: u32,
    },
    /// Uses some of its frames, part of them clean.
    Use {
        which: usize,
        part: u32,
        ready: u32,
    },
    /// Has so much resident memory that is not paged, of which the kernel counts so often.
    Unpaged {
        which: usize,
        frames: u32,
        counts: u32,
    },
    Contract {
        which: usize,
        g: u32,
        extra: u32,
    },
    Leave {
        which: usize,
    },
    /// A tenant of the previous daemon reconnects, maybe with more than is managed.
    Return {
        g: u32,
        extra: u32,
        part: u32,
        rate: u32,
        character: Character,
    },
    Wait {
        milliseconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let rate = || prop_oneof![Just(1), 1u32..100, 100u32..20_000];
    let delay = prop_oneof![3 => Just(0), 1 => 0u64..400];
    prop_oneof![
        2 => (0u32..300, 0u32..1000, rate(), delay, character()).prop_map(
            |(g, extra, rate, delay, character)| Step::Admit { g, extra, rate, delay, character }
        ),
        1 => (0u32..300, 0u32..1000, 0u32..=6, rate(), character()).prop_map(
            |(g, extra, part, rate, character)| Step::Return { g, extra, part, rate, character }
        ),
        6 => (any::<usize>(), 1u32..600).prop_map(|(which, k)| Step::Request { which, k }),
        4 => (any::<usize>(), 0u32..=4, 0u32..50)
            .prop_map(|(which, part, ready)| Step::Use { which, part, ready }),
        4 => (any::<usize>(), 0u32..400, 1u32..4)
            .prop_map(|(which, frames, counts)| Step::Unpaged { which, frames, counts }),
        1 => (any::<usize>(), 0u32..300, 0u32..1000)
            .prop_map(|(which, g, extra)| Step::Contract { which, g, extra }),
        1 => any::<usize>().prop_map(|which| Step::Leave { which }),
        4 => (0u64..300).prop_map(|milliseconds| Step::Wait { milliseconds }),
    ]
}

/// Takes a step; the machine checks its invariants at every moment.
fn take(machine: &mut Machine, number: u32, step: Step) {
    let tenant = |which: usize| {
        let count = machine.holders.len().max(1);
        machine.holders.keys().nth(which % count).copied()
    };
    match step {
        Step::Admit {
            g,
            extra,
            rate,
            delay,
            character,
        } => {
            let delay = Duration::from_millis(delay);
            let cleaning = CleaningRate {
                frames_per_second: rate,
                delay,
            };
            let contract = (g, g + extra);
            let _ = machine.admit_with(number, contract, cleaning, character);
        }
        Step::Request { which, k } => {
            if let Some(tenant) = tenant(which) {
                let _ = machine.request(tenant, k);
            }
        }
        Step::Use { which, part, ready } => {
            if let Some(tenant) = tenant(which) {
                machine.use_some(tenant, part, ready);
            }
        }
        Step::Unpaged {
            which,
            frames,
            counts,
        } => {
            if let Some(tenant) = tenant(which) {
                machine.holders.get_mut(&tenant).expect("found").unpaged = frames;
                (0..counts).for_each(|_| machine.count(tenant));
            }
        }
        Step::Contract { which, g, extra } => {
            if let Some(tenant) = tenant(which) {
                let _ = machine.set_contract(tenant, (g, g + extra));
            }
        }
        Step::Leave { which } => {
            if let Some(tenant) = tenant(which) {
                machine.on_tenant_gone(tenant);
            }
        }
        Step::Return {
            g,
            extra,
            part,
            rate,
            character,
        } => {
            let x = g + extra;
            let _ = machine.readmit(number, (g, x), x * part / 4, rate, character);
        }
        Step::Wait { milliseconds } => machine.run_for(Duration::from_millis(milliseconds)),
    }
    machine.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// At every moment the sum of n is within the managed frames, except for those with which
    /// tenants reconnected, promises are kept, and honest tenants live. In the end all guarantees
    /// are met and no frame is lost.
    #[test]
    fn invariants_hold_whatever_tenants_do(
        managed in 50u32..2000,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut machine = Machine::new(managed);
        for (number, step) in (0..).zip(steps) {
            take(&mut machine, number, step);
        }
        let everyone: Vec<_> = machine.holders.keys().copied().collect();
        for tenant in everyone {
            let _ = machine.request(tenant, managed);
        }
        machine.run_for(Duration::from_secs(3600));
        prop_assert!(machine.allocator.pending().is_empty(), "guaranteed requests end");
        for view in machine.allocator.all_stats() {
            let character = machine.holders[&view.tenant].character;
            let held = view.n + view.unpaged;
            prop_assert!(held >= view.contract.g && held <= view.contract.x, "{view:?}");
            let settled = view.owed == 0 && view.beyond == 0 && !view.killed;
            prop_assert!(settled, "{character:?} {view:?}");
        }
        let everyone: Vec<_> = machine.holders.keys().copied().collect();
        for tenant in everyone {
            machine.on_tenant_gone(tenant);
        }
        prop_assert_eq!(machine.allocator.free(), managed);
    }

    /// Where the holders can clean as much in time, a guaranteed request is granted by T, and
    /// 50 ms later if one of them has to be killed.
    #[test]
    fn a_guaranteed_request_is_granted_in_time_where_the_holders_can_clean_as_much(
        holders in prop::collection::vec((1u32..400, 10u32..20_000, character()), 1..6),
        part in 1u32..=100,
    ) {
        let managed: u32 = holders.iter().map(|holder| holder.0).sum();
        let mut machine = Machine::new(managed);
        let mut able = 0;
        for (id, (n, rate, character)) in (1..).zip(&holders) {
            let tenant = machine.admit(id, (0, managed), *rate, *character).unwrap();
            machine.fill(tenant, *n);
            able += (rate / 10).max(1).min(*n);
        }
        let k = (able * part / 100).clamp(1, managed);
        let late = machine.admit(0, (k, k), 1, Character::Honest).unwrap();
        let honest = holders.iter().all(|holder| holder.2 == Character::Honest);
        machine.request(late, k).unwrap();
        prop_assert_eq!(machine.allocator.pending()[0].due, Some(T));
        machine.run_until(T + if honest { Duration::ZERO } else { KILLING });
        prop_assert_eq!(machine.n(late), k);
    }
}

/// Ten thousand revocations from clean, dirty and refusing holders, which fill the machine between
/// any two of them.
#[test]
fn in_ten_thousand_rounds_deadlines_are_kept_and_only_refusers_killed() {
    use Character::{Honest, Liar, Refuser, Slow};
    let characters = [Honest, Honest, Slow, Honest, Liar, Refuser];
    let mut machine = Machine::new(10_000);
    let one = (4000, 4000);
    let one = machine.admit(0, one, 1000, Honest).unwrap();
    machine.fill(one, 4000);
    let (mut generation, mut slowest) = (0, Duration::ZERO);
    while machine.revocations < 10_000 {
        for (which, character) in (0u32..).zip(characters) {
            if !machine
                .holders
                .keys()
                .any(|id| *id != one && id.0 % 6 == which)
            {
                generation += 6;
                // From a slice of 200 frames a second to one of 2200.
                let rate = 200 + 400 * which;
                let contract = (100, 1100);
                machine
                    .admit(generation + which, contract, rate, character)
                    .unwrap();
            }
        }
        let (round, k) = (machine.revocations, 50 + machine.revocations % 150);
        machine.give_back(one, k);
        let others: Vec<_> = machine.holders.keys().copied().skip(1).collect();
        for tenant in others {
            let _ = machine.request(tenant, 10_000);
            machine.use_some(tenant, 4, round % 40);
        }
        let start = machine.now;
        machine.request(one, k).unwrap();
        let promised = machine
            .allocator
            .pending()
            .iter()
            .all(|waiting| waiting.due.is_some());
        machine.run_for(T + KILLING);
        if promised {
            assert_eq!(machine.n(one), 4000, "granted by T and 50 ms");
            slowest = slowest.max(machine.granted - start);
        }
        machine.run_for(T);
    }
    let killed = machine.killed.len();
    assert!(
        killed > 100 && slowest >= T,
        "{killed} killed, served within {slowest:?}"
    );
    let everyone: Vec<_> = machine.holders.keys().copied().collect();
    everyone
        .into_iter()
        .for_each(|tenant| machine.on_tenant_gone(tenant));
    assert_eq!(machine.allocator.free(), 10_000);
}
