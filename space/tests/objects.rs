//! Memory objects: views, other processes, asymmetric copy-on-write, client views.

mod common;

use common::{PAGE, TABLE, bytes, bytes_mut, in_child, status_kb};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use space::{AddressSpace, CommitFlags, MapFlags, MemoryObject, Rights, SpaceError};
use std::os::fd::OwnedFd;

fn read_write() -> MapFlags {
    MapFlags {
        rights: Rights::READ | Rights::WRITE,
        copy_on_write: false,
    }
}

fn copy_on_write() -> MapFlags {
    MapFlags {
        copy_on_write: true,
        ..read_write()
    }
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap()
}

#[test]
fn a_view_gives_no_more_than_its_part_and_rights() {
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(4 * PAGE as u64).unwrap();
    let view = object
        .restricted_access(PAGE as u64, 2 * PAGE as u64, Rights::READ)
        .unwrap();
    assert!(matches!(
        view.restricted_access(0, PAGE as u64, Rights::WRITE),
        Err(SpaceError::Rights { .. })
    ));
    assert!(matches!(
        view.restricted_access(PAGE as u64, 2 * PAGE as u64, Rights::READ),
        Err(SpaceError::Overflow { .. })
    ));
    assert!(matches!(
        space.map(None, PAGE, &view, 0, read_write()),
        Err(SpaceError::Rights { .. })
    ));
    assert!(matches!(view.revoke(), Err(SpaceError::Rights { .. })));
    let whole = space.map(None, 4 * PAGE, &object, 0, read_write()).unwrap();
    let part = space
        .map(None, 2 * PAGE, &view, 0, MapFlags::default())
        .unwrap();
    assert!(matches!(
        space.protect(part, PAGE, Rights::WRITE),
        Err(SpaceError::Rights { .. })
    ));
    // SAFETY: mapped, and used by this test alone.
    unsafe { bytes_mut(whole + PAGE, 1) }.fill(5);
    // SAFETY: as above.
    assert_eq!(unsafe { bytes(part, 1) }, [5]);
}

#[test]
fn shareable_memory_goes_to_another_process_at_another_address_and_ends_with_its_section() {
    let space = common::space(64, 8);
    let at = space.reserve(None, 2 * PAGE, true).unwrap();
    let flags = CommitFlags {
        shareable: true,
        ..CommitFlags::default()
    };
    space.commit(at, 0, flags).unwrap();
    // SAFETY: committed, and used by this test and its child in turns; below, too.
    unsafe { bytes_mut(at, 2 * PAGE) }.fill(1);
    let (ours, theirs) = sockets();
    let view = space.memory_object(at + PAGE, PAGE).unwrap();
    view.restricted_access(0, PAGE as u64, Rights::READ)
        .unwrap()
        .send(&ours)
        .unwrap();
    view.send(&ours).unwrap();
    let ended = in_child(|| {
        let read_only = MemoryObject::receive(&theirs).unwrap();
        let object = MemoryObject::receive(&theirs).unwrap();
        let space = AddressSpace::without_domain(8).unwrap();
        let refused = space.map(None, PAGE, &read_only, 0, read_write());
        assert!(matches!(refused, Err(SpaceError::Rights { .. })));
        let mapped = space.map(None, PAGE, &object, 0, read_write()).unwrap();
        assert_ne!(mapped, at);
        // SAFETY: as above.
        unsafe { bytes_mut(mapped, PAGE) }.fill(2);
        0
    });
    assert_eq!(ended, Ok(0));
    // SAFETY: as above.
    assert_eq!(unsafe { (bytes(at, 1)[0], bytes(at + PAGE, 1)[0]) }, (1, 2));
    space.deallocate(at, 0).unwrap();
    let dead = space.map(None, PAGE, &view, 0, read_write());
    assert!(matches!(dead, Err(SpaceError::Dead { .. })));
}

#[test]
fn a_copy_on_write_mapping_shows_the_source_until_it_is_written() {
    let space = AddressSpace::without_domain(2).unwrap();
    let object = MemoryObject::create(8 * TABLE as u64).unwrap();
    let a = space
        .map(None, 8 * TABLE, &object, 0, read_write())
        .unwrap();
    let b = space
        .map(None, 8 * TABLE, &object, 0, copy_on_write())
        .unwrap();
    let byte = |at: usize| {
        // SAFETY: mapped, and used by this test alone.
        unsafe { &mut bytes_mut(at, 1)[0] }
    };
    for range in 0..8 {
        *byte(a + range * TABLE) = 1;
        assert_eq!(*byte(b + range * TABLE), 1);
        *byte(a + range * TABLE) = 2;
        assert_eq!(*byte(b + range * TABLE), 2);
        *byte(b + range * TABLE) = 3;
        *byte(a + range * TABLE) = 4;
    }
    for range in 0..8 {
        assert_eq!((*byte(a + range * TABLE), *byte(b + range * TABLE)), (4, 3));
        *byte(a + range * TABLE + PAGE) = 6;
        assert_eq!(
            *byte(b + range * TABLE + PAGE),
            6,
            "a page beside a copy still shows the source"
        );
    }
    let stats = space.vtlb_stats();
    assert!(
        stats.copies_saved >= 8 && stats.copies_restored >= 8,
        "{stats:?}"
    );
    assert!(stats.peak_pages <= 2, "{stats:?}");
}

#[test]
fn stores_of_other_threads_are_kept_while_entries_of_copies_are_recycled() {
    const RANGES: usize = 6;
    let space = AddressSpace::without_domain(3).unwrap();
    let object = MemoryObject::create((RANGES * TABLE) as u64).unwrap();
    let at = space
        .map(None, RANGES * TABLE, &object, 0, copy_on_write())
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread as u64);
                let mut written = vec![0u64; RANGES * 16];
                for round in 1..4000u64 {
                    let slot = random.usize(..written.len());
                    let word = at + slot / 16 * TABLE + slot % 16 * PAGE + thread * 8;
                    let word = std::ptr::with_exposed_provenance_mut::<u64>(word);
                    // SAFETY: a word of this thread's own in mapped memory.
                    unsafe {
                        assert_eq!(word.read_volatile(), written[slot]);
                        word.write_volatile(round);
                    }
                    written[slot] = round;
                }
            });
        }
    });
    assert!(space.vtlb_stats().copies_restored > 0);
}

#[test]
fn page_tables_of_a_sparse_mapping_stay_within_the_bound() {
    const GIB: usize = 1 << 30;
    let ended = in_child(|| {
        let space = AddressSpace::without_domain(64).unwrap();
        let object = MemoryObject::create(16 * GIB as u64).unwrap();
        let at = space.map(None, 16 * GIB, &object, 0, read_write()).unwrap();
        let before = status_kb("VmPTE:");
        for range in 0..16 * GIB / TABLE {
            // SAFETY: mapped, and used by this test alone.
            unsafe { bytes_mut(at + range * TABLE, 1) }.fill(1);
        }
        let grown = status_kb("VmPTE:") - before;
        // 64 pages, one for each GiB, and one page for the upper levels.
        assert!(grown <= 4 * (64 + 16 + 2), "{grown} kB of page tables");
        let stats = space.vtlb_stats();
        assert_eq!((stats.pages, stats.misses), (64, 8192));
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn a_client_that_truncates_gets_its_fault_and_no_other_client_does() {
    let space = AddressSpace::without_domain(64).unwrap();
    let objects: Vec<_> = (0..8)
        .map(|_| MemoryObject::create(4 * PAGE as u64).unwrap())
        .collect();
    let mut views: Vec<_> = objects
        .iter()
        .map(|object| {
            space
                .client_view(object, Rights::READ | Rights::WRITE)
                .unwrap()
        })
        .collect();
    objects[3].revoke().unwrap();
    let mut page = vec![1; PAGE];
    for (client, view) in views.iter_mut().enumerate() {
        let call = view.begin();
        assert!(call.translate(3 * PAGE, PAGE + 1).is_err());
        assert!(call.translate(usize::MAX, 2).is_err());
        call.read(2 * PAGE, &mut page).unwrap();
        assert!(page.iter().all(|b| *b == 0));
        call.write(3 * PAGE, &[7; 8]).unwrap();
        let ended = call.end();
        if client == 3 {
            let fault = ended.unwrap_err();
            assert_eq!((fault.offset, fault.count), (2 * PAGE, 1));
            assert!(fault.to_string().contains("truncated"));
        } else {
            assert_eq!(ended, Ok(()));
        }
    }
    // What went to scratch pages is gone with the call.
    let call = views[3].begin();
    call.read(3 * PAGE, &mut page).unwrap();
    assert!(page.iter().all(|b| *b == 0));
    assert!(call.end().is_err());
}
