//! Deaths at each step of an operation, played out: `retire` must leave the store as if
//! the operation had either happened or not.

use super::*;
use crate::parts::Parts;
use crate::segment::Segments;
use crate::{SharedStore, Store, StoreConfig};
use std::sync::Arc;

const DEAD: Holder = 1;
const ALIVE: Holder = 2;

fn store(config: &str) -> (SharedStore, Arc<Parts>) {
    let config: StoreConfig = config.parse().unwrap();
    let (store, _fds) = SharedStore::create(&config, 4).unwrap();
    let parts = store.parts();
    (store, parts)
}

/// A filled page that `holders` hold.
fn page(catalogue: &Catalogue, holders: &[Holder]) -> u32 {
    let mut claims = catalogue.claim(holders[0], 0).unwrap();
    let handle = claims.take().unwrap();
    catalogue.unclaim(holders[0], 0, claims);
    catalogue.publish_filled(handle, 7, Checksum(9));
    for &holder in &holders[1..] {
        let note = catalogue.intents.begin(holder, 0);
        catalogue.adopt(holders[0], holder, &note);
    }
    handle
}

/// Notes something as `DEAD` and never clears it.
fn note(catalogue: &Catalogue, intent: Intent) -> Note {
    let note = catalogue.intents.begin(DEAD, 0);
    note.set(intent);
    note
}

fn is_free(catalogue: &Catalogue, handle: u32) -> bool {
    let taken = catalogue.taken[handle as usize / 64].load(Ordering::Acquire);
    catalogue.entries[handle as usize]
        .word
        .load(Ordering::Acquire)
        == 0
        && taken & 1 << (handle % 64) == 0
}

fn die(parts: &Parts, note: Note) {
    std::mem::forget(note);
    assert!(parts.retire(DEAD));
    assert_eq!(parts.catalogue.intents.left_by(DEAD).count(), 0);
    assert_eq!(parts.catalogue.holdings.each(DEAD).count(), 0);
}

#[test]
fn dying_while_claiming_entries_leaves_them_free() {
    let (_store, parts) = store("ram:256K");
    let catalogue = &parts.catalogue;
    let note = note(catalogue, Intent::Claim(0));
    for handle in [5, 9] {
        catalogue.entries[handle]
            .word
            .store(Word::claimed_by(DEAD).0, Ordering::Release);
    }
    // One of the two got as far as the holder's bitmap.
    catalogue.holdings.add(DEAD, 0, 1 << 9);
    die(&parts, note);
    assert!(is_free(catalogue, 5) && is_free(catalogue, 9));
}

#[test]
fn dying_after_freeing_an_entry_leaves_its_mark_cleared() {
    let (_store, parts) = store("ram:256K");
    let catalogue = &parts.catalogue;
    let handle = page(catalogue, &[DEAD]);
    let note = note(catalogue, Intent::Drop(handle));
    catalogue.holdings.remove(DEAD, 0, 1 << handle);
    catalogue.entries[handle as usize]
        .word
        .store(0, Ordering::Release);
    die(&parts, note);
    assert!(is_free(catalogue, handle));
}

#[test]
fn dying_while_dropping_drops_once() {
    for cleared in [false, true] {
        let (store, parts) = store("ram:256K");
        let catalogue = &parts.catalogue;
        let handle = page(catalogue, &[DEAD, ALIVE]);
        let note = note(catalogue, Intent::Drop(handle));
        catalogue.entries[handle as usize]
            .lock(DEAD, &mut || false)
            .unwrap();
        if cleared {
            catalogue.holdings.remove(DEAD, 0, 1 << handle);
        }
        die(&parts, note);
        assert_eq!(store.usage().holds, 1);
        store.discard(ALIVE, &[Handle::new(handle).unwrap()]);
        assert!(is_free(catalogue, handle));
    }
}

#[test]
fn dying_after_dropping_does_not_drop_again() {
    let (store, parts) = store("ram:256K");
    let catalogue = &parts.catalogue;
    let handle = page(catalogue, &[DEAD, ALIVE]);
    let note = note(catalogue, Intent::Drop(handle));
    store.discard(DEAD, &[Handle::new(handle).unwrap()]);
    die(&parts, note);
    assert_eq!(store.usage().holds, 1);
}

#[test]
fn dying_while_adopting_adopts_nothing_twice() {
    for marked in [false, true] {
        let (store, parts) = store("ram:256K");
        let catalogue = &parts.catalogue;
        let handle = page(catalogue, &[ALIVE]);
        let note = note(catalogue, Intent::Adopt(handle / 64));
        catalogue.entries[handle as usize]
            .lock(DEAD, &mut || false)
            .unwrap();
        if marked {
            catalogue.holdings.add(DEAD, 0, 1 << handle);
        }
        die(&parts, note);
        assert_eq!(store.usage().holds, 1);
        store.discard(ALIVE, &[Handle::new(handle).unwrap()]);
        assert!(is_free(catalogue, handle));
    }
}

#[test]
fn an_entry_in_anothers_hands_is_left_for_later() {
    let (store, parts) = store("ram:256K");
    let catalogue = &parts.catalogue;
    let handle = page(catalogue, &[DEAD, ALIVE]);
    let theirs = catalogue.intents.begin(ALIVE, 0);
    theirs.set(Intent::Drop(handle));
    catalogue.entries[handle as usize]
        .lock(ALIVE, &mut || false)
        .unwrap();
    std::mem::forget(theirs);
    assert!(!parts.retire(DEAD));
    assert!(parts.retire(ALIVE));
    assert!(parts.retire(DEAD));
    assert_eq!(store.usage().holds, 0);
    assert!(is_free(catalogue, handle));
}

#[test]
fn dying_while_taking_bloks_gives_them_back() {
    let (store, parts) = store("disk:deaths-swap,size=256K");
    let (catalogue, bloks) = (&parts.catalogue, parts.bloks.as_ref().unwrap());
    let mut claims = catalogue.claim(DEAD, 0).unwrap();
    let note = catalogue.intents.begin(DEAD, 0);
    let run = bloks.reserve(8, None, &note).unwrap();
    // The first is taken, the second only aimed at, the others are only marked.
    for blok in [run.first, run.first + 1] {
        catalogue.aim(claims.take().unwrap(), Spot::Disk { blok }, Checksum(0));
    }
    assert!(bloks.own(run.first, 1));
    die(&parts, note);
    assert_eq!(store.usage().disk_used, 0);
    let note = catalogue.intents.begin(ALIVE, 0);
    assert_eq!(bloks.reserve(64, None, &note).unwrap().count, 64);
}

/// A page in RAM, the segment it is in, and its place.
fn page_in_ram(catalogue: &Catalogue, segments: &Segments, holder: Holder) -> (u32, Spot) {
    let mut claims = catalogue.claim(holder, 0).unwrap();
    let handle = claims.take().unwrap();
    catalogue.unclaim(holder, 0, claims);
    let mut open = segments.open(0, holder).unwrap();
    let spot = segments.append(&mut open, handle, &[1; 100]).unwrap();
    catalogue.aim(handle, spot, Checksum(0));
    catalogue.publish(handle);
    segments.seal(open);
    (handle, spot)
}

#[test]
fn dying_while_moving_a_page_down_leaves_it_in_one_place() {
    for moved in [false, true] {
        let (store, parts) = store("ram:256K+disk:deaths-swap,size=256K");
        let (catalogue, bloks) = (&parts.catalogue, parts.bloks.as_ref().unwrap());
        let (handle, spot) = page_in_ram(catalogue, &parts.segments, ALIVE);
        assert!(parts.segments.claim(0, DEAD));
        let note = catalogue.intents.begin(DEAD, 0);
        let blok = bloks.reserve(1, None, &note).unwrap().first;
        drop(note);
        catalogue
            .intents
            .begin_long(DEAD, Intent::Demote(handle, blok))
            .unwrap();
        assert!(bloks.own(blok, handle));
        if moved {
            assert!(catalogue.relocate(handle, spot, Spot::Disk { blok }));
        }
        assert!(parts.retire(DEAD));
        let usage = store.usage();
        assert_eq!(usage.pages_disk, u64::from(moved));
        assert_eq!(usage.disk_used, u64::from(moved) * 4096);
        assert_eq!(usage.pages_ram, u64::from(!moved));
        assert!(!parts.segments.is_claimed(0));
        assert!(parts.retire(ALIVE));
        assert_eq!((store.usage().ram_used, store.usage().disk_used), (0, 0));
    }
}
