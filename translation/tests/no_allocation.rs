//! Operations on the page path allocate nothing. The only test of its program: it counts every
//! allocation.

mod common;
use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use translation::{
    EntryKind, Fault, Feature, IoVec, Pagemap, Userfault, Wake, discard, discard_batch,
    separate_pinned, stage, stage_across_mappings,
};
use wired::PAGE;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator behind a counter.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn operations_of_the_page_path_allocate_nothing() {
    const PAGES: usize = 8;
    let all = capabilities();
    let plain = [
        Feature::Move,
        Feature::Poison,
        Feature::PagemapScan,
        Feature::BatchDiscard,
    ]
    .into_iter()
    .fold(all, |c, feature| c.without(feature));
    for capabilities in [all, plain] {
        let userfault = Userfault::open(EntryKind::Upcall, &capabilities).unwrap();
        let pagemap = Pagemap::open(&capabilities).unwrap();
        let (area, slot, second) = (Area::new(PAGES), Slot::new(PAGES), Slot::new(PAGES));
        let len = PAGES * PAGE;
        let page = page_of(1);
        let mut bitmap = [0; 1];
        let mut faults = [Fault::default(); 4];
        let before = ALLOCATIONS.load(Ordering::Relaxed);

        userfault.register(area.at(0), len, true, true).unwrap();
        userfault.register(second.at(0), len, true, false).unwrap();
        userfault.zero(area.at(0), PAGE, Wake::Yes).unwrap();
        userfault
            .copy(area.at(1), page.as_ptr(), PAGE, Wake::No)
            .unwrap();
        userfault
            .copy(area.at(1), page.as_ptr(), PAGE, Wake::No)
            .unwrap_err();
        userfault.write_protect(area.at(0), len, true).unwrap();
        userfault.write_protect(area.at(0), len, false).unwrap();
        userfault.wake(area.at(0), len).unwrap();
        assert_eq!(userfault.read_faults(&mut faults).unwrap(), 0);
        pagemap.present_pages(area.at(0), len, &mut bitmap).unwrap();
        pagemap.trans(area.at(0)).unwrap();
        // SAFETY: the test's memory.
        unsafe {
            stage(area.at(0), len, slot.at(0)).unwrap();
            if capabilities.has(Feature::Move) {
                separate_pinned(&userfault, slot.at(0), second.at(0), len, |_| {}).unwrap();
            }
            let pieces = [slot.at(0), slot.at(4)].map(|addr| IoVec {
                addr,
                len: 4 * PAGE,
            });
            discard_batch(&pieces, &capabilities).unwrap();
            discard(second.at(0), len).unwrap();
            userfault
                .copy(area.at(1), page.as_ptr(), PAGE, Wake::No)
                .unwrap();
            stage_across_mappings(area.at(0), len, slot.at(0), |_| {});
            let method = userfault.poison(area.at(2), PAGE).unwrap();
            userfault.unpoison(area.at(2), PAGE, method, true).unwrap();
        }
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
    }
}
