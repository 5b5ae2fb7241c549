//! Moves that stop part way, or are not counted.

use super::{PAGES, Setting};
use crate::common::*;
use translation::{Pagemap, Wake, separate_pinned, separate_pinned_sparse, stage};
use wired::PAGE;

#[test]
fn pages_before_and_behind_a_mark_without_contents_move() {
    const GUARD_INSTALL: i32 = 102;
    for is_sparse in [false, true] {
        let Some(set) = Setting::new() else { return };
        let marks = [5, 6, 11];
        (0..PAGES).for_each(|p| set.fill(p, p as u8 + 1));
        for page in marks {
            let at = std::ptr::with_exposed_provenance_mut(set.area.at(page));
            // SAFETY: a page of the test's.
            if unsafe { libc::madvise(at, PAGE, GUARD_INSTALL) } != 0 {
                return skipped("the kernel has no guard pages");
            }
        }
        let refused = match is_sparse {
            true => set.separate_sparse(),
            false => set.separate(),
        };
        assert_eq!(refused, marks);
        for page in (0..PAGES).filter(|page| !marks.contains(page)) {
            assert_eq!(load(set.second.at(page)), page as u8 + 1, "{is_sparse}");
        }
    }
}

/// As a kernel leaves it that moves a page, and does not count it.
#[test]
fn pages_that_have_moved_uncounted_are_on_the_second_area() {
    for is_sparse in [false, true] {
        let Some(set) = Setting::new() else { return };
        (0..PAGES).for_each(|p| set.fill(p, p as u8 + 1));
        // SAFETY: the test's areas.
        unsafe { stage(set.area.at(0), PAGES * PAGE, set.slot.at(0)) }.unwrap();
        for page in [0, 7, 8, 15] {
            let (slot, second) = (set.slot.at(page), set.second.at(page));
            // SAFETY: as above.
            unsafe { set.userfault.move_present(second, slot, PAGE, Wake::No) }.unwrap();
        }
        let (slot, second, len) = (set.slot.at(0), set.second.at(0), PAGES * PAGE);
        let pagemap = Pagemap::open(&capabilities()).unwrap();
        let note = |page| panic!("page {page} is not pinned");
        // SAFETY: as above.
        let separated = unsafe {
            match is_sparse {
                true => separate_pinned_sparse(&set.userfault, &pagemap, slot, second, len, note),
                false => separate_pinned(&set.userfault, slot, second, len, note),
            }
        };
        assert_eq!(separated, Ok(0));
        (0..PAGES).for_each(|p| assert_eq!(load(set.second.at(p)), p as u8 + 1));
    }
}
