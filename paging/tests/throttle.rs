//! Faults past their limit wait, and nothing else does.

use selfpage::{Counter, Domain, EntryKind, FaultLimits, Paged, Stretch};
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
const MS: u64 = 1_000_000;
const KINDS: [EntryKind; 2] = [EntryKind::Upcall, EntryKind::Thread];

/// One fault of each thread in ten seconds: a thread past that sleeps until the limit is lifted.
const STANDSTILL: FaultLimits = FaultLimits {
    fault_period: 10_000 * MS,
    task_limit: 1,
    tree_limit: 0,
    system_limit: 0,
};

fn domain(entry: EntryKind, frames: u32, setting: FaultLimits) -> Option<Domain> {
    let made = Domain::builder()
        .frames(frames)
        .store("ram:64M".parse().unwrap())
        .entry(entry)
        .fault_rate(setting)
        .build();
    match made {
        Err(why) if entry == EntryKind::Thread => {
            eprintln!("SKIPPED for handler threads: {why}");
            None
        }
        made => Some(made.unwrap()),
    }
}

fn stretch(domain: &Domain, pages: usize) -> Stretch {
    let stretch = domain.allocate(pages * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    stretch
}

fn write(stretch: &Stretch, page: usize, value: u8) {
    // SAFETY: each page is one thread's at a time.
    unsafe {
        (stretch.base() as *mut u8)
            .add(page * PAGE)
            .write_volatile(value)
    };
}

fn read(stretch: &Stretch, page: usize) -> u8 {
    // SAFETY: as above.
    unsafe {
        (stretch.base() as *const u8)
            .add(page * PAGE)
            .read_volatile()
    }
}

fn counter(domain: &Domain, counter: Counter) -> u64 {
    domain.counters().get(counter)
}

#[test]
fn no_period_has_more_faults_than_the_limit_and_every_page_comes() {
    const PAGES: usize = 600;
    for kind in KINDS {
        let setting = FaultLimits {
            fault_period: 5 * MS,
            task_limit: 20,
            tree_limit: 30,
            system_limit: 30,
        };
        let Some(domain) = domain(kind, 256, setting) else {
            continue;
        };
        let stretch = stretch(&domain, PAGES);
        std::thread::scope(|scope| {
            for half in 0..2 {
                let stretch = &stretch;
                scope.spawn(move || {
                    // In order in one, so that there are windows; from place to place in the other.
                    let step = if half == 0 { 1 } else { 7 };
                    for i in 0..PAGES / 2 {
                        let page = half * PAGES / 2 + i * step % (PAGES / 2);
                        write(stretch, page, page as u8 | 1);
                    }
                });
            }
        });
        // Windows and the limits of both threads together: at least so many periods.
        assert!(counter(&domain, Counter::ThrottledFaults) >= (PAGES / 30 / 2) as u64);
        assert!(counter(&domain, Counter::ThrottledUs) > 0);
        assert!((1..=20).contains(&counter(&domain, Counter::PeakTaskFaults)));
        assert!((1..=30).contains(&counter(&domain, Counter::PeakTreeFaults)));
        assert!(counter(&domain, Counter::SwapperCalls) > 0, "{kind:?}");
        domain.set_fault_rate(FaultLimits::default());
        for page in 0..PAGES {
            assert_eq!(read(&stretch, page), page as u8 | 1);
        }
    }
}

#[test]
fn while_one_thread_sleeps_in_its_fault_others_go_on_and_gates_close() {
    for kind in KINDS {
        let (Some(throttled), Some(free)) = (
            domain(kind, 128, STANDSTILL),
            domain(kind, 128, FaultLimits::default()),
        ) else {
            continue;
        };
        let (ours, others) = (stretch(&throttled, 64), stretch(&free, 512));
        let written = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The first is within the limit; the second sleeps.
                for page in [0, 32] {
                    write(&ours, page, 7);
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
            while counter(&throttled, Counter::ThrottledFaults) == 0 {
                std::thread::yield_now();
            }
            // Another thread of the same domain has a limit of its own.
            scope.spawn(|| write(&ours, 48, 9)).join().unwrap();
            // Another domain has none.
            (0..512).for_each(|page| write(&others, page, 1));
            // Closing the domain's gate does not wait for threads that sleep.
            drop(throttled.allocate(PAGE).unwrap());
            drop(free);
            assert_eq!(written.load(Ordering::SeqCst), 1, "it sleeps still");
            // SharedLimits that are lifted wake the threads that sleep by them.
            throttled.set_fault_rate(FaultLimits::default());
        });
        assert_eq!(written.load(Ordering::SeqCst), 2);
        assert_eq!((read(&ours, 32), read(&ours, 48)), (7, 9));
        assert_eq!(
            counter(&throttled, Counter::ThrottledFaults),
            1,
            "once, however often it was judged"
        );
        assert_eq!(counter(&throttled, Counter::PeakTaskFaults), 1);
    }
}

#[test]
fn what_is_prefetched_counts_and_its_thread_ends_though_it_sleeps() {
    let domain = domain(EntryKind::Upcall, 256, STANDSTILL).unwrap();
    let stretch = stretch(&domain, 128);
    stretch.prefetch(0..128 * PAGE).unwrap();
    while counter(&domain, Counter::ThrottledFaults) == 0 {
        std::thread::yield_now();
    }
    let zeros = counter(&domain, Counter::ZeroFilled) + counter(&domain, Counter::Prefetched);
    assert_eq!(zeros, 1, "one page in this period");
    drop(stretch);
    drop(domain);
}

#[test]
fn without_limits_nothing_is_counted_or_measured() {
    let domain = domain(EntryKind::Upcall, 256, FaultLimits::default()).unwrap();
    let stretch = stretch(&domain, 512);
    (0..512).for_each(|page| write(&stretch, page, 1));
    for none in [
        Counter::ThrottledFaults,
        Counter::ReadaheadTrimmed,
        Counter::PeakTaskFaults,
        Counter::PeakTreeFaults,
        Counter::SwapperCalls,
    ] {
        assert_eq!(counter(&domain, none), 0, "{}", none.key());
    }
    assert_eq!(domain.limits().units().samples(), 0);
}

#[test]
fn what_faults_cost_is_measured_where_there_is_a_limit() {
    for kind in KINDS {
        let setting = FaultLimits {
            fault_period: 10 * MS,
            system_limit: 1 << 19,
            ..FaultLimits::default()
        };
        let Some(domain) = domain(kind, 128, setting) else {
            continue;
        };
        let stretch = stretch(&domain, 2048);
        // Each page once, in no order that a stream is made of.
        for i in 0..20_480 {
            write(&stretch, i * 769 % 2048, i as u8);
        }
        let units = domain.limits().units();
        assert!(units.samples() > 20, "{kind:?}: {}", units.samples());
        assert!(units.fault_unit() > 0);
        assert!(units.of(rate::FaultClass::Compressed) > 0);
        assert_eq!(units.of(rate::FaultClass::Disk), 0);
        assert_eq!(counter(&domain, Counter::ThrottledFaults), 0);
    }
}
