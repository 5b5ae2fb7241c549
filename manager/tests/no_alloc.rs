//! The page path allocates nothing: a client pages while every allocation of this process is counted.

// Shared with the other tests, which use more of it.
#[allow(dead_code)]
#[path = "vm/common.rs"]
mod common;
#[allow(dead_code)]
#[path = "vm/guest.rs"]
mod guest;

use common::{Service, mib};
use guest::PAGE;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Set while this thread itself allocates nothing.
static COUNTS: AtomicBool = AtomicBool::new(false);

fn count() {
    if COUNTS.load(Ordering::SeqCst) {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|it| it == "guest") {
        return guest::main(&args[2..]);
    }
    let disk = tempfile::tempdir().expect("a folder");
    let pages = mib(8);
    for store in [
        "ram:32M".to_owned(),
        format!("disk:{},size=32M", disk.path().display()),
    ] {
        let service = Service::start(pages, |config| {
            config.contract = Some((mib(2), store.parse().expect("a store")));
            config.uses_working_set = true;
        });
        let mut guest = service.guest("memfd", pages * PAGE);
        let counters = service.counters(1);
        // Once without counting: queues reach their working size, and the first page that is written opens the disk.
        assert_eq!(guest.wrong("storm 4 200"), 0);
        assert_eq!(guest.run(&format!("write 0 {pages} 2")), "written");
        let before = counters.evicted_pages.get();
        let command = format!("write 0 {pages} 3");
        guest.begin(&command);
        COUNTS.store(true, Ordering::SeqCst);
        let wanted = before + pages as u64 / 2;
        // The test thread only sleeps meanwhile.
        common::await_that("the client pages", || counters.evicted_pages.get() > wanted);
        COUNTS.store(false, Ordering::SeqCst);
        assert_eq!(guest.finish(), "written");
        let allocations = ALLOCATIONS.swap(0, Ordering::SeqCst);
        assert_eq!(allocations, 0, "{store}: allocations on the page path");
        println!("test {store}: no allocation while half of the client was evicted ... ok");
    }
}
