//! Random sequences of writes, reads, discards, forks and crashes over several holders, compared
//! with a map of what every holder must read.

use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
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

/// The store, and what its holders hold by the model.
struct Model<'a> {
    store: &'a SharedStore,
    channels: Vec<Box<dyn Channel>>,
    held: Vec<HashMap<PageHandle, u64>>,
}

/// Performs the steps, and checks after each.
pub fn run(store: &SharedStore, steps: Vec<Step>) {
    let channel = |holder| {
        store.set_holder(holder).unwrap();
        store.channel(4).unwrap()
    };
    let mut model = Model {
        store,
        channels: (0..HOLDERS).map(channel).collect(),
        held: vec![HashMap::new(); HOLDERS.into()],
    };
    for step in steps {
        model.perform(step);
        model.check_usage();
    }
    model.check_contents();
    model.end();
}

impl Model<'_> {
    fn perform(&mut self, step: Step) {
        match step {
            Step::Write {
                holder,
                seed,
                count,
            } => self.write((0..count as u64).map(|at| seed + at).collect(), holder),
            Step::Read { holder, pick } => {
                if let Some(handle) = self.pick(holder, pick) {
                    let got = read(&mut *self.channels[usize::from(holder)], handle).unwrap();
                    assert!(got == page(self.held[usize::from(holder)][&handle]));
                    assert_eq!(self.store.checksum(handle), got.sum());
                }
            }
            Step::Discard {
                holder,
                pick,
                count,
            } => {
                for step in 0..count {
                    if let Some(handle) = self.pick(holder, pick + step) {
                        self.store.discard(holder, &[handle]);
                        self.held[usize::from(holder)].remove(&handle);
                    }
                }
            }
            Step::Fork { parent, child } if parent != child => {
                self.renew(child);
                self.store.adopt_fork(parent, child);
                self.held[usize::from(child)] = self.held[usize::from(parent)].clone();
            }
            Step::Fork { .. } => {}
            Step::Retire { holder } => {
                self.renew(holder);
                assert!(self.store.retire(holder));
                self.held[usize::from(holder)].clear();
                self.renew(holder);
            }
        }
    }

    fn write(&mut self, seeds: Vec<u64>, holder: HolderId) {
        let contents: Vec<Page> = seeds.iter().map(|&seed| page(seed)).collect();
        let results = write(&mut *self.channels[usize::from(holder)], &contents);
        for (seed, result) in seeds.into_iter().zip(results) {
            match result {
                Ok(handle) => {
                    assert!(
                        self.held.iter().all(|map| !map.contains_key(&handle)),
                        "{handle} was assigned twice"
                    );
                    self.held[usize::from(holder)].insert(handle, seed);
                }
                Err(error) => assert_eq!(error, StoreError::Full),
            }
        }
    }

    fn pick(&self, holder: HolderId, pick: usize) -> Option<PageHandle> {
        let map = &self.held[usize::from(holder)];
        let mut handles: Vec<PageHandle> = map.keys().copied().collect();
        handles.sort();
        (!handles.is_empty()).then(|| handles[pick % handles.len()])
    }

    /// Replaces the channel of a holder that ends first, as the end of its process does.
    fn renew(&mut self, holder: HolderId) {
        self.store.set_holder(holder).unwrap();
        self.channels[usize::from(holder)] = self.store.channel(4).unwrap();
    }

    fn check_usage(&self) {
        let maps = || self.held.iter();
        let distinct: HashSet<_> = maps().flat_map(HashMap::keys).collect();
        assert_eq!(pages(self.store), distinct.len() as u64);
        let holds = maps().map(HashMap::len).sum::<usize>();
        assert_eq!(self.store.usage().holds, holds as u64);
    }

    fn check_contents(&mut self) {
        for (channel, map) in self.channels.iter_mut().zip(&self.held) {
            for (&handle, &seed) in map {
                assert!(read(&mut **channel, handle).unwrap() == page(seed));
            }
        }
    }

    fn end(self) {
        drop(self.channels);
        (0..HOLDERS).for_each(|holder| assert!(self.store.retire(holder)));
        let usage = self.store.usage();
        assert_eq!(
            (
                pages(self.store),
                usage.holds,
                usage.ram_used,
                usage.disk_used
            ),
            (0, 0, 0, 0)
        );
    }
}
