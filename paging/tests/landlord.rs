//! A domain whose ledger, and so its limit, a supervisor controls.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use frames::LimitControl;
use selfpage::{Contract, DirectIo, Domain, Ledger, Paged, Physical};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;

#[test]
fn a_domain_keeps_to_a_limit_that_others_move_and_gives_back_what_they_ask_for() {
    let (ledger, books) = Ledger::create_limited(64, 16, 1).unwrap();
    let mut quota = LimitControl::attach(&books).unwrap();
    let view = Ledger::attach(&books).unwrap();
    let domain = Domain::builder()
        .frames(Contract { g: 8, x: 64 })
        .ledger(ledger)
        .store("ram:4M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    let stretch = domain.allocate(200 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let touch = || {
        for page in 0..200 {
            unsafe { stretch.as_ptr().add(page * PAGE).write_volatile(page as u8) };
        }
    };
    touch();
    assert!(view.owned() <= 16, "{}", view.owned());
    quota.raise(40);
    touch();
    assert!((17..=56).contains(&view.owned()), "{}", view.owned());
    view.reclaim_to(10);
    while !view.reclaim_done(10) {
        std::thread::yield_now();
    }
    assert!(view.owned() <= 10);
    for page in 0..200 {
        assert_eq!(
            unsafe { stretch.as_ptr().add(page * PAGE).read_volatile() },
            page as u8
        );
    }
}

/// Longer than a fault that finds the store full tries, where no frame is owed.
const STUCK: Duration = Duration::from_millis(500);

#[test]
fn a_full_store_fails_no_fault_while_guaranteed_frames_are_owed() {
    let (ledger, books) = Ledger::create_limited(1024, 64, 1).unwrap();
    let mut control = LimitControl::attach(&books).unwrap();
    let domain = Domain::builder()
        .frames(Contract { g: 16, x: 1024 })
        .ledger(ledger)
        .store("ram:1M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    let stretch = domain.allocate(1000 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let written = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for page in 0..stretch.pages() {
                let bytes = unsafe {
                    std::slice::from_raw_parts_mut(stretch.as_ptr().add(page * PAGE), PAGE)
                };
                fastrand::Rng::with_seed(page as u64).fill(bytes);
                written.store(page + 1, Ordering::Relaxed);
            }
        });
        // Frames come only to a thread that waits for them.
        let mut seen = usize::MAX;
        while seen < stretch.pages() || written.load(Ordering::Relaxed) < stretch.pages() {
            if written.load(Ordering::Relaxed) == seen {
                control.raise(240);
            }
            seen = written.load(Ordering::Relaxed);
            std::thread::sleep(STUCK);
        }
    });
    for page in 0..stretch.pages() {
        let mut expected = [0; PAGE];
        fastrand::Rng::with_seed(page as u64).fill(&mut expected);
        let found = unsafe { std::slice::from_raw_parts(stretch.as_ptr().add(page * PAGE), PAGE) };
        assert_eq!(found, expected, "page {page}");
    }
}

#[test]
fn two_domains_of_one_ledger_have_frames_of_any_number() {
    let (ledger, descriptor) = Ledger::create(4_000, 4).unwrap();
    let other = Ledger::attach(&descriptor).unwrap();
    let domains =
        [ledger, other].map(|ledger| Domain::builder().frames(64).ledger(ledger).build().unwrap());
    for domain in &domains {
        let stretch = domain.allocate(32 * PAGE).unwrap();
        stretch.bind(Physical).unwrap();
        unsafe { stretch.bytes_mut() }.fill(1);
        assert_eq!(domain.in_use(), 32);
    }
}
