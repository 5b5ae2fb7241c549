//! Simulates a crash at each step of an operation: `retire` must leave the store as if the
//! operation had happened or not.

use super::*;
use crate::inner::StoreInner;
use crate::segment::SegmentTable;
use crate::{SharedStore, Store, StoreConfig};
use std::sync::Arc;

const DEAD: HolderId = 1;
const ALIVE: HolderId = 2;

fn store(config: &str) -> (SharedStore, Arc<StoreInner>) {
    let config: StoreConfig = config.parse().unwrap();
    let (store, _fds) = SharedStore::create(&config, 4).unwrap();
    let inner = store.inner();
    (store, inner)
}

/// A filled page that `holders` hold.
fn page(page_index: &PageIndex, holders: &[HolderId]) -> u32 {
    let mut claims = page_index.claim(holders[0], 0).unwrap();
    let handle = claims.take().unwrap();
    page_index.unclaim(holders[0], 0, claims);
    page_index.publish_filled(handle, 7, Checksum(9));
    for &holder in &holders[1..] {
        let note = page_index.intents.begin(holder, 0);
        page_index.adopt(holders[0], holder, &note);
    }
    handle
}

/// Records an intent of `DEAD` and never clears it.
fn note(page_index: &PageIndex, intent: Intent) -> IntentGuard {
    let note = page_index.intents.begin(DEAD, 0);
    note.set(intent);
    note
}

fn is_free(page_index: &PageIndex, handle: u32) -> bool {
    let taken = page_index.taken[handle as usize / 64].load(Ordering::Acquire);
    page_index.entries[handle as usize].word().is_free() && taken & 1 << (handle % 64) == 0
}

fn die(inner: &StoreInner, note: IntentGuard) {
    std::mem::forget(note);
    assert!(inner.retire(DEAD, false));
    assert_eq!(inner.page_index.intents.left_by(DEAD).count(), 0);
    assert_eq!(inner.page_index.refs.each(DEAD).count(), 0);
}

/// The same, where `ALIVE` alone still holds a page, and drops it then.
fn die_beside_a_holder(store: &SharedStore, inner: &StoreInner, note: IntentGuard, handle: u32) {
    die(inner, note);
    assert_eq!(store.usage().holds, 1);
    store.discard(ALIVE, &[PageHandle::new(handle).unwrap()]);
    assert!(is_free(&inner.page_index, handle));
}

#[test]
fn dying_while_claiming_entries_leaves_them_free() {
    let (_store, inner) = store("ram:256K");
    let page_index = &inner.page_index;
    let note = note(page_index, Intent::Claim(0));
    for handle in [5, 9] {
        assert!(page_index.entries[handle].claim(DEAD));
    }
    // One of the two entries reached the holder's bitmap.
    page_index.refs.add(DEAD, 0, 1 << 9);
    die(&inner, note);
    assert!(is_free(page_index, 5) && is_free(page_index, 9));
}

#[test]
fn dying_after_freeing_an_entry_leaves_its_mark_cleared() {
    let (_store, inner) = store("ram:256K");
    let page_index = &inner.page_index;
    let handle = page(page_index, &[DEAD]);
    let note = note(page_index, Intent::Drop(handle));
    page_index.refs.remove(DEAD, handle);
    page_index.entries[handle as usize].free();
    die(&inner, note);
    assert!(is_free(page_index, handle));
}

#[test]
fn dying_while_dropping_drops_once() {
    for is_counted in [true, false] {
        let (store, inner) = store("ram:256K");
        let page_index = &inner.page_index;
        let handle = page(page_index, &[DEAD, ALIVE]);
        let note = note(page_index, Intent::Drop(handle));
        if !is_counted {
            drop_counted(page_index, handle);
        }
        die_beside_a_holder(&store, &inner, note, handle);
    }
}

/// `DEAD` drops a hold, up to its bit.
fn drop_counted(page_index: &PageIndex, handle: u32) {
    let dropped = page_index.entries[handle as usize].drop_holder(DEAD, &mut || false);
    assert!(matches!(dropped, Some(HolderDropped::Counted)));
}

#[test]
fn dying_while_dropping_the_last_hold_frees_the_page() {
    for is_removed in [false, true] {
        let (_store, inner) = store("ram:256K");
        let page_index = &inner.page_index;
        let handle = page(page_index, &[DEAD]);
        let note = note(page_index, Intent::Drop(handle));
        let dropped = page_index.entries[handle as usize].drop_holder(DEAD, &mut || false);
        assert!(matches!(dropped, Some(HolderDropped::Last(_))));
        if is_removed {
            page_index.refs.remove(DEAD, handle);
        }
        die(&inner, note);
        assert!(is_free(page_index, handle));
    }
}

#[test]
fn a_process_that_is_stopped_while_it_drops_a_hold_keeps_no_other_from_the_page() {
    let (store, inner) = store("ram:256K");
    let page_index = &inner.page_index;
    let handle = page(page_index, &[ALIVE, DEAD, 3]);
    let note = note(page_index, Intent::Drop(handle));
    drop_counted(page_index, handle);
    store.discard(ALIVE, &[PageHandle::new(handle).unwrap()]);
    store.discard(3, &[PageHandle::new(handle).unwrap()]);
    assert!(is_free(page_index, handle));
    // The stopped process's other threads do not take the entry: its bit is still to be cleared.
    let claims = page_index.claim(DEAD, 0).unwrap();
    assert_eq!((claims.group, claims.mask & 1 << handle), (0, 0));
    page_index.unclaim(DEAD, 0, claims);
    // Another process's new page there is no page of the stopped one's, which is killed.
    assert!(page_index.entries[handle as usize].claim(ALIVE));
    page_index.refs.add(ALIVE, 0, 1 << handle);
    page_index.taken[0].fetch_or(1 << handle, Ordering::AcqRel);
    page_index.publish_filled(handle, 8, Checksum(9));
    die_beside_a_holder(&store, &inner, note, handle);
}

#[test]
fn dying_after_dropping_does_not_drop_again() {
    let (store, inner) = store("ram:256K");
    let page_index = &inner.page_index;
    let handle = page(page_index, &[DEAD, ALIVE]);
    let note = note(page_index, Intent::Drop(handle));
    store.discard(DEAD, &[PageHandle::new(handle).unwrap()]);
    die(&inner, note);
    assert_eq!(store.usage().holds, 1);
}

#[test]
fn dying_while_adopting_adopts_nothing_twice() {
    for is_counted in [false, true] {
        let (store, inner) = store("ram:256K");
        let page_index = &inner.page_index;
        let handle = page(page_index, &[ALIVE]);
        let note = note(page_index, Intent::Adopt(handle / 64));
        page_index.refs.add(DEAD, 0, 1 << handle);
        if is_counted {
            page_index.entries[handle as usize].add_holder().unwrap();
        }
        die_beside_a_holder(&store, &inner, note, handle);
    }
}

#[test]
fn recovery_from_an_adoption_that_dies_itself_is_begun_again() {
    for is_removed in [false, true] {
        let (store, inner) = store("ram:256K");
        let page_index = &inner.page_index;
        let handle = page(page_index, &[ALIVE]);
        let note = note(page_index, Intent::Adopt(handle / 64));
        let entry = &page_index.entries[handle as usize];
        page_index.refs.add(DEAD, 0, 1 << handle);
        entry.add_holder().unwrap();
        entry.lock(DEAD, &mut || false).unwrap();
        if is_removed {
            page_index.refs.remove(DEAD, handle);
        }
        die_beside_a_holder(&store, &inner, note, handle);
    }
}

#[test]
fn a_process_that_is_stopped_while_it_adopts_keeps_no_other_from_its_pages() {
    let (store, inner) = store("ram:256K");
    let page_index = &inner.page_index;
    let handle = page(page_index, &[ALIVE, 3]);
    let _note = note(page_index, Intent::Adopt(handle / 64));
    page_index.refs.add(DEAD, 0, 1 << handle);
    store.discard(3, &[PageHandle::new(handle).unwrap()]);
    page_index.entries[handle as usize].add_holder().unwrap();
    store.discard(ALIVE, &[PageHandle::new(handle).unwrap()]);
    assert!(!is_free(page_index, handle));
    store.discard(DEAD, &[PageHandle::new(handle).unwrap()]);
    assert!(is_free(page_index, handle));
}

#[test]
fn an_entry_locked_by_another_process_is_left_for_later() {
    let (store, inner) = store("ram:256K");
    let page_index = &inner.page_index;
    let handle = page(page_index, &[DEAD, ALIVE]);
    let theirs = page_index.intents.begin(ALIVE, 0);
    theirs.set(Intent::Drop(handle));
    page_index.entries[handle as usize]
        .lock(ALIVE, &mut || false)
        .unwrap();
    std::mem::forget(theirs);
    assert!(!inner.retire(DEAD, false));
    assert!(inner.retire(ALIVE, false));
    assert!(inner.retire(DEAD, false));
    assert_eq!(store.usage().holds, 0);
    assert!(is_free(page_index, handle));
}

#[test]
fn dying_while_freeing_a_blok_leaves_no_mark() {
    let (_store, inner) = store("disk:deaths-swap,size=256K");
    let (page_index, bloks) = (&inner.page_index, inner.bloks.as_ref().unwrap());
    let note = note(page_index, Intent::Idle);
    let mut claims = page_index.claim(DEAD, 0).unwrap();
    let handle = claims.take().unwrap();
    page_index.unclaim(DEAD, 0, claims);
    let blok = bloks.reserve(1, None, &note).unwrap().first;
    assert!(bloks.try_assign(blok, handle));
    page_index.set_location(handle, Location::Disk { blok }, Checksum(0));
    page_index.publish(handle);
    note.set(Intent::Drop(handle));
    let dropped = page_index.entries[handle as usize].drop_holder(DEAD, &mut || false);
    assert!(matches!(dropped, Some(HolderDropped::Last(_))));
    page_index.refs.remove(DEAD, handle);
    // Without an owner, and marked.
    bloks.free(blok, handle);
    assert_eq!(bloks.reserve(1, None, &note).unwrap().first, blok);
    note.set(Intent::Drop(handle));
    die(&inner, note);
    assert!(is_free(page_index, handle));
    assert_eq!(bloks.used(), 0);
}

#[test]
fn dying_while_taking_bloks_frees_them() {
    let (store, inner) = store("disk:deaths-swap,size=256K");
    let (page_index, bloks) = (&inner.page_index, inner.bloks.as_ref().unwrap());
    let mut claims = page_index.claim(DEAD, 0).unwrap();
    let note = page_index.intents.begin(DEAD, 0);
    let run = bloks.reserve(8, None, &note).unwrap();
    // The first is assigned, the second only located, the others only marked.
    for blok in [run.first, run.first + 1] {
        page_index.set_location(claims.take().unwrap(), Location::Disk { blok }, Checksum(0));
    }
    assert!(bloks.try_assign(run.first, 1));
    die(&inner, note);
    assert_eq!(store.usage().disk_used, 0);
    let note = page_index.intents.begin(ALIVE, 0);
    assert_eq!(bloks.reserve(64, None, &note).unwrap().count, 64);
}

/// A page in RAM, its segment, and its location.
fn page_in_ram(
    page_index: &PageIndex,
    segments: &SegmentTable,
    holder: HolderId,
) -> (u32, Location) {
    let mut claims = page_index.claim(holder, 0).unwrap();
    let handle = claims.take().unwrap();
    page_index.unclaim(holder, 0, claims);
    let mut open = segments.open(0, holder).unwrap();
    let mut found = Location::Nowhere;
    let publish = |location| {
        page_index.set_location(handle, location, Checksum(0));
        page_index.publish(handle);
        found = location;
    };
    assert!(segments.append(&mut open, handle, &[1; 100], publish));
    segments.seal(open);
    (handle, found)
}

#[test]
fn dying_while_demoting_a_page_leaves_it_in_one_place() {
    for moved in [false, true] {
        let (store, inner) = store("ram:256K+disk:deaths-swap,size=256K");
        let (page_index, bloks) = (&inner.page_index, inner.bloks.as_ref().unwrap());
        let (handle, location) = page_in_ram(page_index, &inner.segments, ALIVE);
        assert!(inner.segments.claim(0, DEAD));
        let note = page_index.intents.begin(DEAD, 0);
        let blok = bloks.reserve(1, None, &note).unwrap().first;
        drop(note);
        page_index
            .intents
            .begin_long(DEAD, Intent::Demote(handle, blok))
            .unwrap();
        assert!(bloks.try_assign(blok, handle));
        if moved {
            assert!(page_index.relocate(handle, location, Location::Disk { blok }));
        }
        assert!(inner.retire(DEAD, false));
        let usage = store.usage();
        assert_eq!(usage.pages_disk, u64::from(moved));
        assert_eq!(usage.disk_used, u64::from(moved) * 4096);
        assert_eq!(usage.pages_ram, u64::from(!moved));
        assert!(!inner.segments.is_claimed(0));
        assert!(inner.retire(ALIVE, false));
        assert_eq!((store.usage().ram_used, store.usage().disk_used), (0, 0));
    }
}
