//! Misses of several threads, and of instructions that need several ranges at once.

mod common;

use common::{TABLE, alone, in_child, read_write};
use space::{AddressSpace, MemoryObject};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn threads_at_the_bound_leave_one_another_the_ranges_of_an_instruction() {
    const THREADS: usize = 16;
    const ACCESSES: usize = 100;
    const RANGES: usize = 64;
    let _alone = alone();
    let ended = in_child(|| {
        let space = AddressSpace::without_domain(2).unwrap();
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
