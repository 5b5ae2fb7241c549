//! A ledger whose limit another process moves, and its pressure signal.

mod common;

use common::{admit, audit, limited, take};
use frames::{Contract, Ledger, LimitControl, LimitControlError, State};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

fn bell() -> (OwnedFd, OwnedFd) {
    let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    (fd.try_clone().unwrap(), fd)
}

/// How often the eventfd was rung since it was last read.
fn rung(bell: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(bell, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

#[test]
fn no_more_is_owned_than_the_limit_until_it_is_raised() {
    let (ledger, mut control) = limited(100, 30);
    let client = admit(&ledger, 4, 100);
    assert_eq!(take(&client, 100).len(), 30);
    assert_eq!((client.resident_limit(), ledger.owned()), (30, 30));
    assert_eq!(control.raise(20), 20);
    assert_eq!(client.resident_limit(), 50);
    assert_eq!(take(&client, 100).len(), 20);
    assert_eq!(control.raise(1000), 50, "never above the total");
    let last = take(&client, 100);
    client.put_batch(&last).unwrap();
    client.release(100);
    assert_eq!(
        (last.len(), ledger.owned(), ledger.peak_owned()),
        (50, 50, 100),
        "the peak is kept"
    );
    audit(&ledger);
}

#[test]
fn frames_that_are_not_owned_are_taken_without_the_trees_help() {
    let (ledger, mut control) = limited(100, 80);
    let client = admit(&ledger, 10, 100);
    let frames = take(&client, 50);
    assert_eq!(
        (control.limit(), control.owned(), control.committed()),
        (80, 50, 50)
    );
    assert_eq!(control.take_unused(10), 10);
    assert_eq!(control.take_unused(100), 20, "not the owned ones");
    assert_eq!((control.limit(), ledger.limit()), (50, 50));
    assert_eq!(client.take(), None);
    client.put_batch(&frames[..45]).unwrap();
    client.release(45);
    assert_eq!(
        control.take_unused(100),
        40,
        "nor those guaranteed to a domain"
    );
    audit(&ledger);
}

#[test]
fn within_a_full_limit_unused_frames_still_change_hands() {
    let (ledger, _quota) = limited(100, 20);
    let idle = admit(&ledger, 2, 100);
    let frames = take(&idle, 20);
    idle.put_batch(&frames[..10]).unwrap();
    let busy = admit(&ledger, 0, 100);
    let held = take(&busy, 100);
    assert_eq!(held.len(), 10);
    let late = admit(&ledger, 8, 8);
    assert_eq!(late.take(), None, "refused for now, although guaranteed");
    assert_eq!(ledger.demand(late.id(), 8), 8);
    busy.put_batch(&held[..8]).unwrap();
    assert_eq!(busy.release_demanded(busy.demanded()), 8);
    assert_eq!(take(&late, 8).len(), 8);
    assert_eq!((ledger.owned(), ledger.limit()), (20, 20));
    audit(&ledger);
}

#[test]
fn guarantees_are_admitted_up_to_the_tenants_own_guarantee() {
    let (ledger, _quota) = limited(100, 10);
    ledger.set_max_guaranteed(30);
    admit(&ledger, 20, 100);
    let refusal = ledger.admit(Contract { g: 11, x: 50 });
    assert!(refusal.unwrap_err().to_string().contains("20 of 30 frames"));
}

#[test]
fn pressure_rings_once_until_it_is_acknowledged() {
    let (ledger, mut control) = limited(160, 60);
    let (mine, theirs) = bell();
    ledger.set_bell(theirs);
    let client = admit(&ledger, 4, 160);
    take(&client, 49);
    assert_eq!((rung(&mine), control.is_under_pressure()), (0, false));
    client.take();
    assert_eq!(
        (rung(&mine), control.is_under_pressure()),
        (1, true),
        "ten frames are a sixteenth"
    );
    assert_eq!(take(&client, 100).len(), 10);
    assert_eq!(rung(&mine), 0, "already signalled");
    control.acknowledge_pressure();
    assert_eq!(client.take(), None);
    assert_eq!(rung(&mine), 1);
    let (other, others) = bell();
    ledger.set_bell(others);
    control.raise(100);
    assert!(!control.is_under_pressure());
    assert_eq!(take(&client, 200).len(), 100);
    assert_eq!(rung(&other) + rung(&mine), 0, "the limit is the total");
    control.take_unused(0);
    audit(&ledger);
}

#[test]
fn frames_are_owed_until_the_limit_is_the_guarantee() {
    let (ledger, mut control) = limited(100, 10);
    let (mine, theirs) = bell();
    ledger.set_bell(theirs);
    ledger.set_max_guaranteed(30);
    let client = admit(&ledger, 4, 100);
    take(&client, 10);
    assert!(client.request_guaranteed());
    control.acknowledge_pressure();
    rung(&mine);
    assert!(client.request_guaranteed());
    assert_eq!(rung(&mine), 1, "requested again");
    control.raise(19);
    assert!(client.request_guaranteed());
    assert!(
        !admit(&ledger, 0, 29).request_guaranteed(),
        "within its own contract"
    );
    control.raise(1);
    assert!(!client.request_guaranteed());
}

#[test]
fn a_second_eventfd_replaces_the_first() {
    let (ledger, _quota) = limited(160, 5);
    let ((first, one), (second, other)) = (bell(), bell());
    ledger.set_bell(one);
    ledger.set_bell(other);
    take(&admit(&ledger, 4, 160), 5);
    assert_eq!((rung(&first), rung(&second)), (0, 1));
}

#[test]
fn nothing_is_wanted_when_no_domain_waits() {
    let (ledger, control) = limited(100, 40);
    let domains = [(); 4].map(|()| admit(&ledger, 0, 100));
    std::thread::scope(|scope| {
        for domain in &domains {
            let (ledger, id) = (&ledger, domain.id());
            scope.spawn(move || {
                for _ in 0..20_000 {
                    ledger.demand(id, 1);
                    ledger.demand(id, 0);
                }
            });
        }
    });
    assert_eq!(control.wanted(), 0);
}

#[test]
fn a_waiter_is_woken_when_the_limit_is_raised() {
    let (ledger, mut control) = limited(100, 4);
    let ledger = &ledger;
    let client = admit(ledger, 0, 100);
    take(&client, 4);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            loop {
                let seq = ledger.freed_seq();
                match client.take() {
                    Some(frame) => break frame,
                    None => ledger.wait_freed(seq, Some(Duration::from_secs(20))),
                }
            }
        });
        while !control.is_under_pressure() {
            std::thread::yield_now();
        }
        control.raise(1);
        waiting.join().unwrap();
    });
}

#[test]
fn a_descriptor_of_no_sealed_ledger_is_refused_with_the_reason() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(matches!(
        LimitControl::attach(&file),
        Err(LimitControlError::NotAMemfd)
    ));
    let memfd = |length: u64, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("selfpage-test", flags).unwrap();
        ftruncate(&fd, length).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        LimitControl::attach(fd)
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    };
    assert!(memfd(1 << 20, SealFlags::GROW).contains("F_SEAL_SHRINK"));
    assert!(memfd(1 << 20, SealFlags::SHRINK).contains("F_SEAL_GROW"));
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    assert!(memfd(100, sealed).contains("100 bytes"));
    assert!(memfd(1 << 20, sealed).contains("not a frames ledger"));
}

proptest! {
    /// Whatever a tenant writes into its ledger, the allocator's values stay within bounds.
    #[test]
    fn no_write_of_a_tenant_moves_the_limit_that_counts(
        words in prop::collection::vec((0usize..32, any::<u32>()), 1..60),
        steps in prop::collection::vec((any::<bool>(), 0u32..200), 1..60),
    ) {
        let (_ledger, fd) = Ledger::create_limited(100, 40, 2).unwrap();
        let hostile = wired::WiredMemory::attach(&fd, wired::PAGE).unwrap();
        let mut control = LimitControl::attach(&fd).unwrap();
        let mut limit = 40;
        for ((word, value), (raise, k)) in words.into_iter().zip(steps) {
            hostile.slice::<std::sync::atomic::AtomicU32>(word * 4, 1)[0].store(value, SeqCst);
            limit = if raise { limit + control.raise(k) } else { limit - control.take_unused(k) };
            prop_assert_eq!(control.limit(), limit);
            prop_assert!(limit <= 100);
            prop_assert!(control.owned() <= control.committed() && control.committed() <= limit);
            prop_assert!(control.wanted() <= 100 - limit);
        }
    }

    #[test]
    fn owned_stays_within_the_limit_after_any_sequence_of_requests(
        steps in prop::collection::vec((0u8..8, 0usize..3, 0u32..40), 1..200),
    ) {
        let (ledger, mut control) = limited(120, 40);
        let mut clients = [(5, 120), (20, 60), (0, 120)]
            .map(|(g, x)| (admit(&ledger, g, x), Vec::new()));
        for (what, which, k) in steps {
            let (client, frames) = &mut clients[which];
            match what {
                0..=2 => frames.extend(take(client, k)),
                3 => {
                    let some = (k as usize).min(frames.len());
                    client.put_batch(&frames.split_off(frames.len() - some)).unwrap();
                    client.release(k / 2);
                }
                4 => {
                    let asked = client.demanded().min(frames.len() as u32);
                    client.put_batch(&frames.split_off(frames.len() - asked as usize)).unwrap();
                    client.release_demanded(asked);
                }
                5 => { control.raise(k); }
                6 => { control.take_unused(k); }
                _ => {
                    ledger.reclaim_to(k * 4);
                    ledger.demand(client.id(), k);
                }
            }
            prop_assert_eq!(ledger.limit(), control.limit());
            prop_assert_eq!(ledger.owned(), control.owned());
            audit(&ledger);
        }
    }
}

#[test]
fn a_constantly_moving_limit_is_never_exceeded_and_no_frame_is_lost() {
    let (ledger, mut control) = limited(500, 100);
    let (ledger, stop) = (&ledger, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        for g in [0, 20, 50] {
            let client = admit(ledger, g, 500);
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    let frames = take(&client, 300);
                    client.put_batch(&frames).unwrap();
                    client.release(100);
                }
            });
        }
        for round in 0..20_000u32 {
            match round % 3 {
                0 => control.raise(1 + round % 97),
                _ => control.take_unused(1 + round % 89),
            };
            assert!(ledger.owned() <= control.limit(), "at any moment");
        }
        stop.store(true, SeqCst);
    });
    audit(ledger);
    control.raise(500);
    let owned: u32 = ledger.all_stats().map(|view| view.n).sum();
    let more = admit(ledger, 0, 500);
    let unused: u32 = ledger
        .all_stats()
        .map(|v| v.n.saturating_sub(v.contract.g))
        .sum();
    let spare = 500 - ledger.committed() + unused;
    assert_eq!(take(&more, 500).len() as u32, spare, "{owned} were owned");
}

#[test]
fn a_guarantee_covers_what_is_locked_and_an_eighth_for_other_pages() {
    let (ledger, quota) = limited(100, 80);
    let client = admit(&ledger, 4, 100);
    assert_eq!((quota.least_guarantee(), quota.fixed()), (4, 4));
    let locked = take(&client, 35);
    for frame in &locked {
        client.mark(*frame, State::Nailed).unwrap();
    }
    assert_eq!((quota.nailed(), quota.fixed()), (35, 39));
    assert_eq!(quota.least_guarantee(), 40);
    ledger.set_max_guaranteed(40);
    assert_eq!(ledger.room_to_nail(4), 0);
    client.put_batch(&locked).unwrap();
    client.note_locked(u32::MAX);
    assert_eq!(
        (quota.nailed(), quota.fixed()),
        (80, 80),
        "a lie counts for no more"
    );
    ledger.retire(client.id());
    assert_eq!(quota.least_guarantee(), 0);
}
