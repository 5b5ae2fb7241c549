//! A staging slot beside registered memory: the kernel's trap, and the guards that avoid it.

mod common;
use common::*;
use translation::{EntryKind, Userfault, Wake, stage};
use wired::PAGE;

const PAGES: usize = 8;

/// Registers `src`, stages it `rounds` times into `slot`, with one page at first and none later,
/// and returns whether faults still arrive.
fn still_registered(src: usize, slot: usize) -> bool {
    let userfault = Userfault::open(EntryKind::Upcall, &capabilities()).unwrap();
    userfault.register(src, PAGES * PAGE, true, false).unwrap();
    userfault
        .copy(src, page_of(1).as_ptr(), PAGE, Wake::No)
        .unwrap();
    (0..3).all(|_| {
        // SAFETY: both are the test's.
        unsafe { stage(src, PAGES * PAGE, slot) }.unwrap();
        !kernel_reads(src)
    })
}

#[test]
fn memory_beside_a_guarded_slot_stays_registered() {
    // As near as the kernel places them, in both orders.
    let (before, slot, after) = (Area::new(PAGES), Slot::new(PAGES), Area::new(PAGES));
    assert!(still_registered(before.at(0), slot.at(0)));
    assert!(still_registered(after.at(0), slot.at(0)));
}

#[test]
fn a_slot_that_adjoins_its_source_loses_its_registration_in_the_kernel() {
    let both = Area::new(2 * PAGES);
    if still_registered(both.at(0), both.at(PAGES)) {
        // The rule stays: other kernels have the trap.
        skipped("this kernel does not merge the slot with its neighbour");
    }
}
