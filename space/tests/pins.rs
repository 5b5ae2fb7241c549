//! Pins beside other pages, other pins, and misses.

mod common;

use common::{PAGE, alone, bytes_mut, in_child, read_write};
use space::{AddressSpace, MemoryObject};
use std::io::Read;

/// A system call stores to the page at `at`.
fn is_for_system_calls(at: usize) -> bool {
    let mut zeros = std::fs::File::open("/dev/zero").unwrap();
    // SAFETY: mapped, and used by this test alone.
    zeros.read_exact(unsafe { bytes_mut(at, PAGE) }).is_ok()
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
