//! Pins beside other pages, other pins, and misses.

mod common;

use common::{PAGE, TABLE, alone, bytes_mut, in_child, read_write, space};
use space::{AddressSpace, MapFlags, MemoryObject, Rights, SpaceError};
use std::io::Read;
use std::time::Duration;

/// A system call stores to the page at `at`.
fn is_for_system_calls(at: usize) -> bool {
    let mut zeros = std::fs::File::open("/dev/zero").unwrap();
    // SAFETY: mapped, and used by this test alone.
    zeros.read_exact(unsafe { bytes_mut(at, PAGE) }).is_ok()
}

/// A mapping of 2 MiB, whose every page is entered.
fn entered(space: &AddressSpace, copy_on_write: bool) -> usize {
    let object = MemoryObject::create(TABLE as u64).unwrap();
    let flags = MapFlags {
        copy_on_write,
        ..read_write()
    };
    let at = space.map(None, TABLE, &object, 0, flags).unwrap();
    // SAFETY: mapped, and used by this test alone.
    unsafe { bytes_mut(at, 1) }.fill(1);
    at
}

#[test]
fn a_pinned_page_stays_mapped_while_its_neighbours_are_changed() {
    for copy_on_write in [false, true] {
        let space = AddressSpace::without_domain(8).unwrap();
        let at = entered(&space, copy_on_write);
        let pin = space.pin(at + 8 * PAGE, PAGE).unwrap();
        space.protect(at, 8 * PAGE, Rights::READ).unwrap();
        assert!(is_for_system_calls(at + 8 * PAGE));
        space.deallocate(at + 9 * PAGE, PAGE).unwrap();
        assert!(is_for_system_calls(at + 8 * PAGE));
        drop(pin);
        space.protect(at + 8 * PAGE, PAGE, Rights::READ).unwrap();
        assert!(!is_for_system_calls(at + 8 * PAGE));
    }
}

#[test]
fn pins_that_overlap_keep_their_own_pages() {
    let space = AddressSpace::without_domain(8).unwrap();
    let at = entered(&space, true);
    let first = space.pin(at + 2 * PAGE, 4 * PAGE).unwrap();
    let second = space.pin(at + 4 * PAGE, 4 * PAGE).unwrap();
    drop(first);
    space.protect(at, 4 * PAGE, Rights::READ).unwrap();
    assert!((4..8).all(|page| is_for_system_calls(at + page * PAGE)));
    let refused = space.protect(at + 3 * PAGE, 2 * PAGE, Rights::READ);
    assert!(matches!(refused, Err(SpaceError::Pinned { .. })));
    drop(second);
    space.deallocate(at, TABLE).unwrap();
}

#[test]
fn the_end_of_a_clients_call_leaves_pinned_pages_of_its_view() {
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(8 * PAGE as u64).unwrap();
    let mut view = space
        .client_view(&object, Rights::READ | Rights::WRITE)
        .unwrap();
    let call = view.begin();
    let at = call.translate(0, 8 * PAGE).unwrap().expose_provenance();
    let pin = space.pin(at, PAGE).unwrap();
    object.set_len(4 * PAGE as u64).unwrap();
    call.read(6 * PAGE, &mut [0; 8]).unwrap();
    assert!(call.end().is_err());
    assert!(is_for_system_calls(at));
    drop(pin);
}

#[test]
fn pins_of_many_small_mappings_leave_room_for_misses() {
    const MAPPINGS: usize = 1100;
    let _alone = alone();
    let ended = in_child(|| {
        let space = AddressSpace::without_domain(64).unwrap();
        let object = MemoryObject::create((MAPPINGS * PAGE) as u64).unwrap();
        let map = |page| space.map(None, PAGE, &object, (page * PAGE) as u64, read_write());
        let mappings: Vec<_> = (0..MAPPINGS).map(|page| map(page).unwrap()).collect();
        let mut pins = Vec::new();
        let refused = loop {
            match space.pin(mappings[pins.len()], PAGE) {
                Ok(pin) => pins.push(pin),
                Err(error) => break error,
            }
        };
        for at in &mappings[pins.len()..] {
            // SAFETY: mapped, and used by this test alone.
            unsafe { bytes_mut(*at, 1) }.fill(1);
        }
        assert!(
            mappings[..pins.len()]
                .iter()
                .all(|at| is_for_system_calls(*at))
        );
        let text = refused.to_string();
        assert!(
            text.contains(&format!("{} parts of mappings are pinned", pins.len())),
            "{text}"
        );
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn a_pin_that_waits_for_frames_gets_those_of_a_pin_that_ends() {
    let space = space(128, 8);
    let buffers = [60, 50, 60].map(|pages| (space.allocate(pages * PAGE).unwrap(), pages * PAGE));
    let [_first, second] = [0, 1].map(|n| space.pin(buffers[n].0, buffers[n].1).unwrap());
    std::thread::scope(|scope| {
        let third = scope.spawn(|| space.pin(buffers[2].0, buffers[2].1).map(drop));
        // The third is waiting, most probably.
        std::thread::sleep(Duration::from_millis(100));
        drop(second);
        third.join().unwrap().unwrap();
    });
}
