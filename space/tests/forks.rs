//! Forks while other threads of the parent are in the middle of something.

mod common;

use common::{PAGE, TABLE, alone, bytes, in_child};
use space::{AddressSpace, MapFlags, MemoryObject, MemoryStatus, Rights, SpaceError, VtlbStats};
use std::sync::atomic::{AtomicBool, Ordering};

/// Forks of a test: each of them may find the parent's threads outside of their locks.
const FORKS: usize = 300;

/// Ends a child that hangs, by SIGALRM.
fn end_if_it_hangs() {
    // SAFETY: concerns the calling child alone.
    unsafe { libc::alarm(20) };
}

/// Runs `work` in threads all the time until `main` is done.
fn beside(work: impl Fn() + Sync, main: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        main();
    });
}

/// Reads a byte of each range of a mapping with fewer entries than ranges: misses.
fn miss(at: usize, ranges: usize) {
    for range in 0..ranges {
        // SAFETY: mapped, and never written.
        std::hint::black_box(unsafe { bytes(at + range * TABLE, 1)[0] });
    }
}

fn space_with_misses() -> (AddressSpace, usize) {
    let space = AddressSpace::without_domain(6).unwrap();
    let object = MemoryObject::create(8 * TABLE as u64).unwrap();
    let at = space.map(None, 8 * TABLE, &object, 0, MapFlags::default());
    let at = at.unwrap();
    (space, at)
}

#[test]
fn a_childs_exceptions_and_operations_do_not_wait_for_locks_of_its_parents_threads() {
    let _alone = alone();
    let (space, at) = space_with_misses();
    let reserved = space.reserve(None, PAGE, false).unwrap();
    let client = MemoryObject::create(PAGE as u64).unwrap();
    let mut view = space.client_view(&client, Rights::READ).unwrap();
    client.revoke().unwrap();
    let operate = || {
        miss(at, 4);
        space.query(reserved);
        space.memory_status();
        let more = space.reserve(None, PAGE, false).unwrap();
        space.deallocate(more, PAGE).unwrap();
    };
    beside(operate, || {
        for _ in 0..FORKS {
            let call = view.begin();
            call.read(0, &mut [0; 8]).unwrap();
            let ended = in_child(|| {
                end_if_it_hangs();
                let refused = space.reserve(None, PAGE, false);
                assert!(matches!(refused, Err(SpaceError::Forked { .. })));
                assert_eq!(space.query(reserved), None);
                assert_eq!(space.memory_status(), MemoryStatus::default());
                assert_eq!(space.vtlb_stats(), VtlbStats::default());
                assert!(call.end().is_err());
                // SAFETY: expected to end the child.
                i32::from(unsafe { bytes(reserved, 1)[0] })
            });
            assert_eq!(ended, Err(libc::SIGSEGV));
        }
    });
}
