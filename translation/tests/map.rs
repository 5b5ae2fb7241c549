//! Map on the real kernel.

mod common;
use common::*;
use translation::{EntryKind, Feature, MapError, Userfault, UserfaultOptions, Wake, discard};
use wired::PAGE;

fn upcall_area(pages: usize) -> (Userfault, Area) {
    let userfault = Userfault::open(EntryKind::Upcall, &capabilities()).unwrap();
    let area = Area::new(pages);
    userfault
        .register(area.at(0), area.len(), true, false)
        .unwrap();
    (userfault, area)
}

#[test]
fn a_missing_page_is_refused_to_the_kernel_until_it_is_mapped() {
    let (userfault, area) = upcall_area(2);
    assert!(!kernel_reads(area.at(0)));
    userfault.zero(area.at(0), PAGE, Wake::No).unwrap();
    userfault
        .copy(area.at(1), page_of(7).as_ptr(), PAGE, Wake::Yes)
        .unwrap();
    assert!(kernel_reads(area.at(0)) && kernel_reads(area.at(1)));
    assert_eq!(
        (
            load(area.at(0)),
            load(area.at(1)),
            load(area.at(1) + PAGE - 1)
        ),
        (0, 7, 7)
    );
}

#[test]
fn the_source_of_a_copy_need_not_be_aligned() {
    let (userfault, area) = upcall_area(1);
    let bytes: Vec<u8> = (0..PAGE + 1).map(|i| i as u8).collect();
    userfault
        .copy(area.at(0), bytes[1..].as_ptr(), PAGE, Wake::No)
        .unwrap();
    assert_eq!(load(area.at(0)), 1);
}

#[test]
fn mapping_never_overwrites_and_reports_the_bytes_done_before() {
    let (userfault, area) = upcall_area(6);
    userfault
        .copy(area.at(4), page_of(9).as_ptr(), PAGE, Wake::No)
        .unwrap();
    let source = vec![3; 6 * PAGE];
    assert_eq!(
        userfault.copy(area.at(1), source.as_ptr(), 5 * PAGE, Wake::No),
        Err(MapError::Exists { done: 3 * PAGE })
    );
    assert_eq!(
        (1..6).map(|p| kernel_reads(area.at(p))).collect::<Vec<_>>(),
        [true, true, true, true, false]
    );
    assert_eq!((load(area.at(3)), load(area.at(4))), (3, 9));
    assert_eq!(
        userfault.zero(area.at(0), 2 * PAGE, Wake::No),
        Err(MapError::Exists { done: PAGE })
    );
    assert_eq!(
        userfault.zero(area.at(4), PAGE, Wake::No),
        Err(MapError::Exists { done: 0 })
    );
}

#[test]
fn memory_that_is_not_registered_or_not_mapped_is_gone() {
    let (userfault, area) = upcall_area(2);
    userfault.unregister(area.at(1), PAGE).unwrap();
    assert_eq!(
        userfault.zero(area.at(1), PAGE, Wake::No),
        Err(MapError::Gone)
    );
    assert_eq!(
        userfault.copy(NOWHERE, page_of(1).as_ptr(), PAGE, Wake::No),
        Err(MapError::Gone)
    );
}

#[test]
fn an_unreadable_source_is_an_error_and_maps_nothing() {
    let (userfault, area) = upcall_area(1);
    let refused = userfault.copy(
        area.at(0),
        std::ptr::without_provenance(PAGE),
        PAGE,
        Wake::No,
    );
    assert!(matches!(refused, Err(MapError::Other(_))), "{refused:?}");
    assert!(!kernel_reads(area.at(0)));
}

#[test]
fn pages_move_with_their_contents_and_leave_holes() {
    if !capabilities().has(Feature::Move) {
        return skipped("the kernel has no UFFDIO_MOVE");
    }
    let (userfault, area) = upcall_area(4);
    let pool = Area::new(4);
    for page in 0..4 {
        store(pool.at(page), 10 + page as u8);
    }
    // SAFETY: the pool is the test's.
    unsafe { userfault.move_pages(area.at(0), pool.at(0), 4 * PAGE, Wake::No) }.unwrap();
    assert_eq!(
        (0..4).map(|p| load(area.at(p))).collect::<Vec<_>>(),
        [10, 11, 12, 13]
    );
    assert_eq!((0..4).map(|p| load(pool.at(p))).collect::<Vec<_>>(), [0; 4]);
}

#[test]
fn a_hole_stops_a_move_unless_holes_are_allowed() {
    if !capabilities().has(Feature::Move) {
        return skipped("the kernel has no UFFDIO_MOVE");
    }
    let (userfault, area) = upcall_area(3);
    let pool = Area::new(3);
    store(pool.at(0), 1);
    store(pool.at(2), 2);
    // SAFETY: the pool is the test's.
    let stopped = unsafe { userfault.move_pages(area.at(0), pool.at(0), 3 * PAGE, Wake::No) };
    assert!(stopped.is_err(), "{stopped:?}");
    assert_eq!(load(area.at(0)), 1);
    // SAFETY: as above.
    unsafe {
        discard(area.at(0), PAGE).unwrap();
        userfault
            .move_present(area.at(0), pool.at(0), 3 * PAGE, Wake::No)
            .unwrap();
    }
    assert_eq!(
        [0, 1, 2].map(|p| kernel_reads(area.at(p))),
        [false, false, true]
    );
    assert_eq!(load(area.at(2)), 2);
}

#[test]
fn without_move_a_move_is_refused() {
    let without = capabilities().without(Feature::Move);
    let userfault = Userfault::open(EntryKind::Upcall, &without).unwrap();
    // SAFETY: refused before anything is touched.
    let refused = unsafe { userfault.move_pages(0, 0, PAGE, Wake::No) };
    assert!(matches!(refused, Err(MapError::Other(_))));
}

#[test]
fn a_page_copied_protected_faults_at_the_first_store_only() {
    let userfault = Userfault::open_with(
        EntryKind::Upcall,
        &capabilities(),
        UserfaultOptions {
            user_mode_only: true,
            ..UserfaultOptions::default()
        },
    )
    .unwrap();
    let area = Area::new(1);
    userfault.register(area.at(0), PAGE, true, true).unwrap();
    userfault
        .copy_protected(area.at(0), page_of(5).as_ptr(), PAGE, Wake::No)
        .unwrap();
    let (userfault, at, len) = (std::sync::Arc::new(userfault), area.at(0), area.len());
    static FAULTS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let mine = userfault.clone();
    on_upcall(at, len, move |page| {
        FAULTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        mine.write_protect(page, PAGE, false).unwrap();
    });
    assert_eq!(load(at), 5);
    assert_eq!(FAULTS.load(std::sync::atomic::Ordering::Relaxed), 0);
    store(at, 6);
    store(at + 1, 6);
    assert_eq!(load(at), 6);
    assert_eq!(FAULTS.load(std::sync::atomic::Ordering::Relaxed), 1);
}
