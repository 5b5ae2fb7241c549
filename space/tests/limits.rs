//! Spaces of processes that may do less than others.

mod common;

use common::{PAGE, TABLE, alone, bytes, bytes_mut, in_child, read_write, space};
use space::{AddressSpace, CommitFlags, MapFlags, MemoryObject, RegionState, Rights, SpaceError};

fn copy_on_write() -> MapFlags {
    MapFlags {
        copy_on_write: true,
        ..read_write()
    }
}

#[test]
fn a_limit_of_file_sizes_refuses_copy_on_write_mappings_larger_than_it() {
    let _alone = alone();
    let ended = in_child(|| {
        let object = MemoryObject::create(1 << 40).unwrap();
        let limit = libc::rlimit {
            rlim_cur: TABLE as u64,
            rlim_max: TABLE as u64,
        };
        // SAFETY: concerns the calling child alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let space = AddressSpace::without_domain(6).unwrap();
        let refused = space.map(None, 2 * TABLE, &object, 0, copy_on_write());
        assert!(
            matches!(refused, Err(SpaceError::System { .. })),
            "{refused:?}"
        );
        assert!(refused.unwrap_err().to_string().contains("ulimit -f"));
        // At the end of the object, whose size is of no account.
        let size = 16 * PAGE;
        let mappings: Vec<_> = (1..9)
            .map(|n| {
                let at = space.reserve(None, TABLE, false).unwrap();
                let offset = (1 << 40) - (n * size) as u64;
                space
                    .map(Some(at), size, &object, offset, copy_on_write())
                    .unwrap()
            })
            .collect();
        for round in 0..3u8 {
            for at in &mappings {
                // SAFETY: mapped, and used by this test alone.
                let byte = unsafe { &mut bytes_mut(at + 3 * PAGE, 1)[0] };
                assert_eq!(*byte, round);
                *byte = round + 1;
            }
        }
        assert!(space.vtlb_stats().copies_restored > 0);
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn a_process_that_dropped_its_privileges_lacks_copy_on_write_alone() {
    let _alone = alone();
    let ended = in_child(|| {
        // SAFETY: concerns the calling child alone. It fails for a user who has no privileges to drop.
        unsafe {
            libc::setresuid(65534, 65534, 65534);
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
        }
        assert!(std::fs::File::open("/proc/self/pagemap").is_err());
        let space = AddressSpace::without_domain(6).unwrap();
        let object = MemoryObject::create(TABLE as u64).unwrap();
        let at = space.map(None, TABLE, &object, 0, read_write()).unwrap();
        // SAFETY: mapped, and used by this test alone.
        unsafe { bytes_mut(at, 1) }.fill(1);
        let refused = space.map(None, TABLE, &object, 0, copy_on_write());
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("PR_SET_DUMPABLE"), "{text}");
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn a_limit_of_descriptors_is_named_where_a_mapping_or_an_object_needs_one() {
    let _alone = alone();
    let ended = in_child(|| {
        let limit = libc::rlimit {
            rlim_cur: 64,
            rlim_max: 64,
        };
        // SAFETY: concerns the calling child alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let space = AddressSpace::without_domain(6).unwrap();
        let object = MemoryObject::create(PAGE as u64).unwrap();
        let map = || space.map(None, PAGE, &object, 0, copy_on_write());
        let refused = (0..64).find_map(|_| map().err()).unwrap();
        let created = MemoryObject::create(PAGE as u64).unwrap_err();
        for text in [refused.to_string(), created.to_string()] {
            assert!(text.contains("ulimit -n"), "{text}");
        }
        0
    });
    assert_eq!(ended, Ok(0));
}

/// Every mapping that the process may have, until it is dropped.
struct Mappings {
    area: *mut libc::c_void,
    bytes: usize,
}

impl Mappings {
    fn all() -> Self {
        let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        let most: usize = most.trim().parse().unwrap();
        let bytes = 2 * most * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: fresh addresses, whose pages get different rights until there are no mappings left.
        unsafe {
            let area = libc::mmap(std::ptr::null_mut(), bytes, 0, flags, -1, 0);
            assert_ne!(area, libc::MAP_FAILED);
            let pages = (0..most).map(|n| area.byte_add((2 * n + 1) * PAGE));
            let mut splits = pages.map(|page| libc::mprotect(page, PAGE, libc::PROT_READ));
            assert!(splits.any(|split| split != 0));
            Self { area, bytes }
        }
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        // SAFETY: its own.
        assert_eq!(unsafe { libc::munmap(self.area, self.bytes) }, 0);
    }
}

/// Calls `operation` while the kernel refuses to divide a mapping.
fn refuse<T>(operation: impl FnOnce() -> Result<T, SpaceError>) {
    let mappings = Mappings::all();
    let refused = operation().map(drop);
    drop(mappings);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("Cannot allocate memory"), "{text}");
}

#[test]
fn a_protection_that_fails_leaves_the_rights_and_can_be_repeated() {
    let _alone = alone();
    let ended = in_child(|| {
        let space = AddressSpace::without_domain(8).unwrap();
        let object = MemoryObject::create(3 * TABLE as u64).unwrap();
        let flags = MapFlags::new(Rights::READ);
        let at = space.map(None, 3 * TABLE, &object, 0, flags).unwrap();
        for range in 0..3 {
            // SAFETY: mapped, and never written meanwhile. The kernel makes one mapping of the entries.
            assert_eq!(unsafe { bytes(at + range * TABLE, 1)[0] }, 0);
        }
        let middle = at + TABLE;
        refuse(|| space.protect(middle, TABLE, read_write().rights));
        assert_eq!(space.query(middle).unwrap().rights, Rights::READ);
        space.protect(middle, TABLE, read_write().rights).unwrap();
        // SAFETY: mapped, and used by this test alone.
        unsafe { bytes_mut(middle, 1)[0] = 1 };
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn an_access_for_which_the_process_has_no_mapping_left_is_an_exception() {
    let _alone = alone();
    let ended = in_child(|| {
        let space = AddressSpace::without_domain(8).unwrap();
        let object = MemoryObject::create(8 * TABLE as u64).unwrap();
        let at = space
            .map(None, 8 * TABLE, &object, 0, read_write())
            .unwrap();
        let _mappings = Mappings::all();
        // SAFETY: mapped, and used by this test alone.
        unsafe { bytes_mut(at + 4 * TABLE + PAGE, 1)[0] = 1 };
        0
    });
    assert_eq!(ended, Err(libc::SIGSEGV));
}

#[test]
fn a_clients_file_of_a_mount_that_is_not_seen_is_not_viewed() {
    let _alone = alone();
    let ended = in_child(|| {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let object = MemoryObject::from_file(file).unwrap();
        let space = AddressSpace::without_domain(6).unwrap();
        assert!(space.client_view(&object, Rights::READ).is_ok());
        // SAFETY: concerns the calling child alone.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
            println!("SKIPPED: no mount namespace can be made here");
            return 0;
        }
        let refused = space.client_view(&object, Rights::READ).err();
        assert!(
            matches!(refused, Some(SpaceError::ServedFile)),
            "{refused:?}"
        );
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn a_deallocation_that_the_kernel_refuses_leaves_the_pages_to_a_later_one() {
    let _alone = alone();
    let ended = in_child(|| {
        let space = AddressSpace::without_domain(8).unwrap();
        let reserved = space.reserve(None, 3 * PAGE, false).unwrap();
        refuse(|| space.deallocate(reserved + PAGE, PAGE));
        space.deallocate(reserved, 3 * PAGE).unwrap();

        let object = MemoryObject::create(3 * TABLE as u64).unwrap();
        let at = space
            .map(None, 3 * TABLE, &object, 0, read_write())
            .unwrap();
        for range in 0..3 {
            // SAFETY: mapped, and used by this test alone.
            unsafe { bytes_mut(at + range * TABLE, 1)[0] = 5 };
        }
        refuse(|| space.deallocate(at + TABLE, TABLE));
        let region = space.query(at + TABLE).unwrap();
        assert_eq!(region.range, at..at + 3 * TABLE);
        // SAFETY: as above.
        assert_eq!(unsafe { bytes_mut(at + TABLE, 1)[0] }, 5);
        space.deallocate(at + TABLE, TABLE).unwrap();
        assert_eq!(space.query(at + TABLE), None);
        assert_eq!(space.memory_status().mapped, 2 * TABLE as u64);
        drop(space);
        // SAFETY: asks whether anything is mapped there.
        let advised = unsafe { libc::madvise(at as *mut _, 3 * TABLE, libc::MADV_NORMAL) };
        assert_eq!(advised, -1, "the whole is unmapped");
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn pages_stay_committed_where_the_kernel_refuses_to_decommit_them() {
    let _alone = alone();
    let ended = in_child(|| {
        let space = space(64, 8);
        let shareable = space.reserve(None, 3 * TABLE, false).unwrap();
        let flags = CommitFlags {
            shareable: true,
            ..CommitFlags::default()
        };
        space.commit(shareable, 3 * TABLE, flags).unwrap();
        for range in 0..3 {
            // SAFETY: committed, and used by this test alone.
            unsafe { bytes_mut(shareable + range * TABLE, 1)[0] = 5 };
        }
        let private = space.allocate(9 * PAGE).unwrap();
        // SAFETY: as above.
        unsafe { bytes_mut(private, 9 * PAGE) }.fill(7);
        for (at, len, state) in [
            (shareable + TABLE, TABLE, RegionState::Mapped),
            (private + 8 * PAGE, PAGE, RegionState::Committed),
        ] {
            refuse(|| space.decommit(at, len));
            assert_eq!(space.query(at).unwrap().state, state);
            space.decommit(at, len).unwrap();
            assert_eq!(space.query(at).unwrap().state, RegionState::Reserved);
        }
        // What is mapped there next is not what was decommitted.
        let other = MemoryObject::create(TABLE as u64).unwrap();
        let at = shareable + TABLE;
        space.map(Some(at), TABLE, &other, 0, read_write()).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { bytes_mut(at, 1)[0] }, 0);
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn addresses_that_are_reserved_again_give_no_access_after_a_refused_decommit() {
    let _alone = alone();
    let ended = in_child(|| {
        let space = space(64, 8);
        let at = space.allocate(9 * PAGE).unwrap();
        // SAFETY: committed, and used by this test alone.
        unsafe { bytes_mut(at, 9 * PAGE) }.fill(7);
        refuse(|| space.decommit(at + 8 * PAGE, PAGE));
        space.deallocate(at, 9 * PAGE).unwrap();
        assert_eq!(space.reserve(None, 9 * PAGE, false).unwrap(), at);
        // SAFETY: used by this test alone.
        unsafe { bytes_mut(at + 8 * PAGE, 1)[0] }.into()
    });
    assert_eq!(ended, Err(libc::SIGSEGV));
}
