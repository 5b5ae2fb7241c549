//! A domain whose ledger, and so its limit, a supervisor controls.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each stretch is the test's own"
)]

use frames::LimitControl;
use selfpage::{Contract, DirectIo, Domain, Ledger, Paged};

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
