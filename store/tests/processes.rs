//! A store shared by processes, some of them killed at random moments.

mod common;

use common::*;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{FdFlags, fcntl_setfd};
use std::process::{Child, Command};
use std::time::Duration;
use store::{HolderId, PageHandle, SharedStore, Store, StoreConfig, StoreError};

const HOLDERS: HolderId = 12;
/// A worker's second slot: forks of its pages, as a child would hold them.
const SHADOW: HolderId = 6;

fn inherit(fds: &[OwnedFd]) -> String {
    fds.iter()
        .for_each(|fd| fcntl_setfd(fd, FdFlags::empty()).unwrap());
    fds.iter()
        .map(|fd| fd.as_raw_fd().to_string())
        .collect::<Vec<_>>()
        .join(",")
}

/// Runs the test `name` of this file as a process of its own, as `holder`.
fn spawn(name: &str, fds: &str, holder: HolderId) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env("STORE_TEST_FDS", fds)
        .env("STORE_TEST_HOLDER", holder.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// The store that `spawn` passed, in the process it made.
fn joined() -> Option<(SharedStore, HolderId)> {
    let fds = std::env::var("STORE_TEST_FDS").ok()?;
    let holder = std::env::var("STORE_TEST_HOLDER").unwrap().parse().unwrap();
    let fds = fds
        .split(',')
        .map(|fd| fd.parse::<RawFd>().unwrap())
        // SAFETY: inherited for this.
        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
        .collect();
    Some((SharedStore::attach(fds, holder).unwrap(), holder))
}

/// A worker's endless loop: random operations, with a check of every read.
#[test]
fn worker() {
    let Some((store, holder)) = joined() else {
        return;
    };
    let mut channel = store.channel(8).unwrap();
    let mut rng = Rng::with_seed(u64::from(std::process::id()) << 8 | u64::from(holder));
    let mut held: Vec<(PageHandle, u64)> = Vec::new();
    let mut round = 0u64;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while std::time::Instant::now() < deadline {
        round += 1;
        let seeds: Vec<u64> = (0..1 + rng.u64(..40))
            .map(|at| u64::from(holder) << 48 | round << 8 | at)
            .collect();
        let contents: Vec<Page> = seeds.iter().map(|&seed| page(seed)).collect();
        for (seed, result) in seeds.iter().zip(write(&mut *channel, &contents)) {
            match result {
                Ok(handle) => held.push((handle, *seed)),
                Err(error) => assert_eq!(error, StoreError::Full),
            }
        }
        for _ in 0..held.len().min(10) {
            let (handle, seed) = held[rng.usize(..held.len())];
            assert!(
                read(&mut *channel, handle).unwrap() == page(seed),
                "wrong data"
            );
        }
        if rng.u64(..4) == 0 {
            store.adopt_fork(holder, holder + SHADOW);
        }
        let keep = 20 + rng.usize(..100);
        while held.len() > keep {
            let (handle, _) = held.swap_remove(rng.usize(..held.len()));
            store.discard(holder, &[handle]);
        }
    }
}

fn massacre(config: &str, kills: usize) {
    let config: StoreConfig = config.parse().unwrap();
    let (store, fds) = SharedStore::create(&config, HOLDERS).unwrap();
    let names = inherit(&fds);
    let mut channel = store.channel(4).unwrap();
    let contents: Vec<Page> = (0..30).map(page).collect();
    let mine: Vec<(PageHandle, &Page)> = write(&mut *channel, &contents)
        .into_iter()
        .zip(&contents)
        .map(|(result, page)| (result.unwrap(), page))
        .collect();
    let mut workers: Vec<Child> = (1..=4).map(|slot| spawn("worker", &names, slot)).collect();
    let mut rng = Rng::with_seed(12345);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(15_000 + rng.u64(..40_000)));
        let victim = rng.usize(..4);
        let slot = victim as HolderId + 1;
        end(&mut workers[victim]);
        retire(&store, slot);
        workers[victim] = spawn("worker", &names, slot);
        for (handle, page) in &mine {
            assert!(read(&mut *channel, *handle).unwrap() == **page);
        }
    }
    for worker in &mut workers {
        end(worker);
    }
    // A holder in the middle of an operation may delay another: repeats until all are retired.
    for _ in 0..4 {
        (1..HOLDERS).for_each(|slot| {
            store.retire(slot);
        });
    }
    (1..HOLDERS).for_each(|slot| assert!(store.retire(slot)));
    let usage = store.usage();
    assert_eq!(pages(&store), mine.len() as u64, "{usage:?}");
    assert_eq!(usage.holds, mine.len() as u64, "{usage:?}");
    assert_eq!(usage.disk_used, usage.pages_disk * PAGE as u64, "{usage:?}");
    assert_eq!(usage.mismatches, 0);
    for (handle, page) in mine {
        assert!(read(&mut *channel, handle).unwrap() == *page);
        store.discard(0, &[handle]);
    }
    drop(channel);
    store.retire(0);
    // Every blok and every byte is usable again.
    let usage = store.usage();
    assert_eq!((usage.ram_used, usage.disk_used), (0, 0));
    if config.ram.is_none() {
        let mut channel = store.channel(4).unwrap();
        let bloks = (usage.disk_limit / PAGE as u64) as usize;
        let noise: Vec<Page> = (0..)
            .filter(|&s| kind(s) == 1)
            .map(page)
            .take(bloks)
            .collect();
        assert!(write(&mut *channel, &noise).iter().all(Result::is_ok));
    }
}

/// The kind of `page` that a seed makes.
fn kind(seed: u64) -> u64 {
    Rng::with_seed(seed).u64(..8)
}

fn end(worker: &mut Child) {
    worker.kill().unwrap();
    let status = worker.wait().unwrap();
    assert_eq!(status.code(), None, "a worker exited by itself: {status}");
}

fn retire(store: &SharedStore, slot: HolderId) {
    // The shadow first or last: both belong to the dead process.
    for slot in [slot, slot + SHADOW, slot] {
        store.retire(slot);
    }
    assert!(store.retire(slot) && store.retire(slot + SHADOW));
}

#[test]
fn killed_processes_give_everything_back_to_ram() {
    if joined().is_none() {
        massacre("ram:1M", 40);
    }
}

#[test]
fn killed_processes_give_everything_back_to_the_disk() {
    if joined().is_none() {
        massacre("disk:processes-swap,size=2M", 40);
    }
}

#[test]
fn killed_processes_give_everything_back_to_the_tier() {
    if joined().is_none() {
        massacre("ram:512K+disk:processes-swap,size=1M", 40);
    }
}

#[test]
fn a_fork_shares_pages_and_its_copy_of_the_channel_does_no_harm() {
    let store = make("ram:256K+disk:processes-swap,size=4M", 3);
    store.set_holder(1).unwrap();
    let mut channel = store.channel(4).unwrap();
    let contents: Vec<Page> = (0..300).map(page).collect();
    let handles: Vec<PageHandle> = write(&mut *channel, &contents)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    store.adopt_fork(1, 2);
    assert_eq!(store.usage().holds, 600);
    // SAFETY: the child does what a pager's would: new channels, no locks, _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(channel);
            store.set_holder(2).unwrap();
            let mut channel = store.channel(4).unwrap();
            for (handle, page) in handles.iter().zip(&contents) {
                assert!(read(&mut *channel, *handle).unwrap() == *page);
            }
            store.discard(2, &handles);
        }));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(fine.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    assert!(store.retire(2));
    assert_eq!(store.usage().holds, 300);
    for (handle, page) in handles.iter().zip(&contents) {
        assert!(read(&mut *channel, *handle).unwrap() == *page);
    }
}

#[test]
fn descriptors_of_no_store_are_refused() {
    let file = tempfile::tempfile().unwrap();
    assert!(SharedStore::attach(vec![file.into()], 0).is_err());
    assert!(SharedStore::attach(vec![], 0).is_err());
    let (_store, fds) = SharedStore::create(&"ram:1M".parse().unwrap(), 4).unwrap();
    let error = SharedStore::attach(fds, 4).err().unwrap();
    assert!(error.to_string().contains("past the last slot"), "{error}");
}
