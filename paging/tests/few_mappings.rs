//! A program with as many mappings as the kernel lets it have (`vm.max_map_count`). A program
//! of its own: no other test can map anything meanwhile.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own mapping")]

use io_uring::{IoUring, opcode, types};
use selfpage::{Capabilities, Counter, DirectIo, Domain, Feature, Paged, Stretch};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

const PAGE: usize = 4096;
const PAGES: usize = 1024;
const HELD: usize = 16;

/// Mappings that do not merge: every second page has other rights.
struct Hoard {
    base: *mut libc::c_void,
    pages: usize,
    split: usize,
}

impl Hoard {
    fn new(pages: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                pages * PAGE,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self {
            base,
            pages,
            split: 0,
        }
    }

    fn set(&self, n: usize, rights: i32) -> bool {
        let page = self.base.wrapping_byte_add((2 * n + 1) * PAGE);
        unsafe { libc::mprotect(page, PAGE, rights) == 0 }
    }

    /// Splits until the kernel refuses.
    fn fill(&mut self) {
        while self.split < self.pages / 2 - 1 && self.set(self.split, libc::PROT_READ) {
            self.split += 1;
        }
        assert!(self.split < self.pages / 2 - 1, "the kernel has no limit");
    }

    /// Gives up `count` splits, of two mappings each.
    fn give(&mut self, count: usize) {
        for _ in 0..count {
            self.split -= 1;
            assert!(self.set(self.split, libc::PROT_NONE));
        }
    }
}

impl Drop for Hoard {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.base, self.pages * PAGE) };
    }
}

/// Whatever room for mappings is left, pages are evicted and come back, and what a device writes
/// into pages that it holds is in them.
#[test]
fn pages_are_kept_at_any_distance_from_the_limit_of_mappings() {
    if !Capabilities::probe_fast().has(Feature::Move) {
        println!("SKIPPED: this kernel has no UFFDIO_MOVE");
        return;
    }
    let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    if limit > 1 << 20 {
        println!("SKIPPED: vm.max_map_count is {limit}");
        return;
    }
    let mut file = tempfile::tempfile().unwrap();
    for page in 0..HELD {
        file.write_all(&vec![0xa0 + page as u8; PAGE]).unwrap();
    }
    for left in 0..8 {
        at_distance(&file, limit, left);
    }
}

/// Pages that a device holds, among others, so that each is put back between pages that leave.
fn held(n: usize) -> usize {
    3 * n + 1
}

fn byte(stretch: &Stretch, page: usize) -> *mut u8 {
    unsafe { stretch.as_ptr().add(page * PAGE + 8) }
}

/// Writes and reads all pages that no device holds, three times, with so many mappings left.
/// Returns what keeps the others.
fn page_near_the_limit(stretch: &Stretch, limit: usize, left: usize) -> Hoard {
    // The first eviction makes what the later ones have in reserve.
    (0..PAGES).for_each(|page| unsafe { byte(stretch, page).write_volatile(0) });
    let mut hoard = Hoard::new(2 * limit);
    hoard.fill();
    hoard.give(left);
    for round in 0..3u8 {
        for page in (0..PAGES).filter(|page| page % 3 != 1 || *page >= 3 * HELD) {
            unsafe { byte(stretch, page).write_volatile(round ^ page as u8) };
        }
        for page in (0..PAGES).filter(|page| page % 3 != 1 || *page >= 3 * HELD) {
            let found = unsafe { byte(stretch, page).read_volatile() };
            let expected = round ^ page as u8;
            assert_eq!(found, expected, "page {page}, {left} from the limit");
        }
    }
    hoard
}

fn at_distance(file: &File, limit: usize, left: usize) {
    let domain = Domain::builder()
        .frames(128)
        .store("ram:64M".parse().unwrap())
        .direct_io(DirectIo::Anytime)
        .build()
        .unwrap();
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let mut ring = match IoUring::new(HELD as u32) {
        Ok(ring) => ring,
        Err(refused) => {
            println!("SKIPPED: io_uring: {refused}");
            return;
        }
    };
    let buffers: Vec<_> = (0..HELD)
        .map(|n| {
            stretch
                .populate(held(n) * PAGE..(held(n) + 1) * PAGE)
                .unwrap();
            libc::iovec {
                iov_base: unsafe { stretch.as_ptr().add(held(n) * PAGE) }.cast(),
                iov_len: PAGE,
            }
        })
        .collect();
    unsafe { ring.submitter().register_buffers(&buffers) }.unwrap();

    let _hoard = page_near_the_limit(&stretch, limit, left);
    for (n, buffer) in buffers.iter().enumerate() {
        let into = buffer.iov_base.cast();
        let read = opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), into, PAGE as u32, n as u16);
        let entry = read.offset((n * PAGE) as u64).build();
        unsafe { ring.submission().push(&entry) }.unwrap();
    }
    ring.submit_and_wait(HELD).unwrap();
    assert!(ring.completion().all(|done| done.result() == PAGE as i32));
    for n in 0..HELD {
        let found = unsafe { byte(&stretch, held(n)).read_volatile() };
        assert_eq!(
            found,
            0xa0 + n as u8,
            "held page {n}, {left} from the limit"
        );
    }
    assert!(
        domain.counters().get(Counter::DmaPinnedSkips) > 0,
        "no page was found held"
    );
    assert!(
        domain.counters().get(Counter::Staged) > 0,
        "nothing was evicted"
    );
}
