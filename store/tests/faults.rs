//! A disk that fails, fills up or corrupts data, and full stores: errors are reported, nothing is
//! lost.

mod common;

use common::*;
use store::{
    DiskOp, FaultPlan, InjectedFault, PageHandle, PageLocation, ReadPage, Store, StoreError, Wait,
};

/// Pages that compress to about half.
fn halves(count: u64) -> Vec<Page> {
    (0..)
        .map(page)
        .filter(|page| {
            let changes = page.0.windows(2).filter(|pair| pair[0] != pair[1]).count();
            (1500..2600).contains(&changes)
        })
        .take(count as usize)
        .collect()
}

fn fail(fault: InjectedFault, first: u64, count: u64) -> FaultPlan {
    FaultPlan {
        fail: Some((fault, first, count)),
        slow: None,
    }
}

#[test]
fn a_full_ram_store_returns_an_error_and_keeps_its_pages() {
    let store = make("ram:256K", 1);
    let mut channel = store.channel(1).unwrap();
    let contents = halves(400);
    let results = write(&mut *channel, &contents);
    let stored: Vec<(usize, PageHandle)> = results
        .iter()
        .enumerate()
        .filter_map(|(at, r)| Some((at, (*r).ok()?)))
        .collect();
    assert!(stored.len() > 70, "{}", stored.len());
    assert!(stored.len() < 400);
    for (at, result) in results.iter().enumerate() {
        assert!(
            result.is_ok() || *result == Err(StoreError::Full),
            "page {at}: {result:?}"
        );
    }
    for (at, handle) in &stored {
        assert!(read(&mut *channel, *handle).unwrap() == contents[*at]);
    }
    // Freed space is usable again.
    store.discard(
        0,
        &stored.iter().map(|(_, handle)| *handle).collect::<Vec<_>>(),
    );
    assert!(
        write(&mut *channel, &contents[..60])
            .iter()
            .all(Result::is_ok)
    );
}

#[test]
fn sparse_segments_in_ram_are_compacted() {
    let store = make("ram:512K", 1);
    let mut channel = store.channel(1).unwrap();
    let contents = halves(120);
    let mut kept = Vec::new();
    for (round, page) in contents.iter().cycle().take(3000).enumerate() {
        let handle = write_one(&mut *channel, page).unwrap();
        if round % 5 == 0 && kept.len() < 110 {
            kept.push((handle, *page));
        } else {
            store.discard(0, &[handle]);
        }
    }
    assert!(store.usage().compacted > 0);
    for (handle, page) in kept {
        assert!(read(&mut *channel, handle).unwrap() == page);
    }
}

#[test]
fn a_full_tier_returns_an_error_and_keeps_its_pages() {
    let store = make("ram:256K+disk:faults-swap,size=256K", 1);
    let mut channel = store.channel(4).unwrap();
    let contents = halves(600);
    let results = write(&mut *channel, &contents);
    assert!(results.contains(&Err(StoreError::Full)));
    let usage = store.usage();
    assert_eq!(usage.disk_used, 256 << 10);
    assert!(usage.demoted > 0);
    for (result, page) in results.iter().zip(&contents) {
        if let Ok(handle) = result {
            assert!(read(&mut *channel, *handle).unwrap() == *page);
        }
    }
}

#[test]
fn a_failed_write_is_reported_page_by_page_and_frees_its_blok() {
    let store = make("disk:faults-swap,size=1M", 1);
    let mut channel = store.channel(4).unwrap();
    let contents = halves(8);
    // The run fails, and then the third page on its own.
    store.inject(fail(InjectedFault::Eio, 0, 1));
    let results = write(&mut *channel, &contents);
    assert!(
        results.iter().all(Result::is_ok),
        "a run that fails once is written page by page"
    );
    store.inject(fail(InjectedFault::Eio, 0, u64::MAX));
    for result in write(&mut *channel, &contents) {
        assert!(
            matches!(
                result,
                Err(StoreError::Io {
                    op: DiskOp::Write,
                    errno: 5,
                    ..
                })
            ),
            "{result:?}"
        );
    }
    store.inject(fail(InjectedFault::Enospc, 0, u64::MAX));
    let error = write(&mut *channel, &contents)[0].unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    assert_eq!(store.usage().disk_used, 8 * PAGE as u64);
    assert_eq!(pages(&store), 8);
}

#[test]
fn a_failed_read_names_its_blok_and_spares_its_neighbours() {
    let store = make("disk:faults-swap,size=1M", 1);
    let mut channel = store.channel(4).unwrap();
    let contents = halves(4);
    let handles: Vec<PageHandle> = write(&mut *channel, &contents)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    // I/O 0 is the run, 1 to 4 its pages: the third fails.
    store.inject(fail(InjectedFault::Eio, 0, 1));
    let mut back = vec![Page([0; PAGE]); 4];
    let run: Vec<ReadPage> = (handles.iter().zip(&mut back).enumerate())
        .map(|(at, (&handle, page))| ReadPage {
            handle,
            into: page.0.as_mut_ptr(),
            token: at as u64,
        })
        .collect();
    assert_eq!(channel.submit_read_run(&run).unwrap(), 4);
    for _ in 0..4 {
        assert_eq!(channel.complete(Wait::Yes).unwrap().result, Ok(None));
    }
    assert!(back == contents);
    store.inject(fail(InjectedFault::Eio, 0, u64::MAX));
    let error = read(&mut *channel, handles[2]).err().unwrap();
    assert!(
        matches!(
            error,
            StoreError::Io {
                op: DiskOp::Read,
                errno: 5,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("reading blok"), "{error}");
    store.inject(FaultPlan::default());
    assert!(read(&mut *channel, handles[2]).unwrap() == contents[2]);
}

#[test]
fn silent_corruption_on_disk_is_detected() {
    let store = make("disk:faults-swap,size=1M", 1);
    let mut channel = store.channel(4).unwrap();
    let contents = halves(1);
    let handle = write_one(&mut *channel, &contents[0]).unwrap();
    store.inject(fail(InjectedFault::Flip, 0, 1));
    let error = read(&mut *channel, handle).err().unwrap();
    assert!(
        matches!(error, StoreError::Mismatch { handle: h, place: PageLocation::Disk { .. } } if h == handle),
        "{error}"
    );
    assert!(error.to_string().contains("checksum mismatch"));
    assert_eq!(store.usage().mismatches, 1);
    assert!(read(&mut *channel, handle).unwrap() == contents[0]);
}

#[test]
fn pages_that_cannot_be_demoted_stay_in_ram() {
    let store = make("ram:512K+disk:faults-swap,size=4M", 1);
    let mut channel = store.channel(4).unwrap();
    store.inject(fail(InjectedFault::Eio, 0, u64::MAX));
    let contents = halves(600);
    let results = write(&mut *channel, &contents);
    let stored = results.iter().filter(|result| result.is_ok()).count();
    assert!(stored > 100 && stored < 600, "{stored}");
    for (result, page) in results.iter().zip(&contents) {
        match result {
            Ok(handle) => assert!(read(&mut *channel, *handle).unwrap() == *page),
            Err(error) => assert!(matches!(error, StoreError::Io { .. } | StoreError::Full)),
        }
    }
    // A disk that recovers is used again.
    store.inject(FaultPlan::default());
    assert!(
        write(&mut *channel, &contents[..200])
            .iter()
            .all(Result::is_ok)
    );
    assert!(store.usage().demoted > 0);
    for (result, page) in results.iter().zip(&contents) {
        if let Ok(handle) = result {
            assert!(read(&mut *channel, *handle).unwrap() == *page);
        }
    }
}

#[test]
fn a_slow_disk_is_only_slow() {
    let store = make("ram:256K+disk:faults-swap,size=4M,slow=300us", 1);
    let mut channel = store.channel(4).unwrap();
    let contents = halves(300);
    for (result, page) in write(&mut *channel, &contents).iter().zip(&contents) {
        assert!(read(&mut *channel, result.unwrap()).unwrap() == *page);
    }
}

#[test]
fn a_handle_without_a_page_is_refused() {
    let store = make("ram:256K", 1);
    let mut channel = store.channel(1).unwrap();
    for number in [1, 1000, (1 << 28) - 1] {
        let handle = PageHandle::new(number).unwrap();
        assert_eq!(
            read(&mut *channel, handle).err(),
            Some(StoreError::NoSuchPage { handle })
        );
        store.discard(0, &[handle]);
    }
    assert_eq!(PageHandle::new(0), None);
    assert_eq!(PageHandle::new(1 << 28), None);
}

#[test]
fn too_many_pages_at_once_are_refused_whole() {
    let store = make("ram:1M", 1);
    let mut channel = store.channel(1).unwrap();
    let page = page(8);
    let write = store::WritePage {
        from: page.0.as_ptr(),
        sum: page.sum(),
        token: 0,
    };
    let many = vec![write; store::MAX_PENDING + 1];
    assert_eq!(channel.submit_write(&many), Err(StoreError::Busy));
    assert_eq!(channel.pending(), 0);
}

#[test]
fn idle_channels_give_their_segments_back() {
    // 16 segments, for 40 channels.
    let store = make("ram:256K+disk:idle-swap,size=4M", 1);
    let mut channels: Vec<_> = (0..40).map(|_| store.channel(4).unwrap()).collect();
    let contents = halves(80);
    let mut handles = Vec::new();
    for (channel, pages) in channels.iter_mut().zip(contents.chunks(2)) {
        handles.extend(write(&mut **channel, pages));
    }
    let before = store.usage().to_ram;
    assert!(before < 80, "every channel has a segment");
    // Two rounds: a channel that has just written is not idle.
    for _ in 0..2 {
        channels
            .iter_mut()
            .for_each(|channel| channel.release_idle());
    }
    let mut newcomer = store.channel(4).unwrap();
    let more = halves(20);
    let written = write(&mut *newcomer, &more);
    assert_eq!(store.usage().to_ram, before + 20, "pages went past RAM");
    let all = handles.iter().chain(&written);
    for (handle, page) in all.zip(contents.iter().chain(&more)) {
        assert!(read(&mut *newcomer, handle.unwrap()).unwrap() == *page);
    }
}
