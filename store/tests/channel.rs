//! Stores on the daemon's disk, behind IO channels.

mod common;

use common::model::{HOLDERS, run, step};
use common::system::{System, behind_channels};
use common::*;
use proptest::prelude::*;
use store::{
    DiskConfig, DiskOp, FaultPlan, InjectedFault, PageHandle, PageLocation, Store, StoreConfig,
    StoreError,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn every_holder_reads_what_it_wrote_on_the_daemons_disk(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let system = System::new(1 << 20);
        run(&behind_channels(&system, None, HOLDERS), steps);
    }

    #[test]
    fn every_holder_reads_what_it_wrote_in_ram_above_the_daemons_disk(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let system = System::new(512 << 10);
        run(&behind_channels(&system, Some(256 << 10), HOLDERS), steps);
    }
}

fn contents(count: u64) -> Vec<Page> {
    // No page of one repeated value: each goes to the disk.
    (0..)
        .map(page)
        .filter(|page| page.0[..8] != page.0[8..16])
        .take(count as usize)
        .collect()
}

fn stored(results: Vec<Result<PageHandle, StoreError>>) -> Vec<PageHandle> {
    results.into_iter().map(Result::unwrap).collect()
}

#[test]
fn errors_of_the_daemons_disk_are_reported_and_nothing_is_lost() {
    let system = System::new(1 << 20);
    let store = behind_channels(&system, None, 1);
    let mut channel = store.channel(4).unwrap();
    let contents = contents(8);
    // The run fails, and is written page by page.
    system.fail(1);
    let handles = stored(write(&mut *channel, &contents));
    system.fail(2);
    for result in write(&mut *channel, &contents[..1]) {
        // Once as a run of one page, which is not retried.
        let error = result.unwrap_err();
        let is_write = matches!(
            error,
            StoreError::Io {
                op: DiskOp::Write,
                errno: libc::EIO,
                ..
            }
        );
        assert!(is_write, "{error}");
    }
    let error = read(&mut *channel, handles[3]).err().unwrap();
    assert!(error.to_string().contains("reading blok 3"), "{error}");
    for (handle, page) in handles.iter().zip(&contents) {
        assert!(read(&mut *channel, *handle).unwrap() == *page);
    }
    assert_eq!(store.usage().disk_used, 8 * PAGE as u64);
}

#[test]
fn faults_are_injected_as_into_a_file() {
    let system = System::new(1 << 20);
    let store = behind_channels(&system, None, 1);
    let mut channel = store.channel(4).unwrap();
    let contents = contents(1);
    let handle = write_one(&mut *channel, &contents[0]).unwrap();
    let inject = |fault| {
        let fail = Some((fault, 0, 1));
        store.inject(FaultPlan { fail, slow: None });
    };
    inject(InjectedFault::Flip);
    let error = read(&mut *channel, handle).err().unwrap();
    let place = PageLocation::Disk { blok: 0 };
    assert_eq!(error, StoreError::Mismatch { handle, place });
    inject(InjectedFault::Eio);
    assert!(read(&mut *channel, handle).is_err());
    assert!(read(&mut *channel, handle).unwrap() == contents[0]);
}

#[test]
fn a_server_that_dies_in_the_middle_and_is_replaced_loses_no_page() {
    let system = System::new(8 << 20);
    for ram in [None, Some(512 << 10)] {
        let store = behind_channels(&system, ram, 2);
        let mut channel = store.channel(4).unwrap();
        let contents = contents(1000);
        let mut handles = Vec::new();
        let before = system.deaths();
        for part in contents.chunks(200) {
            system.die();
            handles.append(&mut stored(write(&mut *channel, part)));
        }
        for (at, (handle, page)) in handles.iter().zip(&contents).enumerate() {
            if at % 50 == 0 {
                system.die();
            }
            assert!(read(&mut *channel, *handle).unwrap() == *page);
        }
        assert!(system.deaths() - before > 10, "{}", system.deaths());
        drop(channel);
        assert!(store.retire(0));
    }
}

#[test]
fn it_is_described_and_joined_without_a_descriptor_of_a_swap_file() {
    let config = StoreConfig {
        ram: Some(256 << 10),
        disk: Some(DiskConfig::by_daemon(4 << 20)),
    };
    assert!(!config.has_file());
    let (store, fds) = store::SharedStore::create(&config, 2).unwrap();
    assert_eq!(fds.len(), 2, "the tables and the arena");
    let text = "ram:256KiB+disk by the system,size=4MiB";
    assert_eq!(store.describe(), text);
    assert!(text.parse::<StoreConfig>().is_err(), "no line asks for it");
    let other = store::SharedStore::attach(fds, 1).unwrap();
    assert_eq!(other.describe(), text);
    assert_eq!(other.take_swap(), None);

    let error = other.channel(4).err().unwrap().to_string();
    assert!(error.contains("its IO channel"), "{error}");
    let system = System::new(4 << 20);
    other.set_transport(system.transport());
    let mut channel = other.channel(4).unwrap();
    let contents = contents(600);
    let handles = stored(write(&mut *channel, &contents));
    assert!(other.usage().demoted > 0);

    // It has no use for a file.
    let (file, _end) = rustix::pipe::pipe().unwrap();
    other.reopen(file);
    assert_eq!(other.take_swap(), None);
    let mut second = other.channel(4).unwrap();
    for (handle, page) in handles.iter().zip(&contents) {
        assert!(read(&mut *second, *handle).unwrap() == *page);
    }
}

#[test]
fn a_child_drops_its_copy_of_a_channel_and_uses_its_own_transport() {
    let system = System::new(4 << 20);
    let store = behind_channels(&system, None, 3);
    store.set_holder(1).unwrap();
    let mut channel = store.channel(4).unwrap();
    let contents = contents(100);
    let handles = stored(write(&mut *channel, &contents));
    store.adopt_fork(1, 2);
    // SAFETY: the child does what a pager's would: new channels, no locks, _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(channel);
            // The parent's daemon has a thread that the child lacks.
            let own = System::over(system.disk());
            store.set_transport(own.transport());
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
    assert_eq!(store.usage().holds, 100);
    for (handle, page) in handles.iter().zip(&contents) {
        assert!(read(&mut *channel, *handle).unwrap() == *page);
    }
}

#[test]
fn bloks_of_a_dead_processs_writes_are_reused_only_after_the_daemon_confirms() {
    let (system, store) = killed_while_it_writes();
    assert!(store.retire(1));
    assert_eq!(system.settled(), 1);
    assert_eq!(store.usage().disk_used, 0);
}

#[test]
fn writes_that_are_known_to_have_ended_are_not_waited_for() {
    let (system, store) = killed_while_it_writes();
    assert!(store.retire_quiet(1));
    assert_eq!(system.settled(), 0);
    assert_eq!(store.usage().disk_used, 0);
}

/// A store whose process 1 was killed with writes in flight.
fn killed_while_it_writes() -> (System, store::SharedStore) {
    let system = System::new(1 << 20);
    let store = behind_channels(&system, None, 2);
    store.set_holder(1).unwrap();
    // A channel with a write in flight when its process was killed: nothing of it is shut down.
    let mut channel = store.channel(4).unwrap();
    let contents = contents(4);
    let writes: Vec<store::WritePage> = (contents.iter())
        .map(|page| store::WritePage {
            from: page.0.as_ptr(),
            sum: page.sum(),
            token: 0,
        })
        .collect();
    channel.submit_write(&writes).unwrap();
    std::mem::forget(channel);
    (system, store)
}
