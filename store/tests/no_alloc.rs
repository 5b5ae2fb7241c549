//! The page path allocates nothing on the heap.

mod common;

use common::system::{self, behind_channels};
use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use store::{PageHandle, Store, Submitted, Wait, WritePage};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// True while this thread's allocations count: the test harness has threads of its own.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if COUNTED.get() {
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

#[test]
fn moving_pages_allocates_nothing() {
    let system = system::System::new(2 << 20);
    for store in [
        make("ram:512K", 2),
        make("disk:alloc-swap,size=2M", 2),
        make("ram:256K+disk:alloc-swap,size=2M", 2),
        behind_channels(&system, None, 2),
        behind_channels(&system, Some(256 << 10), 2),
    ] {
        let mut channel = store.channel(8).unwrap();
        let contents: Vec<Page> = (0..200).map(page).collect();
        let writes: Vec<WritePage> = (0..)
            .zip(&contents)
            .map(|(token, page)| WritePage {
                from: page.0.as_ptr(),
                sum: page.sum(),
                token,
            })
            .collect();
        let mut handles: Vec<PageHandle> = Vec::with_capacity(writes.len());
        let mut back = Box::new(page(0));
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        COUNTED.set(true);
        for _ in 0..10 {
            channel.submit_write(&writes).unwrap();
            while channel.pending() > 0 {
                handles.extend(channel.complete(Wait::Yes).unwrap().result.ok().flatten());
            }
            for &handle in &handles {
                if channel
                    .submit_read(read_page(handle, &mut back, 0))
                    .unwrap()
                    == Submitted::Pending
                {
                    channel.complete(Wait::Yes).unwrap().result.unwrap();
                }
            }
            store.discard(0, &handles);
            handles.clear();
        }
        COUNTED.set(false);
        let allocations = ALLOCATIONS.load(Ordering::SeqCst) - before;
        assert_eq!(allocations, 0, "{}", store.describe());
        assert!(store.usage().written > 1000);
    }
}
