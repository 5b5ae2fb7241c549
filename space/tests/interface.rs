//! The interface's meanings: sections, failures that leave a part done, erasure, exceptions, pins.

mod common;

use common::{PAGE, TABLE, backing, bytes, bytes_mut, read_write, space};
use selfpage::{DirectIo, Domain};
use space::{AddressSpace, Backing, CommitFlags, MemoryObject, RegionState, Rights, SpaceError};

fn zeroed() -> CommitFlags {
    CommitFlags {
        zero: true,
        ..CommitFlags::default()
    }
}

#[test]
fn a_section_takes_a_size_of_zero_and_goes_as_a_whole() {
    let space = space(64, 8);
    let at = space.reserve(None, 4 * PAGE, true).unwrap();
    space.commit(at, 0, CommitFlags::default()).unwrap();
    assert_eq!(space.query(at).unwrap().range, at..at + 4 * PAGE);
    let inside = space.commit(at + PAGE, 0, CommitFlags::default());
    assert!(matches!(inside, Err(SpaceError::Empty { .. })));
    space.decommit(at + PAGE, PAGE).unwrap();
    assert_eq!(space.query(at + PAGE).unwrap().state, RegionState::Reserved);
    let part = space.deallocate(at, PAGE);
    assert!(
        matches!(part, Err(SpaceError::Section { ref section }) if *section == (at..at + 4 * PAGE))
    );
    space.deallocate(at, 0).unwrap();
    assert_eq!(space.query(at), None);
}

#[test]
fn bad_arguments_are_typed_errors_and_change_nothing() {
    for pages in [0, 5, 4097] {
        let made = AddressSpace::without_domain(pages).map(drop);
        assert!(
            matches!(made, Err(SpaceError::Budget { spaces: 1, .. })),
            "a VTLB of {pages} pages: {made:?}"
        );
    }
    let space = space(64, 8);
    let at = space.reserve(None, 4 * PAGE, false).unwrap();
    let flags = CommitFlags::default();
    assert!(matches!(
        space.commit(at + 1, PAGE, flags),
        Err(SpaceError::Unaligned {
            what: "address",
            ..
        })
    ));
    assert!(matches!(
        space.commit(at, 100, flags),
        Err(SpaceError::Unaligned { what: "size", .. })
    ));
    assert!(matches!(
        space.commit(at, 0, flags),
        Err(SpaceError::Empty { .. })
    ));
    let top = usize::MAX - PAGE + 1;
    assert!(matches!(
        space.commit(top, PAGE, flags),
        Err(SpaceError::Overflow { .. })
    ));
    assert!(matches!(
        space.reserve(Some(at), PAGE, false),
        Err(SpaceError::Overlap(_))
    ));
    assert!(matches!(
        space.protect(at, PAGE, Rights::READ),
        Err(SpaceError::State { .. })
    ));
    assert!(matches!(
        space.decommit(at, PAGE),
        Err(SpaceError::State { .. })
    ));
    assert!(matches!(
        space.memory_object(at, PAGE),
        Err(SpaceError::NotShareable { .. })
    ));
    assert!(matches!(space.pin(at, PAGE), Err(SpaceError::State { .. })));
    let object = MemoryObject::create(2 * PAGE as u64).unwrap();
    let beyond = space.map(None, 2 * PAGE, &object, PAGE as u64, read_write());
    assert!(matches!(beyond, Err(SpaceError::Overflow { .. })));
    let (reader, _writer) = std::io::pipe().unwrap();
    let foreign = MemoryObject::from_file(reader);
    assert!(matches!(foreign, Err(SpaceError::Foreign(_))));
    object.revoke().unwrap();
    let dead = space.map(None, PAGE, &object, 0, read_write());
    assert!(matches!(dead, Err(SpaceError::Dead { there: 0, .. })));
    assert_eq!(space.query(at).unwrap().range, at..at + 4 * PAGE);
    let status = space.memory_status();
    assert_eq!(
        (status.reserved, status.committed, status.mapped),
        (4 * PAGE as u64, 0, 0)
    );
    let other = AddressSpace::without_domain(8).unwrap();
    let at = other.reserve(None, PAGE, false).unwrap();
    assert!(matches!(
        other.commit(at, PAGE, flags),
        Err(SpaceError::NoDomain)
    ));
}

#[test]
fn a_failed_commit_is_partly_done_and_deallocate_cleans_up() {
    let space = space(64, 8);
    let at = space.reserve(None, 4 * PAGE, false).unwrap();
    space
        .commit(at + 2 * PAGE, PAGE, CommitFlags::default())
        .unwrap();
    let failed = space.commit(at, 4 * PAGE, CommitFlags::default());
    assert!(matches!(failed, Err(SpaceError::State { .. })));
    let states: Vec<_> = (0..4)
        .map(|n| space.query(at + n * PAGE).unwrap().state)
        .collect();
    assert_eq!(states[..3], [RegionState::Committed; 3]);
    assert_eq!(states[3], RegionState::Reserved);
    space.deallocate(at, 4 * PAGE).unwrap();
    assert_eq!(space.query(at), None);
    assert_eq!(space.memory_status().reserved, 0);
}

#[test]
fn own_pages_come_back_unerased_and_zero_is_asked_for() {
    let space = space(256, 8);
    let size = 16 * PAGE;
    let at = space.allocate(size).unwrap();
    // SAFETY: committed, and used by this test alone; below, too.
    unsafe { bytes_mut(at, size) }.fill(7);
    space.deallocate(at, size).unwrap();
    let again = space.allocate(size).unwrap();
    assert_eq!(
        again, at,
        "a reservation of the size gets the frames in place"
    );
    // SAFETY: as above.
    assert!(unsafe { bytes(at, size) }.iter().all(|b| *b == 7));
    space.decommit(at, size).unwrap();
    space.commit(at, size, zeroed()).unwrap();
    // SAFETY: as above.
    assert!(unsafe { bytes(at, size) }.iter().all(|b| *b == 0));
    let stats = space.backing().unwrap().stats();
    assert_eq!(
        (stats.fresh_pages, stats.reused_pages, stats.zeroed_pages),
        (16, 32, 16)
    );
}

/// A space with a domain of 256 frames that has no store.
fn without_a_store() -> AddressSpace {
    let domain = Domain::builder()
        .frames(256)
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    AddressSpace::new(Backing::new(domain), 6).unwrap()
}

/// Writes pages that are zeros.
fn fill(at: usize, pages: usize) {
    // SAFETY: committed, and used by the caller alone.
    let bytes = unsafe { bytes_mut(at, pages * PAGE) };
    assert!(bytes.iter().all(|b| *b == 0));
    bytes.fill(1);
}

#[test]
fn without_a_store_pages_that_are_given_up_leave_their_frames_to_others() {
    let space = without_a_store();
    let at = space.allocate(200 * PAGE).unwrap();
    fill(at, 200);
    space.deallocate(at, 200 * PAGE).unwrap();
    let at = space.allocate(150 * PAGE).unwrap();
    fill(at, 150);
    space.decommit(at, 120 * PAGE).unwrap();
    let other = space.allocate(100 * PAGE).unwrap();
    fill(other, 100);
    space.deallocate(other, 50 * PAGE).unwrap();
    space
        .commit(at, 100 * PAGE, CommitFlags::default())
        .unwrap();
    fill(at, 100);
    let last = space.allocate(60 * PAGE).unwrap();
    fill(last, 60);
}

#[test]
fn without_a_store_frames_are_used_again_in_place_while_all_pages_have_one() {
    let space = without_a_store();
    let at = space.allocate(100 * PAGE).unwrap();
    fill(at, 100);
    for _ in 0..2 {
        space.deallocate(at, 100 * PAGE).unwrap();
        assert_eq!(space.allocate(100 * PAGE).unwrap(), at);
        // SAFETY: committed, and used by this test alone.
        assert!(unsafe { bytes(at, 100 * PAGE) }.iter().all(|b| *b == 1));
    }
    space.deallocate(at, 100 * PAGE).unwrap();
    // Pages that have their frames later count, too.
    let auto = CommitFlags {
        auto: true,
        ..CommitFlags::default()
    };
    let regions = [110, 120].map(|pages| {
        let at = space.reserve(None, pages * PAGE, false).unwrap();
        space.commit(at, pages * PAGE, auto).unwrap();
        (at, pages)
    });
    regions.into_iter().for_each(|(at, pages)| fill(at, pages));
}

#[test]
fn pages_are_erased_between_spaces_of_a_domain_unless_their_commit_says_no() {
    let backing = backing(256);
    let one = AddressSpace::new(backing.clone(), 8).unwrap();
    let two = AddressSpace::new(backing.clone(), 8).unwrap();
    for (no_erase, expected) in [(false, 0), (true, 9)] {
        let size = 8 * PAGE;
        let at = one.reserve(None, size, false).unwrap();
        let flags = CommitFlags {
            dealloc_no_erase: no_erase,
            ..CommitFlags::default()
        };
        one.commit(at, size, flags).unwrap();
        // SAFETY: committed, and used by this test alone; below, too.
        unsafe { bytes_mut(at, size) }.fill(9);
        one.deallocate(at, size).unwrap();
        let other = two.allocate(size).unwrap();
        assert_eq!(other, at);
        // SAFETY: as above.
        assert!(unsafe { bytes(other, size) }.iter().all(|b| *b == expected));
        two.deallocate(other, size).unwrap();
        backing.trim();
    }
    assert_eq!(backing.stats().erased_pages, 8);
}

#[test]
fn a_page_whose_commit_needs_no_erasure_leaves_that_of_the_others_to_be_done() {
    let backing = backing(64);
    let one = AddressSpace::new(backing.clone(), 8).unwrap();
    let two = AddressSpace::new(backing.clone(), 8).unwrap();
    let at = one.allocate(3 * PAGE).unwrap();
    // SAFETY: committed, and used by this test alone; below, too.
    unsafe { bytes_mut(at, 3 * PAGE) }.fill(9);
    let no_erase = CommitFlags {
        dealloc_no_erase: true,
        ..CommitFlags::default()
    };
    // The second page has what it had under its first commit.
    one.decommit(at + PAGE, 2 * PAGE).unwrap();
    one.commit(at + PAGE, PAGE, no_erase).unwrap();
    let zeroed_no_erase = CommitFlags {
        zero: true,
        ..no_erase
    };
    one.commit(at + 2 * PAGE, PAGE, zeroed_no_erase).unwrap();
    // SAFETY: as above.
    unsafe { bytes_mut(at + 2 * PAGE, PAGE) }.fill(8);
    one.deallocate(at, 3 * PAGE).unwrap();
    let other = two.allocate(3 * PAGE).unwrap();
    assert_eq!(other, at);
    let first_bytes = [0, 1, 2].map(|page| {
        // SAFETY: as above.
        unsafe { bytes(at + page * PAGE, 1)[0] }
    });
    assert_eq!(first_bytes, [0, 0, 8]);
}

#[test]
fn memory_of_another_domain_is_never_seen() {
    let size = 64 * PAGE;
    for round in 0..8u8 {
        let one = space(128, 8);
        let at = one.allocate(size).unwrap();
        // SAFETY: committed, and used by this test alone; below, too.
        unsafe { bytes_mut(at, size) }.fill(0xA0 | round);
        drop(one);
        let two = space(128, 8);
        let at = two.allocate(size).unwrap();
        // SAFETY: as above.
        assert!(unsafe { bytes(at, size) }.iter().all(|b| *b == 0));
    }
}

#[test]
fn pinned_pages_stay_and_refuse_to_go() {
    let space = space(64, 8);
    let at = space.allocate(8 * PAGE).unwrap();
    let object = MemoryObject::create(12 * TABLE as u64).unwrap();
    let mapped = space
        .map(None, 12 * TABLE, &object, 0, read_write())
        .unwrap();
    let first = space.pin(at, PAGE).unwrap();
    let second = space.pin(at, 2 * PAGE).unwrap();
    let of_object = space.pin(mapped, PAGE).unwrap();
    assert!(matches!(
        space.decommit(at, PAGE),
        Err(SpaceError::Pinned { .. })
    ));
    assert!(matches!(
        space.deallocate(mapped, 12 * TABLE),
        Err(SpaceError::Pinned { .. })
    ));
    assert!(matches!(
        space.pin(mapped, 12 * TABLE),
        Err(SpaceError::VtlbFull { pinned: 1, .. })
    ));
    // Misses recycle the other entries only: a system call finds the pinned page.
    for n in (1..12).chain(1..12) {
        // SAFETY: mapped, and used by this test alone.
        unsafe { bytes_mut(mapped + n * TABLE, 1) }.fill(1);
    }
    let mut file = tempfile::tempfile().unwrap();
    // SAFETY: as above.
    std::io::Write::write_all(&mut file, unsafe { bytes(mapped, PAGE) }).unwrap();
    drop((first, of_object));
    assert!(matches!(
        space.decommit(at, PAGE),
        Err(SpaceError::Pinned { .. })
    ));
    drop(second);
    space.decommit(at, PAGE).unwrap();
    space.deallocate(mapped, 12 * TABLE).unwrap();
}

#[test]
fn a_reservation_with_old_frames_takes_a_mapping_over_a_part() {
    let space = space(64, 8);
    let size = 8 * PAGE;
    let at = space.allocate(size).unwrap();
    space.deallocate(at, size).unwrap();
    let again = space.reserve(None, size, false).unwrap();
    assert_eq!(
        again, at,
        "a reservation of the size gets the addresses again"
    );
    let object = MemoryObject::create(size as u64).unwrap();
    space
        .map(Some(at + PAGE), 2 * PAGE, &object, 0, read_write())
        .unwrap();
    space.commit(at + 4 * PAGE, PAGE, zeroed()).unwrap();
    for page in [1, 2, 4] {
        // SAFETY: mapped or committed, and used by this test alone.
        let bytes = unsafe { bytes_mut(at + page * PAGE, PAGE) };
        assert!(bytes.iter().all(|b| *b == 0));
        bytes.fill(1);
    }
    space.deallocate(at, size).unwrap();
    assert_eq!(space.memory_status().reserved, 0);
}
