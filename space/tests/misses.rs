//! Misses of several threads, and of instructions that need several ranges at once.

mod common;

use common::{PAGE, TABLE, alone, copy_across_boundaries, in_child, read_write};
use space::{AddressSpace, MemoryObject, VtlbBound, VtlbBudget};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn threads_at_the_bound_leave_one_another_the_ranges_of_an_instruction() {
    const THREADS: usize = 16;
    const ACCESSES: usize = 100;
    const RANGES: usize = 64;
    let _alone = alone();
    let ended = in_child(|| {
        let space = AddressSpace::without_domain(6).unwrap();
        let object = MemoryObject::create((RANGES * TABLE) as u64).unwrap();
        let at = space
            .map(None, RANGES * TABLE, &object, 0, read_write())
            .unwrap();
        let done = AtomicUsize::new(0);
        let done = &done;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for n in 0..ACCESSES {
                        let boundary = at + (1 + (thread * 7 + n * 2) % (RANGES - 2)) * TABLE;
                        let across = std::ptr::with_exposed_provenance::<u64>(boundary - 4);
                        // SAFETY: mapped, and never written.
                        assert_eq!(unsafe { across.read_unaligned() }, 0);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while done.load(Ordering::Relaxed) < THREADS * ACCESSES {
                let misses = space.vtlb_stats().misses;
                if misses > 10 * (THREADS * ACCESSES) as u64 {
                    println!("{misses} misses, {done:?} accesses");
                    // SAFETY: ends the child, whose threads might never end.
                    unsafe { libc::_exit(1) };
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        println!("{:?}", space.vtlb_stats());
        0
    });
    assert_eq!(ended, Ok(0));
}

/// The smallest bound that spaces accept, and that of a budget of two spaces.
fn smallest_bounds() -> [VtlbBound; 2] {
    let pages = (1..).find(|pages| AddressSpace::without_domain(*pages).is_ok());
    let budget = (1..).find_map(|pages| VtlbBudget::create(pages, 2).ok());
    [pages.unwrap().into(), (&budget.unwrap()).into()]
}

#[test]
fn an_instruction_has_the_six_ranges_that_it_needs_at_the_smallest_bound() {
    let _alone = alone();
    for bound in smallest_bounds() {
        let ended = in_child(|| {
            // An instruction that never has all of them is repeated for ever.
            // SAFETY: concerns the calling child alone.
            unsafe { libc::alarm(20) };
            copy_across_boundaries(&AddressSpace::without_domain(bound).unwrap());
            0
        });
        assert_eq!(ended, Ok(0));
    }
}

#[test]
fn an_instruction_has_the_six_ranges_that_it_needs_beside_all_pins_that_there_may_be() {
    const PINS: usize = 10;
    let _alone = alone();
    let ended = in_child(|| {
        // SAFETY: as above.
        unsafe { libc::alarm(20) };
        let space = AddressSpace::without_domain(8).unwrap();
        let object = MemoryObject::create((PINS * TABLE) as u64).unwrap();
        let at = space.map(None, PINS * TABLE, &object, 0, read_write());
        let pin = |range| space.pin(*at.as_ref().unwrap() + range * TABLE, PAGE).ok();
        let pins: Vec<_> = (0..PINS).map_while(pin).collect();
        assert!((1..PINS).contains(&pins.len()));
        copy_across_boundaries(&space);
        0
    });
    assert_eq!(ended, Ok(0));
}
