//! The limiter under load on a virtual clock: no period holds more faults than its limit,
//! every task makes progress in every period, each fault counts once.

use proptest::prelude::*;
use rate::limiter::{ChargeToken, Limiter};
use rate::shared_limits::{self, FaultLimits, SharedLimits};
use rate::thread_counters::{ThreadCounters, ThreadKey};
use rate::window_counter::PeriodClock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MS: u64 = 1_000_000;

struct Memory {
    generation: AtomicU32,
    limits: Vec<AtomicU64>,
    tasks: Vec<AtomicU64>,
}

impl Memory {
    fn new(tasks: usize) -> Self {
        let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self {
            generation: AtomicU32::new(0),
            limits: words(shared_limits::WORDS),
            tasks: words(tasks),
        }
    }

    fn limits(&self) -> SharedLimits<'_> {
        SharedLimits::new(&self.generation, &self.limits)
    }

    fn limiter(&self) -> Limiter<'_> {
        Limiter::new(self.limits(), ThreadCounters::new(&self.tasks))
    }
}

#[test]
fn without_limits_no_fault_waits() {
    let memory = Memory::new(64);
    let limiter = memory.limiter();
    for now in 0..1000 {
        let decision = limiter.page_fault(ThreadKey::new(1), now, ChargeToken::default());
        assert_eq!(decision.until, None);
        assert_eq!(limiter.charge_extra(ThreadKey::new(1), now, 63).granted, 63);
    }
}

#[test]
fn a_task_past_its_limit_is_suspended_until_its_next_period() {
    let memory = Memory::new(64);
    let limits = FaultLimits {
        fault_period: 10 * MS,
        task_limit: 3,
        ..FaultLimits::default()
    };
    assert!(memory.limits().set(limits, 0));
    assert!(!memory.limits().set(limits, 0));
    let (limiter, task) = (memory.limiter(), ThreadKey::new(7));
    let own = PeriodClock::new(10 * MS).apart(7);
    let start = own.start(5);
    for i in 0..3 {
        let decision = limiter.page_fault(task, start + i, ChargeToken::default());
        assert_eq!((decision.until, decision.task_count), (None, i as u32 + 1));
    }
    let decision = limiter.page_fault(task, start + 9, ChargeToken::default());
    assert_eq!(decision.until, Some(own.start(6)));
    // Other threads are not suspended.
    let other = limiter.page_fault(ThreadKey::new(8), start + 9, ChargeToken::default());
    assert_eq!(other.until, None);
    let again = limiter.page_fault(task, own.start(6), decision.token);
    assert_eq!((again.until, again.task_count), (None, 1));
}

#[test]
fn past_the_systems_limit_the_swapper_is_called_once_a_period_and_no_fault_waits() {
    let memory = Memory::new(64);
    let limits = FaultLimits {
        fault_period: 10 * MS,
        system_limit: 5,
        ..FaultLimits::default()
    };
    memory.limits().set(limits, 0);
    let limiter = memory.limiter();
    for period in 1..4u64 {
        let calls: Vec<bool> = (0..20)
            .map(|i| {
                limiter.page_fault(ThreadKey::new(i), period * 10 * MS, ChargeToken::default())
            })
            .inspect(|decision| assert_eq!(decision.until, None))
            .map(|decision| decision.call_swapper)
            .collect();
        assert_eq!(calls.iter().position(|call| *call), Some(5));
        assert_eq!(calls.iter().filter(|call| **call).count(), 1);
    }
}

#[test]
fn a_window_charges_what_is_left_and_refunds_what_it_did_not_use() {
    let memory = Memory::new(64);
    let limits = FaultLimits {
        fault_period: 10 * MS,
        task_limit: 10,
        tree_limit: 12,
        ..FaultLimits::default()
    };
    memory.limits().set(limits, 0);
    let (limiter, now) = (memory.limiter(), 100 * MS);
    let (one, other) = (ThreadKey::new(1), ThreadKey::new(2));
    assert_eq!(
        limiter.page_fault(one, now, ChargeToken::default()).until,
        None
    );
    assert_eq!(limiter.charge_extra(one, now, 63).granted, 9);
    limiter.refund(one, now, 4);
    assert_eq!(limiter.charge_extra(one, now, 2).granted, 2);
    assert_eq!(memory.limits().counted().count, 8);
    assert_eq!(
        limiter.charge_extra(other, now, 63).granted,
        4,
        "what the tree has left"
    );
    let waits = limiter.page_fault(other, now, ChargeToken::default());
    assert_eq!(waits.until, Some(now + 10 * MS));
    // While a fault waits, no window takes pages ahead of it.
    assert_eq!(limiter.charge_extra(one, now, 1).granted, 0);
}

/// One thread of a simulated program.
#[derive(Clone, Copy, Debug)]
struct Thread {
    key: ThreadKey,
    /// Time between a handled fault and the next.
    think_time: u64,
    /// Extra pages wanted with a fault.
    window: u32,
    token: ChargeToken,
    /// Time of its next fault.
    at: u64,
    handled: u64,
}

/// Handled faults by period.
#[derive(Default)]
struct Handled {
    by_task: BTreeMap<(u32, u64), u32>,
    by_tree: BTreeMap<u64, u32>,
    progress: BTreeMap<u64, BTreeSet<u32>>,
}

fn simulate(
    limits: FaultLimits,
    threads: &mut [Thread],
    until: u64,
    late: &dyn Fn(u64) -> u64,
) -> Handled {
    let memory = Memory::new(256);
    memory.limits().set(limits, 0);
    let limiter = memory.limiter();
    let tree = PeriodClock::new(limits.fault_period);
    let mut seen = Handled::default();
    while let Some(thread) = threads
        .iter_mut()
        .filter(|t| t.at < until)
        .min_by_key(|t| t.at)
    {
        let now = thread.at;
        let decision = limiter.page_fault(thread.key, now, thread.token);
        if let Some(due) = decision.until {
            assert!(due > now, "a retry lies in the future");
            thread.token = decision.token;
            thread.at = due + late(due);
            continue;
        }
        let more = limiter.charge_extra(thread.key, now, thread.window).granted;
        let unused = more / 3;
        limiter.refund(thread.key, now, unused);
        let count = 1 + more - unused;
        let own = PeriodClock::new(limits.fault_period).apart(thread.key.number());
        *seen
            .by_task
            .entry((thread.key.number(), own.of(now)))
            .or_default() += count;
        *seen.by_tree.entry(tree.of(now)).or_default() += count;
        seen.progress
            .entry(tree.of(now))
            .or_default()
            .insert(thread.key.number());
        thread.handled += 1;
        thread.token = ChargeToken::default();
        thread.at = now + thread.think_time;
    }
    seen
}

fn threads() -> impl Strategy<Value = Vec<Thread>> {
    let thread = (1u64..3 * MS, 0u32..70, 0u64..5 * MS);
    prop::collection::vec(thread, 1..12).prop_map(|all| {
        let number = |(i, (think_time, window, at))| Thread {
            key: ThreadKey::new(100 + i as u32),
            think_time,
            window,
            token: ChargeToken::default(),
            at,
            handled: 0,
        };
        all.into_iter().enumerate().map(number).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_period_ever_holds_more_faults_than_its_limit(
        mut threads in threads(),
        task_limit in 0u32..40,
        tree_limit in 0u32..120,
        period in MS..20 * MS,
        lateness in prop::collection::vec(0u64..30 * MS, 1..8),
    ) {
        let limits = FaultLimits { fault_period: period, task_limit, tree_limit, system_limit: 0 };
        let late = |due: u64| lateness[(due % 7919) as usize % lateness.len()];
        let seen = simulate(limits, &mut threads, 300 * MS, &late);
        if task_limit != 0 {
            prop_assert!(seen.by_task.values().all(|count| *count <= task_limit));
        }
        if tree_limit != 0 {
            prop_assert!(seen.by_tree.values().all(|count| *count <= tree_limit));
        }
    }

    #[test]
    fn every_task_makes_progress_in_every_period(
        mut threads in threads(),
        beyond in 0u32..50,
        period in 5 * MS..20 * MS,
        own in any::<bool>(),
    ) {
        let count = threads.len() as u32;
        let limits = FaultLimits {
            fault_period: period,
            task_limit: if own { 1 + beyond / 4 } else { 0 },
            tree_limit: count + beyond,
            system_limit: 0,
        };
        // Demand always exceeds supply, and no thread is a whole period late.
        threads.iter_mut().for_each(|thread| thread.think_time = thread.think_time % (period / 100) + 1);
        let seen = simulate(limits, &mut threads, 40 * period, &|due| due % (period / 8));
        // Threads' periods are out of phase with the tree's: two of the tree's contain one.
        let ends: Vec<u64> = seen.by_tree.keys().copied().collect();
        for two in ends.windows(2).skip(1).take(ends.len().saturating_sub(3)) {
            prop_assert_eq!(two[0] + 1, two[1]);
            let both: BTreeSet<u32> = seen.progress[&two[0]].union(&seen.progress[&two[1]]).copied().collect();
            let needed = if own { &both } else { &seen.progress[&two[1]] };
            prop_assert_eq!(needed.len() as u32, count);
        }
    }

    #[test]
    fn changed_limits_hold_at_once_and_lose_no_fault(
        limits in prop::collection::vec((1u32..30, 1u32..60), 2..6),
        period in MS..10 * MS,
    ) {
        let memory = Memory::new(64);
        let limiter = memory.limiter();
        let mut waiting: Vec<(ThreadKey, ChargeToken)> = (0..20).map(|i| (ThreadKey::new(500 + i), ChargeToken::default())).collect();
        let mut now = 0;
        for (task_limit, tree_limit) in limits {
            let limits = FaultLimits { fault_period: period, task_limit, tree_limit, system_limit: 0 };
            memory.limits().set(limits, now);
            for _ in 0..5 {
                let mut handled = 0;
                for (key, token) in &mut waiting {
                    let decision = limiter.page_fault(*key, now, *token);
                    *token = if decision.until.is_some() { decision.token } else { ChargeToken::default() };
                    handled += u32::from(decision.until.is_none());
                }
                prop_assert!(handled <= tree_limit, "{handled} in one period of at most {tree_limit}");
                now += period;
            }
        }
        memory.limits().set(FaultLimits::default(), now);
        for (key, token) in waiting {
            prop_assert_eq!(limiter.page_fault(key, now, token).until, None);
        }
    }
}

#[test]
fn a_changed_limit_counts_from_the_current_period() {
    let memory = Memory::new(64);
    let set = |fault_period, tree_limit| {
        let limits = FaultLimits {
            fault_period,
            tree_limit,
            ..FaultLimits::default()
        };
        memory.limits().set(limits, 105 * MS);
    };
    let limiter = memory.limiter();
    let handled = |faults| {
        let fault = |i| {
            limiter
                .page_fault(ThreadKey::new(i), 105 * MS, ChargeToken::default())
                .until
        };
        (1..=faults).filter(|i| fault(*i).is_none()).count()
    };
    set(10 * MS, 10);
    assert_eq!(handled(4), 4);
    set(10 * MS, 20);
    assert_eq!(handled(10), 10, "a raised limit stops no fault");
    set(10 * MS, 15);
    assert_eq!(handled(10), 1, "a lowered limit counts what was handled");
    set(10 * MS, 18);
    assert_eq!(handled(10), 3, "faults that wait count once");
    set(u64::MAX, 21);
    assert_eq!(handled(10), 3, "a period that never ends has begun");
}

#[test]
fn faults_do_not_wait_behind_the_bookings_of_an_ended_process_once_bookings_end() {
    let memory = Memory::new(64);
    let limits = FaultLimits {
        fault_period: 10 * MS,
        tree_limit: 2,
        ..FaultLimits::default()
    };
    memory.limits().set(limits, 0);
    let (limiter, now) = (memory.limiter(), 100 * MS);
    let fault = |key, token| limiter.page_fault(ThreadKey::new(key), now, token);
    assert!(
        !memory.limits().end_bookings(now),
        "no fault is booked ahead"
    );
    // The first two are handled; the other eight bookings belong to a process that has ended.
    let dead: Vec<_> = (0..10).map(|i| fault(i, ChargeToken::default())).collect();
    let waiting = fault(10, ChargeToken::default());
    assert_eq!(dead[9].until, Some(now + 40 * MS));
    assert_eq!(waiting.until, Some(now + 50 * MS));
    assert!(memory.limits().end_bookings(now));
    // The current period stays full.
    assert_eq!(fault(10, waiting.token).until, Some(now + 10 * MS));
    assert_eq!(fault(11, ChargeToken::default()).until, Some(now + 10 * MS));
    assert_eq!(fault(12, ChargeToken::default()).until, Some(now + 20 * MS));
}

#[test]
fn threads_of_a_process_that_fault_at_once_keep_to_the_limit() {
    let memory = Memory::new(64);
    let limits = FaultLimits {
        fault_period: MS,
        task_limit: 100,
        tree_limit: 150,
        ..FaultLimits::default()
    };
    memory.limits().set(limits, 0);
    let handled = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (memory, handled) = (&memory, &handled);
            scope.spawn(move || {
                for _ in 0..200 {
                    let key = ThreadKey::new(1000 + thread);
                    let decision =
                        memory
                            .limiter()
                            .page_fault(key, 50 * MS, ChargeToken::default());
                    handled.fetch_add(u32::from(decision.until.is_none()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(handled.load(Ordering::Relaxed), 150);
}
