//! The handler under load on a virtual clock: no period holds more faults than its limit,
//! every task makes progress in every period, each fault counts once.

use proptest::prelude::*;
use rate::account::Periods;
use rate::handler::{Handler, Ticket};
use rate::limits::{self, Limits, Setting};
use rate::tasks::{Key, Tasks};
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
            limits: words(limits::WORDS),
            tasks: words(tasks),
        }
    }

    fn limits(&self) -> Limits<'_> {
        Limits::new(&self.generation, &self.limits)
    }

    fn handler(&self) -> Handler<'_> {
        Handler::new(self.limits(), Tasks::new(&self.tasks))
    }
}

#[test]
fn without_limits_nothing_waits() {
    let memory = Memory::new(64);
    let handler = memory.handler();
    for now in 0..1000 {
        let answer = handler.page_fault(Key::new(1), now, Ticket::default());
        assert_eq!(answer.until, None);
        assert_eq!(handler.take_more(Key::new(1), now, 63).granted, 63);
    }
}

proptest! {
    /// Faults counted after they were handled: with the batch that is left for the next, no
    /// period has more than the limit, whenever they come.
    #[test]
    fn faults_counted_in_batches_stay_within_the_limit(
        limit in 2u32..2000,
        number in 1u32..1000,
        pauses in prop::collection::vec(0u64..40_000, 100..400),
    ) {
        let memory = Memory::new(64);
        let setting = Setting { fault_period: 10 * MS, task_limit: limit, ..Setting::default() };
        memory.limits().set(setting, 0);
        let batch = setting.batch().unwrap();
        prop_assert!(batch == 1 || batch <= limit / 8);
        let (handler, task) = (memory.handler().after(batch), Key::new(number));
        let periods = Periods::new(10 * MS).apart(number);
        let (mut now, mut handled, mut uncounted) = (0, BTreeMap::<u64, u32>::new(), 0);
        for n in 0..20 * limit as usize {
            now += pauses[n % pauses.len()];
            *handled.entry(periods.of(now)).or_default() += 1;
            uncounted += 1;
            if uncounted < batch {
                continue;
            }
            while uncounted > 0 {
                let answer = handler.page_fault(task, now, Ticket::default());
                match answer.until {
                    Some(until) => {
                        prop_assert!(until > now);
                        now = until;
                    }
                    None => uncounted -= 1 + handler.take_more(task, now, uncounted - 1).granted,
                }
            }
        }
        for (period, count) in handled {
            prop_assert!(count <= limit, "{} of {} in period {}", count, limit, period);
        }
    }

    #[test]
    fn a_batch_is_one_or_a_prime_within_an_eighth_of_the_lowest_limit(
        task in 0u32..5000, tree in 0u32..5000, system in 0u32..5000,
    ) {
        let setting = Setting {
            fault_period: 10 * MS, task_limit: task, tree_limit: tree, system_limit: system,
        };
        let lowest = [task, tree, system].into_iter().filter(|limit| *limit != 0).min();
        let batch = setting.batch();
        prop_assert_eq!(batch.is_some(), lowest.is_some());
        if let (Some(batch), Some(lowest)) = (batch, lowest) {
            prop_assert!((1..=100).contains(&batch) && batch <= (lowest / 8).max(1));
            prop_assert!((2..batch).all(|divisor| batch % divisor != 0));
            prop_assert!(batch > 1 || lowest < 16);
        }
        prop_assert_eq!(Setting { fault_period: 0, ..setting }.batch(), None);
    }
}

#[test]
fn a_task_past_its_limit_is_suspended_until_its_next_period() {
    let memory = Memory::new(64);
    let setting = Setting {
        fault_period: 10 * MS,
        task_limit: 3,
        ..Setting::default()
    };
    assert!(memory.limits().set(setting, 0));
    assert!(!memory.limits().set(setting, 0));
    let (handler, task) = (memory.handler(), Key::new(7));
    let own = Periods::new(10 * MS).apart(7);
    let start = own.start(5);
    for i in 0..3 {
        let answer = handler.page_fault(task, start + i, Ticket::default());
        assert_eq!((answer.until, answer.task_count), (None, i as u32 + 1));
    }
    let answer = handler.page_fault(task, start + 9, Ticket::default());
    assert_eq!(answer.until, Some(own.start(6)));
    // Others are not held up.
    let other = handler.page_fault(Key::new(8), start + 9, Ticket::default());
    assert_eq!(other.until, None);
    let again = handler.page_fault(task, own.start(6), answer.ticket);
    assert_eq!((again.until, again.task_count), (None, 1));
}

#[test]
fn past_the_systems_limit_the_swapper_is_called_once_a_period_and_nobody_waits() {
    let memory = Memory::new(64);
    let setting = Setting {
        fault_period: 10 * MS,
        system_limit: 5,
        ..Setting::default()
    };
    memory.limits().set(setting, 0);
    let handler = memory.handler();
    for period in 1..4u64 {
        let calls: Vec<bool> = (0..20)
            .map(|i| handler.page_fault(Key::new(i), period * 10 * MS, Ticket::default()))
            .inspect(|answer| assert_eq!(answer.until, None))
            .map(|answer| answer.call_swapper)
            .collect();
        assert_eq!(calls.iter().position(|call| *call), Some(5));
        assert_eq!(calls.iter().filter(|call| **call).count(), 1);
    }
}

#[test]
fn a_window_takes_what_is_left_and_gives_back_what_it_did_not_use() {
    let memory = Memory::new(64);
    let setting = Setting {
        fault_period: 10 * MS,
        task_limit: 10,
        tree_limit: 12,
        ..Setting::default()
    };
    memory.limits().set(setting, 0);
    let (handler, now) = (memory.handler(), 100 * MS);
    let (one, other) = (Key::new(1), Key::new(2));
    assert_eq!(handler.page_fault(one, now, Ticket::default()).until, None);
    assert_eq!(handler.take_more(one, now, 63).granted, 9);
    handler.give_back(one, now, 4);
    assert_eq!(handler.take_more(one, now, 2).granted, 2);
    assert_eq!(memory.limits().counted().count, 8);
    assert_eq!(
        handler.take_more(other, now, 63).granted,
        4,
        "what all have left"
    );
    let waits = handler.page_fault(other, now, Ticket::default());
    assert_eq!(waits.until, Some(now + 10 * MS));
    // While somebody waits, nobody takes ahead of him.
    assert_eq!(handler.take_more(one, now, 1).granted, 0);
}

/// One thread of a simulated program.
#[derive(Clone, Copy, Debug)]
struct Thread {
    key: Key,
    /// Between a fault that was handled and the next.
    thinks: u64,
    /// Pages that it would like with a fault.
    window: u32,
    ticket: Ticket,
    /// When it comes next.
    at: u64,
    handled: u64,
}

/// What happened in the periods.
#[derive(Default)]
struct Seen {
    by_task: BTreeMap<(u32, u64), u32>,
    by_tree: BTreeMap<u64, u32>,
    progress: BTreeMap<u64, BTreeSet<u32>>,
}

fn simulate(
    setting: Setting,
    threads: &mut [Thread],
    until: u64,
    late: &dyn Fn(u64) -> u64,
) -> Seen {
    let memory = Memory::new(256);
    memory.limits().set(setting, 0);
    let handler = memory.handler();
    let tree = Periods::new(setting.fault_period);
    let mut seen = Seen::default();
    while let Some(thread) = threads
        .iter_mut()
        .filter(|t| t.at < until)
        .min_by_key(|t| t.at)
    {
        let now = thread.at;
        let answer = handler.page_fault(thread.key, now, thread.ticket);
        if let Some(due) = answer.until {
            assert!(due > now, "who is to come again is to come later");
            thread.ticket = answer.ticket;
            thread.at = due + late(due);
            continue;
        }
        let more = handler.take_more(thread.key, now, thread.window).granted;
        let unused = more / 3;
        handler.give_back(thread.key, now, unused);
        let count = 1 + more - unused;
        let own = Periods::new(setting.fault_period).apart(thread.key.number());
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
        thread.ticket = Ticket::default();
        thread.at = now + thread.thinks;
    }
    seen
}

fn threads() -> impl Strategy<Value = Vec<Thread>> {
    let thread = (1u64..3 * MS, 0u32..70, 0u64..5 * MS);
    prop::collection::vec(thread, 1..12).prop_map(|all| {
        let number = |(i, (thinks, window, at))| Thread {
            key: Key::new(100 + i as u32),
            thinks,
            window,
            ticket: Ticket::default(),
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
        let setting = Setting { fault_period: period, task_limit, tree_limit, system_limit: 0 };
        let late = |due: u64| lateness[(due % 7919) as usize % lateness.len()];
        let seen = simulate(setting, &mut threads, 300 * MS, &late);
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
        let setting = Setting {
            fault_period: period,
            task_limit: if own { 1 + beyond / 4 } else { 0 },
            tree_limit: count + beyond,
            system_limit: 0,
        };
        // All want more than there is, all the time, and none is a whole period late.
        threads.iter_mut().for_each(|thread| thread.thinks = thread.thinks % (period / 100) + 1);
        let seen = simulate(setting, &mut threads, 40 * period, &|due| due % (period / 8));
        // Own periods begin at other times than the tree's: two of the tree's hold one.
        let ends: Vec<u64> = seen.by_tree.keys().copied().collect();
        for two in ends.windows(2).skip(1).take(ends.len().saturating_sub(3)) {
            prop_assert_eq!(two[0] + 1, two[1]);
            let both: BTreeSet<u32> = seen.progress[&two[0]].union(&seen.progress[&two[1]]).copied().collect();
            let needed = if own { &both } else { &seen.progress[&two[1]] };
            prop_assert_eq!(needed.len() as u32, count);
        }
    }

    #[test]
    fn limits_that_change_hold_at_once_and_lose_nobody(
        limits in prop::collection::vec((1u32..30, 1u32..60), 2..6),
        period in MS..10 * MS,
    ) {
        let memory = Memory::new(64);
        let handler = memory.handler();
        let mut waiting: Vec<(Key, Ticket)> = (0..20).map(|i| (Key::new(500 + i), Ticket::default())).collect();
        let mut now = 0;
        for (task_limit, tree_limit) in limits {
            let setting = Setting { fault_period: period, task_limit, tree_limit, system_limit: 0 };
            memory.limits().set(setting, now);
            for _ in 0..5 {
                let mut handled = 0;
                for (key, ticket) in &mut waiting {
                    let answer = handler.page_fault(*key, now, *ticket);
                    *ticket = if answer.until.is_some() { answer.ticket } else { Ticket::default() };
                    handled += u32::from(answer.until.is_none());
                }
                prop_assert!(handled <= tree_limit, "{handled} in one period of at most {tree_limit}");
                now += period;
            }
        }
        memory.limits().set(Setting::default(), now);
        for (key, ticket) in waiting {
            prop_assert_eq!(handler.page_fault(key, now, ticket).until, None);
        }
    }
}

#[test]
fn threads_of_a_process_that_fault_at_once_keep_to_the_limit() {
    let memory = Memory::new(64);
    let setting = Setting {
        fault_period: MS,
        task_limit: 100,
        tree_limit: 150,
        ..Setting::default()
    };
    memory.limits().set(setting, 0);
    let handled = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (memory, handled) = (&memory, &handled);
            scope.spawn(move || {
                for _ in 0..200 {
                    let key = Key::new(1000 + thread);
                    let answer = memory.handler().page_fault(key, 50 * MS, Ticket::default());
                    handled.fetch_add(u32::from(answer.until.is_none()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(handled.load(Ordering::Relaxed), 150);
}
