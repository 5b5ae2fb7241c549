//! Pages that a device may write to are detected, and return unharmed.

#[path = "../common/mod.rs"]
mod common;
mod partial;

use common::*;
use io_uring::{IoUring, opcode, types};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use translation::{
    Capabilities, EntryKind, Feature, MapError, Pagemap, Userfault, Wake, discard, restore_pinned,
    separate_pinned, separate_pinned_sparse, stage,
};
use wired::PAGE;

const PAGES: usize = 16;

/// One test at a time: a fork in one would share the pages of another with its child.
static ALONE: Mutex<()> = Mutex::new(());

/// A registered area, a staging slot and a second area that is registered too.
struct Setting {
    _alone: MutexGuard<'static, ()>,
    userfault: Userfault,
    area: Area,
    slot: Slot,
    second: Slot,
}

impl Setting {
    fn new() -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let capabilities = capabilities();
        if !capabilities.may_evict(true) {
            skipped("the kernel cannot detect pinned pages");
            return None;
        }
        let userfault = Userfault::open(EntryKind::Upcall, &capabilities).unwrap();
        let (area, slot, second) = (Area::new(PAGES), Slot::new(PAGES), Slot::new(PAGES));
        userfault
            .register(area.at(0), area.len(), true, false)
            .unwrap();
        userfault
            .register(second.at(0), area.len(), true, false)
            .unwrap();
        Some(Self {
            _alone: alone,
            userfault,
            area,
            slot,
            second,
        })
    }

    fn fill(&self, page: usize, value: u8) {
        self.userfault
            .copy(self.area.at(page), page_of(value).as_ptr(), PAGE, Wake::No)
            .unwrap();
    }

    /// Stages the area and separates it by pagemap; returns the pages that refused.
    fn separate_sparse(&self) -> Vec<usize> {
        let pagemap = Pagemap::open(&capabilities()).unwrap();
        let (mut refused, len) = (Vec::new(), PAGES * PAGE);
        let (slot, second) = (self.slot.at(0), self.second.at(0));
        // SAFETY: all three are the test's.
        let count = unsafe {
            stage(self.area.at(0), len, slot).unwrap();
            separate_pinned_sparse(&self.userfault, &pagemap, slot, second, len, |page| {
                refused.push(page)
            })
        };
        assert_eq!(count, Ok(refused.len()));
        refused
    }

    /// Stages the area and separates it; returns the pages that refused.
    fn separate(&self) -> Vec<usize> {
        // SAFETY: both are the test's.
        unsafe { stage(self.area.at(0), PAGES * PAGE, self.slot.at(0)) }.unwrap();
        self.separate_staged(PAGES)
    }

    /// Separates the first pages of the slot; returns those that refused.
    fn separate_staged(&self, pages: usize) -> Vec<usize> {
        let (mut refused, len) = (Vec::new(), pages * PAGE);
        let (slot, second) = (self.slot.at(0), self.second.at(0));
        // SAFETY: both are the test's.
        let count =
            unsafe { separate_pinned(&self.userfault, slot, second, len, |p| refused.push(p)) };
        assert_eq!(count, Ok(refused.len()));
        refused
    }

    /// Separates the area, and what refused again, until no page is pinned any more or a second
    /// has passed; returns the pages that refused last.
    fn separate_when_unpinned(&self) -> Vec<usize> {
        let mut refused = self.separate();
        for _ in 0..100 {
            if refused.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            refused = self.separate_staged(PAGES);
        }
        refused
    }

    /// Returns a page that refused from the slot to its own place in the area.
    fn put_back(&self, page: usize) {
        let (slot, area) = (self.slot.at(page), self.area.at(page));
        // SAFETY: the page's own place, missing.
        unsafe { restore_pinned(slot, area, &self.userfault, false) }.unwrap();
    }
}

#[test]
fn a_buffer_registered_for_direct_io_is_reported_and_takes_the_devices_data_after_going_back() {
    let Some(set) = Setting::new() else { return };
    (0..PAGES)
        .filter(|p| p % 2 == 0)
        .for_each(|p| set.fill(p, p as u8 + 1));
    set.fill(7, 70);
    // Pins pages 6 and 7 for as long as the ring has them.
    let mut ring = match IoUring::new(4) {
        Ok(ring) => ring,
        Err(refused) => return skipped(&format!("io_uring: {refused}")),
    };
    let buffer = libc::iovec {
        iov_base: set.area.at(6) as *mut _,
        iov_len: 2 * PAGE,
    };
    // SAFETY: the area outlives the ring's use of it.
    unsafe { ring.submitter().register_buffers(&[buffer]) }.unwrap();

    assert_eq!(set.separate(), [6, 7]);
    for page in (0..PAGES).filter(|p| p % 2 == 0 && *p != 6) {
        assert_eq!(load(set.second.at(page)), page as u8 + 1);
    }
    assert_eq!(
        (
            load(set.slot.at(6)),
            load(set.slot.at(7)),
            load(set.slot.at(8))
        ),
        (7, 70, 0)
    );

    [6, 7].into_iter().for_each(|page| set.put_back(page));
    assert_eq!((load(set.area.at(6)), load(set.area.at(7))), (7, 70));
    assert!(!kernel_reads(set.area.at(5)) && !kernel_reads(set.area.at(8)));
    // The slot is still mapped, and empty.
    assert_eq!((load(set.slot.at(6)), load(set.slot.at(7))), (0, 0));

    // The program reads what the device writes now.
    read_into_buffer(&mut ring, set.area.at(6), &[0xDD; 2 * PAGE]);
    assert_eq!(
        (load(set.area.at(6)), load(set.area.at(7) + PAGE - 1)),
        (0xDD, 0xDD)
    );

    // Once unpinned they move like the others.
    ring.submitter().unregister_buffers().unwrap();
    // SAFETY: checked above.
    unsafe { discard(set.second.at(0), PAGES * PAGE) }.unwrap();
    // The ring releases its buffers a little later.
    assert_eq!(set.separate_when_unpinned(), []);
    assert_eq!(
        (load(set.second.at(6)), load(set.second.at(7))),
        (0xDD, 0xDD)
    );
}

/// Has a device write `contents` to the first registered buffer, which is at `to`.
fn read_into_buffer(ring: &mut IoUring, to: usize, contents: &[u8]) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(contents).unwrap();
    let (fd, len) = (types::Fd(file.as_raw_fd()), contents.len() as u32);
    let read = opcode::ReadFixed::new(fd, to as *mut u8, len, 0);
    // SAFETY: the registered buffer.
    unsafe { ring.submission().push(&read.build()) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().unwrap().result(), len as i32);
}

#[test]
fn a_failed_separation_reports_the_bytes_done() {
    for sparse in [false, true] {
        let Some(set) = Setting::new() else { return };
        (0..PAGES)
            .filter(|page| *page != 3)
            .for_each(|page| set.fill(page, page as u8 + 1));
        // A page at the destination blocks page 9.
        let other = page_of(99);
        (set.userfault
            .copy(set.second.at(9), other.as_ptr(), PAGE, Wake::No))
        .unwrap();
        let pagemap = Pagemap::open(&capabilities()).unwrap();
        let (from, to, len) = (set.slot.at(0), set.second.at(0), PAGES * PAGE);
        // SAFETY: all three are the test's.
        let outcome = unsafe {
            stage(set.area.at(0), len, from).unwrap();
            match sparse {
                true => {
                    separate_pinned_sparse(&set.userfault, &pagemap, from, to, len, |_| panic!())
                }
                false => separate_pinned(&set.userfault, from, to, len, |_| panic!()),
            }
        };
        let done = 9 * PAGE;
        let error = MapError::Exists { done: 0 };
        assert!(
            matches!(outcome, Err(stop) if stop.done == done && matches!(stop.error, MapError::Exists { .. })),
            "{outcome:?}, not {error} after {done}"
        );
        for page in (0..PAGES).filter(|page| *page != 3) {
            let at = match page < 9 {
                true => set.second.at(page),
                false => set.slot.at(page),
            };
            assert_eq!(load(at), page as u8 + 1, "page {page}");
        }
    }
}

#[test]
fn sparse_separation_finds_the_same_pins() {
    let Some(set) = Setting::new() else { return };
    for page in [1, 2, 6, 7, 12] {
        set.fill(page, page as u8);
    }
    let ring = match IoUring::new(4) {
        Ok(ring) => ring,
        Err(refused) => return skipped(&format!("io_uring: {refused}")),
    };
    let buffers = [(2, 1), (7, 1)].map(|(page, pages)| libc::iovec {
        iov_base: set.area.at(page) as *mut _,
        iov_len: pages * PAGE,
    });
    // SAFETY: the area outlives the ring's use of it.
    unsafe { ring.submitter().register_buffers(&buffers) }.unwrap();
    assert_eq!(set.separate_sparse(), [2, 7]);
    assert_eq!([1, 6, 12].map(|p| load(set.second.at(p))), [1, 6, 12]);
    assert_eq!([2, 7].map(|p| load(set.slot.at(p))), [2, 7]);
}

#[test]
fn a_page_put_back_is_one_mapping_with_its_neighbours_again() {
    let Some(set) = Setting::new() else { return };
    (0..PAGES).for_each(|p| set.fill(p, p as u8));
    // SAFETY: the test's areas.
    unsafe {
        stage(set.area.at(0), PAGES * PAGE, set.slot.at(0)).unwrap();
        restore_pinned(set.slot.at(3), set.area.at(3), &set.userfault, false).unwrap();
        // One mapping: it stages whole again.
        let (third, len) = (Slot::new(PAGES), PAGES * PAGE);
        stage(set.area.at(0), len, third.at(0)).unwrap();
        assert_eq!((load(third.at(3)), load(third.at(4))), (3, 0));
        assert_eq!(load(set.slot.at(4)), 4);
    }
}

#[test]
fn holes_and_zero_pages_do_not_count_as_pinned() {
    let Some(set) = Setting::new() else { return };
    set.userfault
        .zero(set.area.at(0), 4 * PAGE, Wake::No)
        .unwrap();
    set.fill(9, 9);
    assert_eq!(set.separate(), []);
    assert_eq!((load(set.second.at(1)), load(set.second.at(9))), (0, 9));
    assert!(!kernel_reads(set.second.at(5)));
}

#[test]
fn a_page_shared_with_a_child_refuses_until_it_is_written_again() {
    let Some(set) = Setting::new() else { return };
    // Outside of this test the fork gate would be closed here.
    (0..3).for_each(|p| set.fill(p, p as u8 + 1));
    assert_eq!(in_child(|| 0), End::Exit(0));
    // SAFETY: the test's areas; a store to a page ends its sharing.
    store(set.area.at(1), 20);
    assert_eq!(set.separate(), [0, 2]);
    assert_eq!(
        (
            load(set.second.at(1)),
            load(set.slot.at(0)),
            load(set.slot.at(2))
        ),
        (20, 1, 3)
    );
    // A store in the slot gives the process its own copy of the page, which then moves.
    store(set.slot.at(0), 10);
    assert_eq!(set.separate_staged(1), []);
    assert_eq!(load(set.second.at(0)), 10);
}

#[test]
fn a_read_by_direct_io_in_flight_is_never_lost() {
    let Some(set) = Setting::new() else { return };
    let direct = match direct_file(&[0xEE; PAGES * PAGE]) {
        Ok(direct) => direct,
        Err(refused) => return skipped(&format!("O_DIRECT: {refused}")),
    };
    let mut ring = match IoUring::new(PAGES as u32) {
        Ok(ring) => ring,
        Err(refused) => return skipped(&format!("io_uring: {refused}")),
    };
    let mut pinned = 0;
    for _ in 0..200 {
        (0..PAGES).for_each(|p| set.fill(p, 0x11));
        let len = (PAGES * PAGE) as u32;
        let read = opcode::Read::new(
            types::Fd(direct.as_raw_fd()),
            set.area.at(0) as *mut u8,
            len,
        );
        // SAFETY: the buffer stays mapped until the completion, if not present.
        unsafe { ring.submission().push(&read.build()) }.unwrap();
        ring.submit().unwrap();
        let refused = set.separate();
        pinned += refused.len();
        refused.iter().for_each(|page| set.put_back(*page));
        // The other pages were complete, or the read no longer uses them.
        for page in (0..PAGES).filter(|p| !refused.contains(p)) {
            set.userfault
                .copy(
                    set.area.at(page),
                    set.second.at(page) as *const u8,
                    PAGE,
                    Wake::No,
                )
                .unwrap();
        }
        ring.submit_and_wait(1).unwrap();
        let result = ring.completion().next().unwrap().result();
        // A read that has not pinned its buffer yet finds it missing: upcalls serve no system call.
        // It fails with EFAULT and has written nothing that could be lost.
        assert!([len as i32, -libc::EFAULT].contains(&result), "{result}");
        let expected = if result < 0 { 0x11 } else { 0xEE };
        for page in 0..PAGES {
            assert_eq!(
                (load(set.area.at(page)), load(set.area.at(page) + PAGE - 1)),
                (expected, expected)
            );
        }
        // SAFETY: the test's memory.
        unsafe {
            discard(set.area.at(0), PAGES * PAGE).unwrap();
            discard(set.second.at(0), PAGES * PAGE).unwrap();
        }
    }
    eprintln!("met {pinned} pinned pages");
}

/// A file of these contents without a name, opened for direct I/O where its file system can.
fn direct_file(contents: &[u8]) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let directory = std::env::var_os("CARGO_TARGET_TMPDIR")
        .unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let mut file = tempfile::NamedTempFile::new_in(directory).unwrap();
    file.write_all(contents).unwrap();
    file.as_file().sync_all().unwrap();
    std::fs::File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(file.path())
}

#[test]
fn without_move_nothing_is_separated_and_nothing_may_be_evicted_under_direct_io() {
    let without = capabilities().without(Feature::Move);
    assert!(!without.may_evict(true) && without.may_evict(false));
    let userfault = Userfault::open(EntryKind::Upcall, &without).unwrap();
    // SAFETY: refused before anything is touched.
    let refused = unsafe { separate_pinned(&userfault, 0, 0, PAGE, |_| {}) };
    assert!(matches!(refused, Err(stop) if matches!(stop.error, MapError::Other { .. })));
    assert!(!Capabilities::NONE.may_evict(true));
}
