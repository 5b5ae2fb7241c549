//! Contracts: frames, the store, and clients that share one disk.

use crate::Test;
use crate::common::{Service, mib};
use crate::guest::PAGE;

pub const TESTS: &[Test] = &[
    (
        "a_guest_keeps_within_its_frames",
        a_guest_keeps_within_its_frames,
    ),
    (
        "evictions_under_load_lose_nothing",
        evictions_under_load_lose_nothing,
    ),
    (
        "private_memory_beyond_the_frames_is_refused",
        private_memory_beyond_the_frames_is_refused,
    ),
    (
        "a_full_store_makes_its_guest_wait",
        a_full_store_makes_its_guest_wait,
    ),
];

fn a_guest_keeps_within_its_frames() {
    let (pages, frames) = (mib(32), mib(4));
    let disk = tempfile::tempdir().unwrap();
    for store in [
        "ram:64M".to_owned(),
        format!("disk:{},size=64M", disk.path().display()),
        format!("ram:1M+disk:{},size=64M", disk.path().display()),
    ] {
        let service = Service::start(pages, |config| {
            config.contract = Some((frames, store.parse().unwrap()));
        });
        let mut guest = service.guest("memfd", pages * PAGE);
        for version in 1..=2 {
            guest.run(&format!("write 0 {pages} {version}"));
            assert!(guest.wrong("frames") <= frames, "{store}");
            assert_eq!(
                guest.wrong(&format!("verify 0 {pages} {version}")),
                0,
                "{store}"
            );
            assert!(guest.wrong("frames") <= frames, "{store}");
        }
        let counters = service.counters(1);
        assert!(
            counters.written_pages.get() as usize >= 2 * (pages - frames),
            "{store}"
        );
        // Reads alone: what is stored unchanged is not written again.
        let written = counters.written_pages.get();
        assert_eq!(guest.wrong(&format!("verify 0 {pages} 2")), 0, "{store}");
        assert!(
            counters.written_pages.get() - written <= frames as u64,
            "{store}"
        );
    }
}

fn evictions_under_load_lose_nothing() {
    let (pages, frames) = (mib(16), mib(2));
    let service = Service::start(pages, |config| {
        config.contract = Some((frames, "ram:64M".parse().unwrap()));
    });
    let mut guests: Vec<_> = (0..2)
        .map(|_| service.guest("memfd", pages * PAGE))
        .collect();
    guests
        .iter_mut()
        .for_each(|guest| guest.begin("storm 4 8000"));
    for (number, guest) in guests.iter_mut().enumerate() {
        assert_eq!(guest.finish(), "0");
        let counters = service.counters(number as u64 + 1);
        assert!(counters.evicted_pages.get() > 0);
        assert!(guest.wrong("frames") <= frames);
    }
}

fn private_memory_beyond_the_frames_is_refused() {
    let (pages, frames) = (mib(8), mib(4));
    let service = Service::start(pages, |config| {
        config.contract = Some((frames, "ram:64M".parse().unwrap()));
    });
    let mut guest = service.guest("private", pages * PAGE);
    guest.await_refusal();
    drop(guest);
    // What fits is served, without a store.
    let mut guest = service.guest("private", frames * PAGE);
    assert_eq!(guest.wrong(&format!("verify 0 {frames} 0")), 0);
}

fn a_full_store_makes_its_guest_wait() {
    let (pages, frames) = (mib(16), mib(2));
    let service = Service::start(pages, |config| {
        config.contract = Some((frames, "ram:256K".parse().unwrap()));
    });
    let mut full = service.guest("memfd", pages * PAGE);
    full.begin(&format!("write 0 {pages} 1"));
    let counters = service.counters(1);
    crate::common::await_that("the store is full", || counters.deferred_faults.get() > 10);
    assert!(counters.resident_pages.get() <= frames as u64);
    // Beside it another guest goes on.
    let mut other = service.guest("memfd", pages * PAGE);
    assert_eq!(other.wrong(&format!("verify 0 {pages} 0")), 0);
}
