//! Saves of guests that run: each is the memory of one moment.

use crate::Test;
use crate::common::{Guest, Service, await_that, make_cache, make_snapshot, mib};
use crate::guest::kind::LOADED;
use crate::guest::{PAGE, page_bytes, word};
use manager::control::{ControlReply, ControlRequest, request};
use manager::save::SaveEvent;
use manager::snapshot::Snapshot;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub const TESTS: &[Test] = &[
    (
        "a_save_is_the_memory_of_one_moment",
        a_save_is_the_memory_of_one_moment,
    ),
    (
        "a_save_holds_what_differs_and_nothing_else",
        a_save_holds_what_differs_and_nothing_else,
    ),
    (
        "a_save_finds_pages_of_the_cache_that_the_kernel_has_unmapped",
        a_save_finds_pages_of_the_cache_that_the_kernel_has_unmapped,
    ),
    (
        "a_save_that_cannot_be_whole_leaves_no_file",
        a_save_that_cannot_be_whole_leaves_no_file,
    ),
    (
        "a_manager_that_is_stopped_completes_a_save_that_has_all_pages",
        a_manager_that_is_stopped_completes_a_save_that_has_all_pages,
    ),
    (
        "a_save_has_pages_that_were_written_after_they_were_freed",
        a_save_has_pages_that_were_written_after_they_were_freed,
    ),
    (
        "a_save_has_pages_from_before_the_hand_off",
        a_save_has_pages_from_before_the_hand_off,
    ),
    (
        "a_guest_goes_on_with_holes_of_its_snapshot_after_a_save",
        a_guest_goes_on_with_holes_of_its_snapshot_after_a_save,
    ),
    (
        "a_save_of_another_process_than_the_guest_fails",
        a_save_of_another_process_than_the_guest_fails,
    ),
];

/// Requests a save and runs `protected` when the guest may run again. Returns the last event.
fn save(service: &Service, client: u64, to: &Path, protected: impl FnOnce()) -> SaveEvent {
    let wanted = ControlRequest::Save {
        client,
        to: to.to_owned(),
    };
    let mut protected = Some(protected);
    // A guest is ready when it has sent its hand-off.
    service.counters(client);
    for reply in request(&service.socket(), &wanted).unwrap() {
        match reply.unwrap() {
            ControlReply::Save(SaveEvent::Protected { .. }) => protected.take().unwrap()(),
            ControlReply::Save(event) => return event,
            other => panic!("{other:?}"),
        }
    }
    panic!("no last event");
}

/// Saves the only client; the file is complete on return.
pub fn save_complete(service: &Service, to: &Path, protected: impl FnOnce()) {
    let event = save(service, 1, to, protected);
    assert!(matches!(event, SaveEvent::Saved { .. }), "{event:?}");
}

/// The snapshot with the data of the differential file over it.
pub fn merge(snapshot: &Path, differential: &Path) -> Vec<u8> {
    use rustix::fs::SeekFrom;
    let mut whole = std::fs::read(snapshot).unwrap();
    let file = std::fs::File::open(differential).unwrap();
    let data = std::fs::read(differential).unwrap();
    assert_eq!(data.len(), whole.len());
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        whole[start as usize..end as usize].copy_from_slice(&data[start as usize..end as usize]);
        at = end;
    }
    whole
}

fn a_save_is_the_memory_of_one_moment() {
    let pages = mib(16);
    for (kind, frames) in [
        ("private", None),
        ("cache", None),
        ("memfd", None),
        ("memfd", Some(mib(2))),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = make_snapshot(folder.path(), pages);
        let (path, cache) = make_cache(&snapshot);
        let service = Service::over(folder, &snapshot, |config| {
            config.cache = Some(cache);
            config.contract = frames.map(|frames| (frames, "ram:64M".parse().unwrap()));
        });
        let cache_kind = path.kind();
        let kind = if kind == "cache" { &cache_kind } else { kind };
        let mut guest = service.guest(kind, pages * PAGE);
        guest.run("sweep");
        for round in 0..3 {
            let to = service.folder.path().join(format!("differential-{round}"));
            let place = guest.run("pause");
            let event = save(&service, 1, &to, || drop(guest.run("resume")));
            assert!(
                matches!(event, SaveEvent::Saved { .. }),
                "{kind}: {event:?}"
            );
            check(
                &merge(&snapshot, &to),
                &place,
                &format!("{kind}, round {round}"),
            );
        }
    }
}

/// Every word is that of the sweep when it stood at `place`.
fn check(whole: &[u8], place: &str, what: &str) {
    let place: Vec<u64> = place.split(' ').map(|it| it.parse().unwrap()).collect();
    for (number, bytes) in whole.chunks(8).enumerate() {
        let (page, index) = (number / (PAGE / 8), number % (PAGE / 8));
        let is_before = (page as u64, index as u64) < (place[1], place[2]);
        let version = if is_before { place[0] } else { place[0] - 1 };
        let seen = u64::from_ne_bytes(bytes.try_into().unwrap());
        assert_eq!(
            seen,
            word(page, version, index),
            "{what}: page {page}, word {index}, at {place:?}"
        );
    }
}

fn a_save_holds_what_differs_and_nothing_else() {
    let pages = mib(8);
    let service = Service::start(pages, |_| {});
    let mut guest = service.guest("private", pages * PAGE);
    assert_eq!(guest.wrong("verify 0 500 0"), 0);
    guest.run("write 10 5 1");
    // Written with what was there, and discarded.
    guest.run("write 20 5 0");
    guest.run("remove 30 3");
    let to = service.folder.path().join("differential");
    match save(&service, 1, &to, || ()) {
        SaveEvent::Saved { pages, .. } => assert_eq!(pages, 8),
        event => panic!("{event:?}"),
    }
    let whole = merge(&service.folder.path().join("snapshot.mem"), &to);
    let page = |number: usize| &whole[number * PAGE..][..PAGE];
    assert_eq!(page(9), page_bytes(9));
    assert_eq!(page(10)[..8], word(10, 1, 0).to_ne_bytes());
    assert_eq!(page(31), [0; PAGE]);
    // The guest runs on, from the restored state too.
    assert_eq!(guest.wrong("verify 10 5 1"), 0);
    let base = service.folder.path().join("snapshot.mem");
    let restored = Snapshot::open(&base, std::slice::from_ref(&to)).unwrap();
    let second = Service::over(tempfile::tempdir().unwrap(), &base, |config| {
        config.snapshot = Some(restored);
    });
    let mut restored: Guest = second.guest("private", pages * PAGE);
    assert_eq!(restored.wrong("verify 10 5 1"), 0);
    assert_eq!(restored.wrong("zeros 30 3"), 0);
    assert_eq!(restored.wrong("verify 33 500 0"), 0);
}

/// As reclaim does on a host with swap. The thread that saves is that which answers the guest's faults.
fn a_save_finds_pages_of_the_cache_that_the_kernel_has_unmapped() {
    let pages = mib(8);
    let folder = tempfile::tempdir().unwrap();
    let snapshot = make_snapshot(folder.path(), pages);
    let (path, cache) = make_cache(&snapshot);
    let service = Service::over(folder, &snapshot, |config| config.cache = Some(cache));
    let mut guest = service.guest(&path.kind(), pages * PAGE);
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0);
    guest.run("write 10 5 1");
    guest.run("write 20 1 0");
    guest.run("page_out 0 512");
    let to = service.folder.path().join("differential");
    match save(&service, 1, &to, || drop(guest.run("page_out 256 512"))) {
        SaveEvent::Saved { pages, .. } => assert_eq!(pages, 5),
        event => panic!("{event:?}"),
    }
    let whole = merge(&snapshot, &to);
    assert_eq!(whole[9 * PAGE..][..PAGE], page_bytes(9));
    assert_eq!(whole[10 * PAGE..][..8], word(10, 1, 0).to_ne_bytes());
    assert_eq!(guest.wrong("verify 10 5 1"), 0);
    assert_eq!(guest.wrong(&format!("verify 15 {} 0", pages - 15)), 0);
}

fn a_save_of_another_process_than_the_guest_fails() {
    let pages = mib(1);
    let service = Service::start(pages, |_| {});
    let mut guest = service.guest("launched", pages * PAGE);
    guest.run(&format!("write 0 {pages} 1"));
    let to = service.folder.path().join("differential");
    match save(&service, 1, &to, || ()) {
        SaveEvent::Failed { why } => assert!(why.contains("handed the memory over"), "{why}"),
        event => panic!("{event:?}"),
    }
    assert!(!to.exists());
    guest.run(&format!("write 0 {pages} 2"));
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 2")), 0);
}

/// The kernel reports MADV_FREE as a discard, and a store cancels it without a fault.
fn a_save_has_pages_that_were_written_after_they_were_freed() {
    let pages = mib(1);
    let service = Service::start(pages, |_| {});
    let mut guest = service.guest("private", pages * PAGE);
    guest.run(&format!("write 0 {pages} 1"));
    guest.run("free 3 8");
    guest.run("write 3 4 2");
    let to = service.folder.path().join("differential");
    save_complete(&service, &to, || ());
    let whole = merge(&service.folder.path().join("snapshot.mem"), &to);
    for page in 0..7 {
        let version = if page < 3 { 1 } else { 2 };
        let first = word(page, version, 0).to_ne_bytes();
        assert_eq!(whole[page * PAGE..][..8], first, "page {page}");
    }
    assert_eq!(guest.wrong("verify 3 4 2"), 0);
}

fn a_save_has_pages_from_before_the_hand_off() {
    let pages = mib(1);
    for kind in ["loaded", "loaded-memfd"] {
        let service = Service::start(pages, |_| {});
        let mut guest = service.guest(kind, pages * PAGE);
        assert_eq!(guest.wrong(&format!("verify 0 {LOADED} 1")), 0);
        let to = service.folder.path().join("differential");
        save_complete(&service, &to, || ());
        let whole = merge(&service.folder.path().join("snapshot.mem"), &to);
        for page in 0..=LOADED {
            let version = u64::from(page < LOADED);
            let first = word(page, version, 0).to_ne_bytes();
            assert_eq!(whole[page * PAGE..][..8], first, "{kind}: page {page}");
        }
    }
}

/// The write protection of a save leaves markers where nothing is mapped.
fn a_guest_goes_on_with_holes_of_its_snapshot_after_a_save() {
    let pages = mib(4);
    let folder = tempfile::tempdir().unwrap();
    let snapshot = make_snapshot(folder.path(), pages);
    let half = (pages / 2 * PAGE) as u64;
    let file = std::fs::File::options()
        .write(true)
        .open(&snapshot)
        .unwrap();
    file.set_len(half).unwrap();
    file.set_len(2 * half).unwrap();
    let (path, cache) = make_cache(&snapshot);
    let service = Service::over(folder, &snapshot, |config| config.cache = Some(cache));
    let mut guest = service.guest(&path.kind(), pages * PAGE);
    guest.run("write 0 16 1");
    let to = service.folder.path().join("differential");
    let hole = pages / 2 + 7;
    save_complete(&service, &to, || {
        assert_eq!(guest.wrong(&format!("zeros {hole} 1")), 0);
    });
    assert_eq!(guest.wrong(&format!("zeros {} 99", pages - 99)), 0);
    assert_eq!(guest.wrong("verify 0 16 1"), 0);
}

fn a_save_that_cannot_be_whole_leaves_no_file() {
    let pages = mib(64);
    let service = Service::start(pages, |_| {});
    let mut guest = service.guest("private", pages * PAGE);
    guest.run(&format!("write 0 {pages} 1"));
    let to = service.folder.path().join("differential");
    // The last pages are discarded before they are saved; a save may be faster than the guest.
    let last = pages - 64;
    let has_failed = (0..100).any(|_| {
        guest.run(&format!("write {last} 64 1"));
        let discard = || drop(guest.run(&format!("remove {last} 64")));
        match save(&service, 1, &to, discard) {
            SaveEvent::Failed { why } => {
                assert!(why.contains("discarded"), "{why}");
                true
            }
            _ => {
                std::fs::remove_file(&to).unwrap();
                false
            }
        }
    });
    assert!(has_failed, "no save of 100 was overtaken by a discard");
    assert!(!to.exists());
    let left: Vec<_> = std::fs::read_dir(service.folder.path())
        .unwrap()
        .flatten()
        .collect();
    assert!(
        left.iter()
            .all(|it| !it.file_name().to_string_lossy().contains("part"))
    );
    guest.run(&format!("write 0 {pages} 2"));
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 2")), 0);
}

fn a_manager_that_is_stopped_completes_a_save_that_has_all_pages() {
    let pages = mib(64);
    let mut service = Service::start(pages, |_| {});
    let mut guest = service.guest("private", pages * PAGE);
    guest.run(&format!("write 0 {pages} 1"));
    let to = service.folder.path().join("differential");
    let wanted = ControlRequest::Save {
        client: 1,
        to: to.clone(),
    };
    let socket = service.socket();
    let replies = request(&socket, &wanted).unwrap();
    let part = service
        .folder
        .path()
        .join(format!("differential.part.{}", std::process::id()));
    // The disk has yet to take them.
    await_that("all pages are in the file", || {
        let part = std::fs::metadata(&part);
        to.exists() || part.is_ok_and(|part| part.blocks() * 512 >= (pages * PAGE) as u64)
    });
    service.server.take().unwrap().stop();
    assert!(!part.exists());
    let last = replies.last().unwrap().unwrap();
    let is_saved = matches!(last, ControlReply::Save(SaveEvent::Saved { .. }));
    assert_eq!(is_saved, to.exists(), "{last:?}");
}
