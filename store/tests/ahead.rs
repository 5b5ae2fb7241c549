//! Speculative reads: a page that verifies is right, even if it changes meanwhile, and a page that
//! is gone counts as no failure.

mod common;

use common::*;
use store::{
    Channel, Completion, FaultPlan, InjectedFault, PageHandle, ReadPage, SharedStore, Store,
    StoreError, Wait,
};

const CONFIGS: [&str; 3] = [
    "ram:1M",
    "disk:ahead-swap,size=4M",
    "ram:256K+disk:ahead-swap,size=4M",
];

/// Reads ahead and waits; returns the results, in the order of `handles`.
fn ahead(
    channel: &mut dyn Channel,
    handles: &[PageHandle],
    into: &mut [Page],
) -> Vec<Result<(), StoreError>> {
    let run: Vec<ReadPage> = (0..)
        .zip(handles.iter().zip(into))
        .map(|(token, (&handle, page))| ReadPage {
            handle,
            into: page.0.as_mut_ptr(),
            token,
        })
        .collect();
    let later = channel.submit_read_ahead(&run).unwrap();
    assert!(later <= run.len());
    let mut results = vec![None; run.len()];
    for _ in &run {
        let Completion { token, result } = channel.complete(Wait::Yes).unwrap();
        let before = results[token as usize].replace(result.map(|handle| assert_eq!(handle, None)));
        assert!(before.is_none(), "a token returned twice");
    }
    assert_eq!(channel.pending(), 0);
    results.into_iter().map(Option::unwrap).collect()
}

fn stored(store: &SharedStore, count: u64) -> (Box<dyn Channel>, Vec<Page>, Vec<PageHandle>) {
    let mut channel = store.channel(8).unwrap();
    let contents: Vec<Page> = (0..count).map(page).collect();
    let results = write(&mut *channel, &contents);
    let handles = results.into_iter().map(Result::unwrap).collect();
    (channel, contents, handles)
}

#[test]
fn pages_read_ahead_are_the_pages() {
    for config in CONFIGS {
        let store = make(config, 1);
        let (mut channel, contents, handles) = stored(&store, 300);
        let mut into = vec![Page([0; PAGE]); 300];
        let results = ahead(&mut *channel, &handles, &mut into);
        assert!(results.iter().all(Result::is_ok), "{config}");
        assert!(into == contents, "{config}");
        for (at, handle) in handles.iter().enumerate() {
            assert!(store.verify_checksum(*handle, &into[at].0));
            assert!(!store.verify_checksum(*handle, &contents[(at + 1) % 300].0));
        }
        assert_eq!(store.usage().read, 300);
    }
}

#[test]
fn adjacent_bloks_are_read_together_in_any_order_of_request() {
    let store = make("disk:ahead-swap,size=4M", 1);
    let unfilled = |page: &Page| page.0[..8] != page.0[8..16];
    let contents: Vec<Page> = (0..).map(page).filter(unfilled).take(64).collect();
    let mut channel = store.channel(8).unwrap();
    let handles = write(&mut *channel, &contents);
    let mut handles: Vec<PageHandle> = handles.into_iter().map(Result::unwrap).collect();
    handles.reverse();
    let before = store.usage().ios;
    let mut into = vec![Page([0; PAGE]); 64];
    ahead(&mut *channel, &handles, &mut into);
    into.reverse();
    assert!(into == contents);
    let ios = store.usage().ios - before;
    assert!(ios <= 4, "{ios} operations for 64 neighbours");
}

#[test]
fn a_page_that_is_gone_is_an_error_and_no_mismatch() {
    for config in CONFIGS {
        let store = make(config, 1);
        let (mut channel, _, handles) = stored(&store, 40);
        let mut into = vec![Page([0x5a; PAGE]); 40];
        store.discard(0, &handles[..20]);
        let results = ahead(&mut *channel, &handles, &mut into);
        assert!(results[..20].iter().all(Result::is_err), "{config}");
        assert!(results[20..].iter().all(Result::is_ok), "{config}");
        assert!(into[..20].iter().all(|page| page.0 == [0x5a; PAGE]));
        let never = PageHandle::new((1 << PageHandle::BITS) - 1).unwrap();
        let result = ahead(&mut *channel, &[never], &mut into[..1]);
        assert!(result[0].is_err(), "{config}");
        assert!(
            !store.verify_checksum(never, &into[0].0)
                && !store.verify_checksum(handles[0], &into[0].0)
        );
        let usage = store.usage();
        assert_eq!((usage.mismatches, usage.io_errors), (0, 0), "{config}");
    }
}

#[test]
fn a_flipped_bit_is_found_when_the_page_is_used() {
    let store = make("disk:ahead-swap,size=4M", 1);
    let (mut channel, _, handles) = stored(&store, 1);
    store.inject(FaultPlan {
        fail: Some((InjectedFault::Flip, 0, 1)),
        slow: None,
    });
    let mut into = [Page([0; PAGE])];
    assert!(ahead(&mut *channel, &handles, &mut into)[0].is_ok());
    assert!(!store.verify_checksum(handles[0], &into[0].0));
    assert_eq!(store.usage().mismatches, 0);
}

/// One thread reads ahead while two others write, discard, and demote to disk.
#[test]
fn pages_may_come_and_go_while_they_are_read_ahead() {
    for config in CONFIGS {
        let store = make(config, 1);
        std::thread::scope(|scope| {
            let movers: Vec<_> = (0..2)
                .map(|thread| {
                    let store = &store;
                    scope.spawn(move || come_and_go(store, thread))
                })
                .collect();
            let mut channel = store.channel(4).unwrap();
            let mut rng = Rng::with_seed(11);
            // The page before and the page after each target must stay unchanged.
            let mut into = vec![Page([0x77; PAGE]); 3];
            let mut verified = 0;
            while !movers.iter().all(|thread| thread.is_finished()) {
                let handle = PageHandle::new(1 + rng.u32(..600)).unwrap();
                let [before, target, after] = &mut into[..] else {
                    unreachable!()
                };
                ahead(&mut *channel, &[handle], std::slice::from_mut(target));
                assert!(before.0 == [0x77; PAGE] && after.0 == [0x77; PAGE]);
                verified += u64::from(store.verify_checksum(handle, &target.0));
            }
            assert!(verified > 0, "{config}");
        });
        assert_eq!(store.usage().mismatches, 0, "{config}");
        assert_eq!(pages(&store), 0, "{config}");
    }
}

fn come_and_go(store: &SharedStore, thread: u64) {
    let mut channel = store.channel(4).unwrap();
    let mut rng = Rng::with_seed(thread + 5);
    let mut held: Vec<(PageHandle, u64)> = Vec::new();
    for round in 0..150 {
        let seeds: Vec<u64> = (0..32).map(|at| thread << 40 | round << 8 | at).collect();
        let contents: Vec<Page> = seeds.iter().map(|&seed| page(seed)).collect();
        for (seed, result) in seeds.iter().zip(write(&mut *channel, &contents)) {
            held.extend(result.ok().map(|handle| (handle, *seed)));
        }
        while held.len() > 180 {
            let (handle, seed) = held.swap_remove(rng.usize(..held.len()));
            assert!(read(&mut *channel, handle).unwrap() == page(seed));
            store.discard(0, &[handle]);
        }
    }
    for (handle, seed) in held {
        assert!(read(&mut *channel, handle).unwrap() == page(seed));
        store.discard(0, &[handle]);
    }
}
