//! Many threads of one process over one small store.

mod common;

use common::*;
use std::sync::atomic::{AtomicU64, Ordering};
use store::{PageHandle, Store, StoreError};

fn storm(config: &str, threads: u64, rounds: u64) {
    let store = make(config, 8);
    let full = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, full) = (&store, &full);
            scope.spawn(move || {
                let mut channel = store.channel(8).unwrap();
                let mut rng = Rng::with_seed(thread * 77 + 1);
                let mut held: Vec<(PageHandle, u64)> = Vec::new();
                for round in 0..rounds {
                    let seeds: Vec<u64> = (0..1 + rng.u64(..48))
                        .map(|at| thread << 40 | round << 8 | at)
                        .collect();
                    let contents: Vec<Page> = seeds.iter().map(|&seed| page(seed)).collect();
                    for (seed, result) in seeds.iter().zip(write(&mut *channel, &contents)) {
                        match result {
                            Ok(handle) => held.push((handle, *seed)),
                            Err(StoreError::Full) => {
                                full.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(other) => panic!("{other}"),
                        }
                    }
                    for _ in 0..rng.u64(..64).min(held.len() as u64) {
                        let (handle, seed) = held[rng.usize(..held.len())];
                        assert!(read(&mut *channel, handle).unwrap() == page(seed));
                    }
                    // Keeps about the store's capacity, so that it is full at times.
                    let keep = 40 + rng.usize(..200);
                    while held.len() > keep {
                        let (handle, _) = held.swap_remove(rng.usize(..held.len()));
                        store.discard(0, &[handle]);
                    }
                }
                for (handle, seed) in held {
                    assert!(read(&mut *channel, handle).unwrap() == page(seed));
                    store.discard(0, &[handle]);
                }
            });
        }
    });
    assert_eq!(pages(&store), 0);
    assert_eq!(store.usage().holds, 0);
    assert_eq!(store.usage().disk_used, 0);
    assert_eq!(store.usage().ram_compressed, 0);
    assert_eq!(store.usage().mismatches, 0);
}

#[test]
fn threads_share_a_small_ram_store() {
    storm("ram:1M", 4, 150);
}

#[test]
fn threads_share_a_small_tier() {
    storm("ram:512K+disk:threads-swap,size=2M", 4, 150);
}

#[test]
fn threads_share_a_small_disk() {
    storm("disk:threads-swap,size=2M", 4, 100);
}
