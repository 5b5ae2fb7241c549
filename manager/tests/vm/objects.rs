//! Snapshots in an object store: guests have what they read, and a part that cannot be fetched is an error of its pages.

use crate::Test;
use crate::common::{Service, await_that, make_cache, make_snapshot, mib};
use crate::guest::PAGE;
use crate::kept_service::KeptService;
use manager::server::ManagerConfig;
use manager::snapshot::{Snapshot, SnapshotSource};
use std::path::Path;
use std::time::Duration;

pub const TESTS: &[Test] = &[
    (
        "a_guest_reads_a_snapshot_of_a_store",
        a_guest_reads_a_snapshot_of_a_store,
    ),
    (
        "a_working_set_is_fetched_before_it_is_replayed",
        a_working_set_is_fetched_before_it_is_replayed,
    ),
    (
        "guests_of_one_object_are_served_at_once",
        guests_of_one_object_are_served_at_once,
    ),
    (
        "a_part_that_the_store_has_not_is_an_error_of_its_pages",
        a_part_that_the_store_has_not_is_an_error_of_its_pages,
    ),
    (
        "killed_managers_of_an_object_lose_nothing",
        killed_managers_of_an_object_lose_nothing,
    ),
];

/// Pages of a chunk.
const CHUNK: usize = 128;

/// The snapshot of a URL, with its local file in `folder`.
pub fn fetched(url: &str, folder: &Path) -> Snapshot {
    match url.parse().expect("a URL") {
        SnapshotSource::Object(object) => Snapshot::of_object(&object, folder, &[]),
        SnapshotSource::File(path) => Snapshot::open(&path, &[]),
    }
    .expect("a snapshot")
}

/// Serves an object of `pages` pages in a store of this machine.
fn start(pages: usize, change: impl FnOnce(&mut ManagerConfig)) -> Service {
    let folder = tempfile::tempdir().expect("a folder");
    let path = make_snapshot(folder.path(), pages);
    let snapshot = fetched(&url(&path), folder.path());
    Service::over(folder, &path, |config| {
        config.snapshot = Some(snapshot);
        change(config);
    })
}

fn url(path: &Path) -> String {
    format!("opendal:fs://{}", path.display())
}

fn a_guest_reads_a_snapshot_of_a_store() {
    // The last chunk is not whole.
    let pages = mib(16) + 3;
    let folder = tempfile::tempdir().unwrap();
    let path = make_snapshot(folder.path(), pages);
    let (cache_path, cache) = make_cache(&path);
    let snapshot = fetched(&url(&path), folder.path());
    let service = Service::over(folder, &path, |config| {
        config.snapshot = Some(snapshot);
        config.cache = Some(cache);
    });
    for kind in ["private", "memfd", &cache_path.kind()] {
        let mut guest = service.guest(kind, pages * PAGE);
        assert_eq!(guest.wrong("random 3 500"), 0, "{kind}");
        guest.run("write 5 10 7");
        assert_eq!(guest.wrong("verify 5 10 7"), 0, "{kind}");
        guest.run("remove 600 200");
        assert_eq!(guest.wrong("zeros 600 200"), 0, "{kind}");
        let rest = pages - 800;
        assert_eq!(guest.wrong(&format!("verify 800 {rest} 0")), 0, "{kind}");
    }
    service.await_no_clients();
}

fn a_working_set_is_fetched_before_it_is_replayed() {
    let pages = mib(32);
    let service = start(pages, |config| config.uses_working_set = true);
    let mut first = service.guest("private", pages * PAGE);
    assert_eq!(first.wrong("random 1 2000"), 0);
    let demand = service.counters(1).demand_pages.get();
    drop(first);
    service.await_no_clients();
    let Service { folder, .. } = &service;
    // As on another machine, which has none of it yet.
    let snapshot = fetched(&url(&folder.path().join("snapshot.mem")), folder.path());
    let other = folder.path().join("other");
    let other = ManagerConfig {
        socket: other,
        snapshot: Some(snapshot),
        size: 0,
        contract: None,
        disk: ManagerConfig::equal_share(),
        uses_working_set: true,
        cache: None,
        most_clients: 4,
        most_clients_of_a_user: usize::MAX,
        patience: Duration::from_secs(5),
    };
    let socket = other.socket.clone();
    let other = manager::server::Manager::start(other).unwrap();
    let mut second = crate::common::Guest::start("private", &socket, pages * PAGE);
    let counters = || other.clients().first().cloned().map(|it| it.counters);
    await_that("the set is replayed", || {
        counters().is_some_and(|it| it.replayed_pages.get() * 10 >= demand * 9)
    });
    assert_eq!(second.wrong("random 1 2000"), 0);
    let again = counters().unwrap().demand_pages.get();
    assert!(again * 10 <= demand, "{again} of {demand} pages on demand");
    drop(second);
    other.stop();
}

fn guests_of_one_object_are_served_at_once() {
    let pages = mib(24);
    let service = start(pages, |_| {});
    let mut guests: Vec<_> = (0..8)
        .map(|_| service.guest("private", pages * PAGE))
        .collect();
    for (number, guest) in guests.iter_mut().enumerate() {
        guest.begin(&format!("random {number} 3000"));
    }
    for guest in &mut guests {
        assert_eq!(guest.finish(), "0");
    }
}

fn a_part_that_the_store_has_not_is_an_error_of_its_pages() {
    let pages = mib(8);
    let service = start(pages, |_| {});
    let object = service.folder.path().join("snapshot.mem");
    let away = service.folder.path().join("away");
    let mut guest = service.guest("private", pages * PAGE);
    assert_eq!(guest.wrong(&format!("verify 0 {CHUNK} 0")), 0);
    std::fs::rename(&object, &away).unwrap();
    // What was fetched is there.
    assert_eq!(guest.wrong(&format!("verify 0 {CHUNK} 0")), 0);
    guest.begin(&format!("verify {CHUNK} 1 0"));
    assert_eq!(guest.signal(), Some(libc::SIGBUS));
    std::fs::rename(&away, &object).unwrap();
    // Another guest's pages are not lost with it.
    let mut guest = service.guest("private", pages * PAGE);
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0);
}

fn killed_managers_of_an_object_lose_nothing() {
    let pages = mib(16);
    let service = KeptService::start_of_object(pages);
    let mut guest = service.guest("memfd", pages * PAGE);
    await_that("the guest is admitted", || {
        service.clients().is_some_and(|clients| !clients.is_empty())
    });
    let mut last = 0;
    for part in 0..8 {
        let from = part * pages / 8;
        guest.begin(&format!("verify {from} {} 0", pages / 8));
        last = service.kill_manager(last);
        assert_eq!(guest.finish(), "0");
    }
    assert_eq!(service.counter("lost_pages"), 0);
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0);
}
