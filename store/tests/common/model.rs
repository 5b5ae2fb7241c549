//! Random sequences of writes, reads, discards, forks and crashes over several holders, compared
//! with a map of what every holder must read.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use store::{Channel, HolderId, PageHandle, Store, StoreError};

pub const HOLDERS: u16 = 5;

#[derive(Clone, Debug)]
pub enum Step {
    Write {
        holder: u16,
        seed: u64,
        count: usize,
    },
    Read {
        holder: u16,
        pick: usize,
    },
    Discard {
        holder: u16,
        pick: usize,
        count: usize,
    },
    Fork {
        parent: u16,
        child: u16,
    },
    Retire {
        holder: u16,
    },
}

pub fn step() -> impl Strategy<Value = Step> {
    let holder = 0..HOLDERS;
    prop_oneof![
        8 => (holder.clone(), any::<u32>(), 1usize..60)
            .prop_map(|(holder, seed, count)| Step::Write { holder, seed: seed.into(), count }),
        6 => (holder.clone(), any::<usize>()).prop_map(|(holder, pick)| Step::Read { holder, pick }),
        5 => (holder.clone(), any::<usize>(), 1usize..80)
            .prop_map(|(holder, pick, count)| Step::Discard { holder, pick, count }),
        1 => (holder.clone(), 0..HOLDERS).prop_map(|(parent, child)| Step::Fork { parent, child }),
        1 => holder.prop_map(|holder| Step::Retire { holder }),
    ]
}

/// Performs the steps, and checks after each.
pub fn run(store: &SharedStore, steps: Vec<Step>) {
    let mut held: Vec<HashMap<PageHandle, u64>> = vec![HashMap::new(); HOLDERS.into()];
    let mut channels: Vec<Box<dyn Channel>> = (0..HOLDERS)
        .map(|holder| {
            store.set_holder(holder).unwrap();
            store.channel(4).unwrap()
        })
        .collect();
    let pick = |map: &HashMap<PageHandle, u64>, pick: usize| {
        let mut handles: Vec<PageHandle> = map.keys().copied().collect();
        handles.sort();
        (!handles.is_empty()).then(|| handles[pick % handles.len()])
    };
    for step in steps {
        match step {
            Step::Write {
                holder,
                seed,
                count,
            } => {
                let seeds: Vec<u64> = (0..count as u64).map(|at| seed + at).collect();
                let contents: Vec<Page> = seeds.iter().map(|&seed| page(seed)).collect();
                let results = write(&mut *channels[usize::from(holder)], &contents);
                for (seed, result) in seeds.into_iter().zip(results) {
                    match result {
                        Ok(handle) => {
                            assert!(
                                held.iter().all(|map| !map.contains_key(&handle)),
                                "{handle} was assigned twice"
                            );
                            held[usize::from(holder)].insert(handle, seed);
                        }
                        Err(error) => assert_eq!(error, StoreError::Full),
                    }
                }
            }
            Step::Read { holder, pick: at } => {
                if let Some(handle) = pick(&held[usize::from(holder)], at) {
                    let got = read(&mut *channels[usize::from(holder)], handle).unwrap();
                    assert!(got == page(held[usize::from(holder)][&handle]));
                    assert_eq!(store.checksum(handle), got.sum());
                }
            }
            Step::Discard {
                holder,
                pick: at,
                count,
            } => {
                for step in 0..count {
                    if let Some(handle) = pick(&held[usize::from(holder)], at + step) {
                        store.discard(holder, &[handle]);
                        held[usize::from(holder)].remove(&handle);
                    }
                }
            }
            Step::Fork { parent, child } if parent != child => {
                renew(store, &mut channels, child);
                store.adopt_fork(parent, child);
                held[usize::from(child)] = held[usize::from(parent)].clone();
            }
            Step::Fork { .. } => {}
            Step::Retire { holder } => {
                renew(store, &mut channels, holder);
                assert!(store.retire(holder));
                held[usize::from(holder)].clear();
                store.set_holder(holder).unwrap();
                channels[usize::from(holder)] = store.channel(4).unwrap();
            }
        }
        let distinct: std::collections::HashSet<_> = held.iter().flat_map(HashMap::keys).collect();
        assert_eq!(pages(store), distinct.len() as u64);
        assert_eq!(
            store.usage().holds,
            held.iter().map(HashMap::len).sum::<usize>() as u64
        );
    }
    for (holder, map) in held.iter().enumerate() {
        for (&handle, &seed) in map {
            assert!(read(&mut *channels[holder], handle).unwrap() == page(seed));
        }
    }
    drop(channels);
    (0..HOLDERS).for_each(|holder| assert!(store.retire(holder)));
    let usage = store.usage();
    assert_eq!(
        (pages(store), usage.holds, usage.ram_used, usage.disk_used),
        (0, 0, 0, 0)
    );
}

/// Drops the channel of a holder that ends first, as the end of its process does.
fn renew(store: &store::SharedStore, channels: &mut [Box<dyn Channel>], holder: HolderId) {
    store.set_holder(holder).unwrap();
    channels[usize::from(holder)] = store.channel(4).unwrap();
}
