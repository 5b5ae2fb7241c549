//! The server's thread allocates nothing for requests of pages.

use selfpage_remote_server::Server;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[path = "server/common.rs"]
mod common;

/// Counts the allocations of the server's thread.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_SERVER: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_SERVER.try_with(Cell::get).unwrap_or(false) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
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
fn requests_of_pages_allocate_nothing() {
    let server = common::start(256);
    let client = common::Client::greeted(server.address(), common::incarnation(1, 1));
    measure(&server, client);
}

#[test]
fn requests_of_pages_over_a_link_with_keys_allocate_nothing() {
    let (_folder, keyring) = common::keyring();
    let server = common::start_keyed(256, &keyring);
    let link = common::keyed_link(server.address(), &keyring);
    let own = common::client_of(&keyring, 1, 1);
    let mut client = common::Client::over(link, own);
    client.hello().unwrap();
    measure(&server, client);
}

/// Counts what the server's thread allocates while a client reads, writes and discards.
fn measure(server: &Server, client: common::Client) {
    const ROUNDS: u64 = 3_000;
    // One at a time: all count in one place.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap();
    let (mut client, object) = client.and_object(256);
    server
        .handle()
        .with_issuer(|_| IS_SERVER.with(|is_server| is_server.set(true)));
    let mut round = |version: u64| {
        let first = version % 224;
        let pages = common::page(version as u8).repeat(32);
        client.write(object, first, version, &pages).unwrap();
        assert_eq!(client.read(object, first, 32).unwrap().0, [version; 32]);
        client.discard(object, first, 8).unwrap();
    };
    // The schedule's queues get their working size.
    (1..100).for_each(&mut round);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (100..100 + ROUNDS).for_each(round);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    // Timers allocate a little each second; requests would, thousands of times.
    assert!(
        allocations < ROUNDS / 10,
        "{allocations} in {} requests",
        3 * ROUNDS
    );
}
