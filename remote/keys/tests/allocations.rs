//! A stream with keys allocates nothing for what crosses it.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Of each thread: that of the test's harness allocates now and then.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn pages_cross_a_stream_without_an_allocation() {
    let (client, server) = common::configs();
    let (mut near, mut far) = common::establish(&client, &server, &[]).unwrap();
    let page = [7; 4176];
    let mut received = [0; 4176];
    let mut round = || {
        common::write_all(&mut near, &page);
        let mut len = 0;
        while len < page.len() {
            len += far.read(&mut received[len..]).unwrap();
        }
        assert_eq!(received, page);
    };
    // The queue between them gets its size.
    round();
    let before = ALLOCATIONS.get();
    (0..1000).for_each(|_| round());
    assert_eq!(ALLOCATIONS.get(), before);
}
