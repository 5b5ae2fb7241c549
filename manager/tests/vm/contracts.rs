//! Contracts: frames, the store, and clients that share one disk.

use crate::Test;
use crate::common::{Guest, Service, await_that, mib};
use crate::guest::PAGE;
use crate::saves::save_complete;
use manager::page_table::UNIT;

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
        "a_memfd_that_cannot_be_evicted_is_refused",
        a_memfd_that_cannot_be_evicted_is_refused,
    ),
    (
        "a_huge_page_that_a_pipe_holds_keeps_its_contents",
        a_huge_page_that_a_pipe_holds_keeps_its_contents,
    ),
    (
        "pages_before_the_hand_off_take_frames",
        pages_before_the_hand_off_take_frames,
    ),
    (
        "a_guest_that_waits_for_a_frame_ends_though_its_launcher_lives",
        a_guest_that_waits_for_a_frame_ends_though_its_launcher_lives,
    ),
    (
        "a_page_reads_zero_though_it_is_evicted_amid_its_discard",
        a_page_reads_zero_though_it_is_evicted_amid_its_discard,
    ),
    (
        "resident_pages_of_a_discarded_mapping_stay_what_they_are",
        resident_pages_of_a_discarded_mapping_stay_what_they_are,
    ),
    (
        "a_full_store_makes_its_guest_wait",
        a_full_store_makes_its_guest_wait,
    ),
    (
        "a_slow_store_delays_its_own_client_only",
        a_slow_store_delays_its_own_client_only,
    ),
    (
        "a_lost_page_fails_at_its_access",
        a_lost_page_fails_at_its_access,
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

/// A guest whose first unit has other contents than the snapshot's, and is in its frames.
fn written_guest(unit: usize) -> (Service, Guest) {
    let pages = mib(16);
    let service = Service::start(pages, |config| {
        config.contract = Some((mib(2), "ram:64M".parse().unwrap()));
    });
    let mut guest = service.guest("memfd", pages * PAGE);
    guest.run(&format!("write 0 {unit} 1"));
    (service, guest)
}

fn a_page_reads_zero_though_it_is_evicted_amid_its_discard() {
    let (service, mut guest) = written_guest(UNIT);
    assert_eq!(guest.wrong(&format!("discard_late {UNIT}")), 0);
    assert!(service.counters(1).evicted_pages.get() > 0);
    let others = UNIT - 1;
    assert_eq!(guest.wrong(&format!("verify 1 {others} 1")), 0);
}

fn resident_pages_of_a_discarded_mapping_stay_what_they_are() {
    let (service, mut guest) = written_guest(UNIT);
    guest.run(&format!("unmap 0 {UNIT}"));
    let rest = mib(16) - UNIT;
    assert_eq!(guest.wrong(&format!("verify {UNIT} {rest} 0")), 0);
    assert!(service.counters(1).evicted_pages.get() > 0);
    assert_eq!(guest.wrong(&format!("verify 0 {UNIT} 1")), 0);
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
    await_that("the store is full", || counters.deferred_faults.get() > 10);
    assert!(counters.resident_pages.get() <= frames as u64);
    let folder = tempfile::tempdir().unwrap();
    save_complete(&service, &folder.path().join("saved"), || ());
    // Beside it another guest goes on.
    let mut other = service.guest("memfd", pages * PAGE);
    assert_eq!(other.wrong(&format!("verify 0 {pages} 0")), 0);
}

fn a_slow_store_delays_its_own_client_only() {
    let (pages, frames) = (mib(16), mib(2));
    let disk = tempfile::tempdir().unwrap();
    let store = format!("disk:{},size=32M,slow=1000000us", disk.path().display());
    let service = Service::start(pages, |config| {
        config.contract = Some((frames, store.parse().unwrap()));
    });
    let mut slow = service.guest("memfd", pages * PAGE);
    slow.begin(&format!("write 0 {pages} 1"));
    let counters = service.counters(1);
    await_that("the first client waits for its disk", || {
        counters.resident_pages.get() as usize > frames / 2
    });
    // Its memory is within its frames.
    let mut quick = service.guest("memfd", frames * PAGE);
    assert_eq!(quick.wrong(&format!("verify 0 {frames} 0")), 0);
    let written = counters.written_pages.get() as usize;
    assert!(
        written < pages - frames,
        "the first client has finished, too"
    );
}

fn a_lost_page_fails_at_its_access() {
    let (pages, frames) = (mib(16), mib(2));
    let disk = tempfile::tempdir().unwrap();
    let store = format!("disk:{},size=32M,fail=flip@100", disk.path().display());
    let service = Service::start(pages, |config| {
        config.contract = Some((frames, store.parse().unwrap()));
    });
    let mut guest = service.guest("memfd", pages * PAGE);
    let counters = service.counters(1);
    guest.run(&format!("write 0 {pages} 1"));
    // The store returns wrong bytes: the guest is killed at the access, and never reads them.
    guest.begin(&format!("verify 0 {pages} 1"));
    assert_eq!(guest.finish(), "");
    assert_eq!(guest.signal(), Some(libc::SIGBUS));
    assert!(counters.lost_pages.get() > 0);
}

fn a_memfd_that_cannot_be_evicted_is_refused() {
    let pages = mib(2);
    let service = Service::start(pages, |config| {
        config.contract = Some((mib(1), "ram:4M".parse().unwrap()));
    });
    for kind in ["read-only", "sealed"] {
        service.guest(kind, pages * PAGE).await_refusal();
        // Nothing of it is evicted.
        let mut small = service.guest(kind, mib(1) * PAGE);
        assert_eq!(small.wrong(&format!("verify 0 {} 0", mib(1))), 0, "{kind}");
    }
}

/// A hole clears a part of it in place.
fn a_huge_page_that_a_pipe_holds_keeps_its_contents() {
    let pages = mib(16);
    let service = Service::start(pages, |config| {
        config.contract = Some((mib(4), "ram:64M".parse().unwrap()));
    });
    let mut guest = service.guest("memfd", pages * PAGE);
    guest.run("write 0 512 1");
    guest.run("collapse");
    guest.run(&format!("write 512 {} 1", pages - 512));
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 1")), 0);
}

fn pages_before_the_hand_off_take_frames() {
    let pages = mib(2);
    let service = Service::start(pages, |config| {
        config.contract = Some((mib(1), "ram:4M".parse().unwrap()));
    });
    let mut guest = service.guest("loaded-memfd", pages * PAGE);
    let loaded = crate::guest::kind::LOADED;
    let rest = format!("{loaded} {}", pages - loaded);
    assert_eq!(guest.wrong(&format!("verify {rest} 0")), 0);
    assert!(guest.wrong("frames") <= mib(1));
    assert_eq!(guest.wrong(&format!("verify 0 {loaded} 1")), 0);
}

fn a_guest_that_waits_for_a_frame_ends_though_its_launcher_lives() {
    let pages = mib(16);
    let service = Service::start(pages, |config| {
        config.contract = Some((mib(1), "ram:1M".parse().unwrap()));
    });
    let mut guest = service.guest("launched-memfd", pages * PAGE);
    guest.begin(&format!("write 0 {pages} 1"));
    await_that("it waits for a frame", || {
        service.counters(1).deferred_faults.get() > 3
    });
    guest.kill();
    service.await_no_clients();
}
