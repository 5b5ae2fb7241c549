//! The limit on compressed RAM changes while pages come and go.

mod common;

use common::system::{System, behind_channels};
use common::{PAGE, Page, Rng, page, read, write, write_one};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{PageHandle, RamResizer, SharedStore, Store};

/// A page that compresses to about a third.
fn packable(seed: u64) -> Page {
    let mut page = page(seed);
    page.0[PAGE / 3..PAGE - 16].fill(0);
    page
}

fn add(store: &SharedStore, seeds: std::ops::Range<u64>) -> Vec<(PageHandle, u64)> {
    let mut channel = store.channel(4).unwrap();
    let pages: Vec<Page> = seeds.clone().map(packable).collect();
    let handles = pages.chunks(32).flat_map(|some| write(&mut *channel, some));
    handles.map(Result::unwrap).zip(seeds).collect()
}

fn check(store: &SharedStore, held: &[(PageHandle, u64)]) {
    let mut channel = store.channel(4).unwrap();
    for &(handle, seed) in held {
        assert!(read(&mut *channel, handle).unwrap() == packable(seed));
    }
}

/// A store with a daemon's disk, and what moves the limit of its RAM.
fn resizable(disk: u64, ram: u64) -> (System, SharedStore, RamResizer) {
    let system = System::new(disk);
    let store = behind_channels(&system, Some(ram), 3);
    store.set_holder(1).unwrap();
    let resizer = store.ram_resizer().unwrap();
    (system, store, resizer)
}

#[test]
fn pages_go_to_disk_until_the_limit_is_raised_and_leave_when_it_is_lowered() {
    let (_system, store, mut resizer) = resizable(16 << 20, 2 << 20);
    let mut held = add(&store, 0..200);
    assert_eq!(store.usage().pages_ram, 0);
    resizer.raise(resizer.segments());
    held.extend(add(&store, 200..600));
    let before = store.usage();
    assert!(before.pages_ram > 300, "{before:?}");
    check(&store, &held);
    // One page each, wherever it is; a channel has claimed up to 64 entries ahead.
    let pages = store.occupancy().pages;
    assert!((600..=600 + 3 * 64).contains(&pages), "{pages}");
    assert_eq!(resizer.lower(10), 10);
    let after = store.usage();
    assert!(after.ram_used <= 10 * before.ram_limit / u64::from(resizer.segments()));
    assert!(after.pages_ram > 0 && after.demoted > 0, "{after:?}");
    check(&store, &held);
    assert_eq!(resizer.lower(0), 0);
    assert_eq!(store.usage().pages_ram, 0);
    check(&store, &held);
    assert_eq!(store.usage().mismatches, 0);
}

#[test]
fn a_segment_that_an_idle_channel_has_open_is_emptied() {
    let (_system, store, mut resizer) = resizable(16 << 20, 1 << 20);
    resizer.raise(20);
    store.set_holder(2).unwrap();
    let mut idle = store.channel(4).unwrap();
    let first = write_one(&mut *idle, &packable(1)).unwrap();
    assert_eq!(resizer.lower(0), 0);
    assert_eq!(read(&mut *idle, first).unwrap().0, packable(1).0);
    resizer.raise(20);
    let second = write_one(&mut *idle, &packable(2)).unwrap();
    assert_eq!(store.usage().pages_ram, 1);
    assert!(read(&mut *idle, second).unwrap() == packable(2));
}

#[test]
fn a_page_on_disk_is_promoted_only_where_there_is_room_and_it_compresses() {
    let (_system, store, mut resizer) = resizable(16 << 20, 1 << 20);
    let mut channel = store.channel(4).unwrap();
    let page = packable(1);
    let on_disk = write_one(&mut *channel, &page).unwrap();
    assert!(!channel.should_promote(on_disk, &page.0));
    resizer.raise(20);
    resizer.sample();
    assert!(channel.should_promote(on_disk, &page.0));
    let in_ram = write_one(&mut *channel, &page).unwrap();
    assert!(!channel.should_promote(in_ram, &page.0));
    let mut noise = Page([0; PAGE]);
    Rng::with_seed(1).fill(&mut noise.0);
    assert!(!channel.should_promote(on_disk, &noise.0));
    resizer.lower(0);
    resizer.sample();
    assert!(!channel.should_promote(on_disk, &page.0));
}

#[test]
fn a_full_disk_keeps_pages_in_segments_above_the_limit() {
    let (_system, store, mut resizer) = resizable(256 << 10, 1 << 20);
    resizer.raise(resizer.segments());
    let held = add(&store, 0..400);
    assert!(resizer.lower(0) > 0);
    check(&store, &held);
    for &(handle, _) in &held {
        store.discard(1, &[handle]);
    }
    assert_eq!(resizer.lower(0), 0);
}

#[test]
fn a_holder_that_dies_with_a_segment_open_does_not_keep_it() {
    let system = System::new(16 << 20);
    let store = behind_channels(&system, Some(1 << 20), 4);
    store.set_holder(1).unwrap();
    let mut resizer = store.ram_resizer().unwrap();
    resizer.raise(20);
    store.set_holder(2).unwrap();
    let mut dies = store.channel(4).unwrap();
    write_one(&mut *dies, &packable(1)).unwrap();
    std::mem::forget(dies);
    assert!(store.retire(2));
    assert_eq!(resizer.lower(0), 0);
    assert_eq!(store.usage().holds, 0);
}

#[test]
fn the_limit_moves_while_many_channels_write() {
    let system = System::new(32 << 20);
    let store = behind_channels(&system, Some(2 << 20), 8);
    store.set_holder(1).unwrap();
    let mut resizer = store.ram_resizer().unwrap();
    store.set_holder(2).unwrap();
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3u64)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || {
                    let mut channel = store.channel(8).unwrap();
                    let mut rng = Rng::with_seed(thread);
                    let mut held: Vec<(PageHandle, u64)> = Vec::new();
                    for round in 0..150u64 {
                        let seeds: Vec<u64> = (0..1 + rng.u64(..40))
                            .map(|at| thread << 40 | round << 8 | at)
                            .collect();
                        let pages: Vec<Page> = seeds.iter().map(|&seed| packable(seed)).collect();
                        let handles = write(&mut *channel, &pages);
                        held.extend(handles.into_iter().map(Result::unwrap).zip(seeds));
                        for _ in 0..20 {
                            let (handle, seed) = held[rng.usize(..held.len())];
                            assert!(read(&mut *channel, handle).unwrap() == packable(seed));
                        }
                        while held.len() > 500 {
                            let (handle, _) = held.swap_remove(rng.usize(..held.len()));
                            store.discard(2, &[handle]);
                        }
                    }
                    for (handle, seed) in held {
                        assert!(read(&mut *channel, handle).unwrap() == packable(seed));
                        store.discard(2, &[handle]);
                    }
                })
            })
            .collect();
        let (store, resizer) = (&store, &mut resizer);
        let mover = scope.spawn(move || {
            let mut rng = Rng::with_seed(99);
            let segment = u64::from(resizer.segment_pages()) * PAGE as u64;
            while !done.load(Ordering::Relaxed) {
                resizer.raise(rng.u32(..=resizer.segments()));
                std::thread::sleep(std::time::Duration::from_millis(2));
                let to = rng.u32(..=resizer.limit());
                let held = resizer.lower(to);
                // A writer may be about to find out that the segment is above the limit.
                assert!(store.occupancy().ram <= u64::from(held + 3) * segment);
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        mover.join().unwrap();
    });
    resizer.lower(0);
    let usage = store.usage();
    assert_eq!((usage.holds, usage.mismatches, usage.disk_used), (0, 0, 0));
    assert_eq!(resizer.lower(0), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn every_page_is_readable_at_any_limit(limits in proptest::collection::vec(0u32..64, 1..12)) {
        let (_system, store, mut resizer) = resizable(16 << 20, 1 << 20);
        let mut held = Vec::new();
        for (at, limit) in (0u64..).zip(limits) {
            if limit > resizer.limit() {
                resizer.raise(limit);
            } else {
                prop_assert_eq!(resizer.lower(limit), limit);
            }
            held.extend(add(&store, at * 100..at * 100 + 100));
            prop_assert!(store.occupancy().ram <= u64::from(limit) * 16 * 1024);
        }
        check(&store, &held);
    }
}
