//! A store's only process is killed at random moments, and each time another one goes on with the pages that it noted.

mod common;

use common::*;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{PageHandle, SharedStore, Store, StoreConfig};
use wired::WiredMemory;

/// Pages that a process has noted at once.
const NOTES: usize = 400;

/// The notes: the handle of a page, and its seed above.
fn notes(memory: &WiredMemory) -> &[AtomicU64] {
    memory.slice(0, NOTES)
}

fn noted(word: &AtomicU64) -> Option<(PageHandle, u64)> {
    let word = word.load(Ordering::Acquire);
    PageHandle::new(word as u32).map(|handle| (handle, word >> 32))
}

/// Goes on with the store behind `fds`, and checks that it has what was noted and nothing else.
fn resume(config: &StoreConfig, fds: &[OwnedFd], memory: &WiredMemory) -> SharedStore {
    let copies = fds.iter().map(|fd| fcntl_dupfd_cloexec(fd, 0).unwrap());
    let held: Vec<_> = notes(memory).iter().filter_map(noted).collect();
    let is_kept = |handle| held.iter().any(|(kept, _)| *kept == handle);
    let store = SharedStore::resume(config, copies.collect(), &is_kept).unwrap();
    let mut channel = store.channel(8).unwrap();
    for (handle, seed) in &held {
        assert!(store.is_held(*handle));
        assert!(
            read(&mut *channel, *handle).unwrap() == page(*seed),
            "wrong data"
        );
    }
    let usage = store.usage();
    assert_eq!(pages(&store), held.len() as u64, "{usage:?}");
    assert_eq!(usage.holds, held.len() as u64, "{usage:?}");
    assert_eq!(usage.disk_used, usage.pages_disk * PAGE as u64, "{usage:?}");
    drop(channel);
    store
}

/// The process that is killed: writes pages, notes them, then discards those that they replace.
#[test]
fn worker() {
    let Ok(fds) = std::env::var("STORE_TEST_FDS") else {
        return;
    };
    let config: StoreConfig = std::env::var("STORE_TEST_CONFIG").unwrap().parse().unwrap();
    let mut fds: Vec<OwnedFd> = (fds.split(',').map(|fd| fd.parse::<RawFd>().unwrap()))
        // SAFETY: inherited for this.
        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
        .collect();
    let memory = WiredMemory::attach(fds.remove(0), NOTES * 8).unwrap();
    let store = resume(&config, &fds, &memory);
    store.grow_ahead().unwrap();
    let mut channel = store.channel(8).unwrap();
    let mut rng = Rng::with_seed(u64::from(std::process::id()));
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while std::time::Instant::now() < deadline {
        let seeds: Vec<u64> = (0..1 + rng.usize(..40))
            .map(|_| rng.u64(..1 << 31))
            .collect();
        let contents: Vec<Page> = seeds.iter().map(|&seed| page(seed)).collect();
        for (seed, result) in seeds.iter().zip(write(&mut *channel, &contents)) {
            let Ok(handle) = result else { continue };
            let note = &notes(&memory)[rng.usize(..NOTES)];
            let was = noted(note);
            note.store(seed << 32 | u64::from(handle.get()), Ordering::Release);
            if let Some((handle, _)) = was {
                store.discard(0, &[handle]);
            }
        }
    }
}

fn spawn(config: &str, fds: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
        .env("STORE_TEST_FDS", fds)
        .env("STORE_TEST_CONFIG", config)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

fn kill_again_and_again(text: &str, kills: usize) {
    if std::env::var("STORE_TEST_FDS").is_ok() {
        return;
    }
    let config: StoreConfig = text.parse().unwrap();
    let (store, fds) = SharedStore::create(&config, 1).unwrap();
    drop(store);
    let (memory, notes_fd) = WiredMemory::shared(NOTES * 8, "notes").unwrap();
    let all = std::iter::once(&notes_fd).chain(&fds);
    let numbers: Vec<_> = all
        .inspect(|fd| fcntl_setfd(fd, FdFlags::empty()).unwrap())
        .map(|fd| fd.as_raw_fd().to_string())
        .collect();
    let mut rng = Rng::with_seed(4711);
    for _ in 0..kills {
        let mut worker = spawn(text, &numbers.join(","));
        std::thread::sleep(Duration::from_micros(10_000 + rng.u64(..40_000)));
        worker.kill().unwrap();
        let status = worker.wait().unwrap();
        assert_eq!(status.code(), None, "a worker exited by itself: {status}");
    }
    drop(resume(&config, &fds, &memory));
    assert!(notes(&memory).iter().filter_map(noted).count() > 0);
}

#[test]
fn a_killed_owner_loses_no_noted_page_of_ram() {
    kill_again_and_again("ram:1M", 30);
}

#[test]
fn a_killed_owner_loses_no_noted_page_of_the_disk() {
    kill_again_and_again("disk:resume-swap,size=2M", 30);
}

#[test]
fn a_killed_owner_loses_no_noted_page_of_the_tier() {
    kill_again_and_again("ram:512K+disk:resume-swap,size=1M", 30);
}
