//! Places against a plain model: any order of writes, failures, late effects and kills.

use super::{BlokPlace, InnerHealth, Places, PlacesSize, SlotId, WRITE_DEADLINE};
use crate::time::{Nanos, Time};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use wired::WiredMemory;

const BLOKS: usize = 6;
/// A file that has room for all bloks, beside an inner transport that has not; and the other way round.
const LARGE_FILE: PlacesSize = PlacesSize {
    inner: 2,
    file: BLOKS as u32,
    // As many as writes are in flight.
    spare: BLOKS as u32,
};
const SMALL_FILE: PlacesSize = PlacesSize {
    inner: BLOKS as u32,
    file: 3,
    spare: 1,
};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A write of a blok begins, unless one is under way.
    Write(usize),
    /// The write of a blok, wherever it is, completes, and the inner transport forgets what the file has; or it fails.
    Complete {
        blok: usize,
        is_forgotten: bool,
    },
    Fail(usize),
    /// Time passes, and late writes are given up.
    Wait,
    /// A write at the inner transport that was given up, or that a killed process has started, takes effect.
    TakeEffect(usize),
    /// The process is killed, and another one goes on when the writes to the file that it has started have ended, which
    /// may have taken effect.
    Kill {
        take_effect: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..BLOKS).prop_map(Step::Write),
        8 => (0..BLOKS, any::<bool>())
            .prop_map(|(blok, is_forgotten)| Step::Complete { blok, is_forgotten }),
        3 => (0..BLOKS).prop_map(Step::Fail),
        2 => Just(Step::Wait),
        4 => (0..8_usize).prop_map(Step::TakeEffect),
        1 => any::<bool>().prop_map(|take_effect| Step::Kill { take_effect }),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Inner { until: Time, new: u32 },
    File(SlotId),
}

struct World {
    size: PlacesSize,
    memory: Arc<WiredMemory>,
    places: Places,
    health: [InnerHealth; 2],
    now: Time,
    last: u64,
    /// What the inner transport and the file have: numbers of writes.
    inner: [u64; BLOKS],
    file: Vec<u64>,
    writes: BTreeMap<usize, (u64, Target)>,
    late_inner: Vec<(usize, u64)>,
    /// What a read of a blok may give: the last acknowledged write, and later ones without an acknowledgement.
    permitted: [Vec<u64>; BLOKS],
}

impl World {
    fn new(size: PlacesSize) -> Self {
        let memory = table(size);
        Self {
            places: places(&memory, size),
            size,
            memory,
            health: Default::default(),
            now: Time(0),
            last: 0,
            inner: [0; BLOKS],
            file: vec![0; size.slots() as usize],
            writes: BTreeMap::new(),
            late_inner: Vec::new(),
            permitted: std::array::from_fn(|_| vec![0]),
        }
    }

    /// Claims a slot, which a file with room for all bloks always has.
    fn claim(&mut self, blok: usize) -> Option<SlotId> {
        let slot = self.places.claim(blok);
        assert!(
            slot.is_some() || self.size == SMALL_FILE,
            "no slot for blok {blok}"
        );
        slot
    }

    fn write(&mut self, blok: usize) {
        if self.writes.contains_key(&blok) {
            return;
        }
        let new = self.places.new_at_inner(blok..blok + 1);
        let is_admitted =
            self.places.has_inner_room(new) && self.health[new as usize].admit(self.now);
        let slot = match is_admitted {
            true => None,
            false => self.claim(blok),
        };
        let target = slot.map_or_else(
            || {
                self.places.on_inner_begun(new);
                let until = self.now + WRITE_DEADLINE;
                Target::Inner { until, new }
            },
            Target::File,
        );
        self.last += 1;
        self.permitted[blok].push(self.last);
        self.writes.insert(blok, (self.last, target));
    }

    fn acknowledge(&mut self, blok: usize, number: u64, before: Option<SlotId>) {
        before
            .into_iter()
            .for_each(|slot| self.places.release(slot));
        self.permitted[blok] = vec![number];
    }

    fn complete(&mut self, blok: usize, is_forgotten: bool) {
        let Some((number, target)) = self.writes.remove(&blok) else {
            return;
        };
        let before = match target {
            Target::Inner { new, .. } => {
                self.inner[blok] = self.inner[blok].max(number);
                self.health[new as usize].on_written();
                self.places.on_inner_ended(new);
                self.places.on_inner_written(blok)
            }
            Target::File(slot) => {
                self.file[slot.0 as usize] = number;
                let before = self.places.on_file_written(blok, slot);
                if is_forgotten {
                    self.inner[blok] = 0;
                    self.places.on_forgotten(blok);
                }
                before
            }
        };
        self.acknowledge(blok, number, before);
    }

    fn fail(&mut self, blok: usize) {
        match self.writes.remove(&blok) {
            Some((number, Target::Inner { new, .. })) => {
                self.places.on_inner_ended(new);
                self.health[new as usize].on_failed(self.now);
                self.late_inner.push((blok, number));
                if let Some(slot) = self.claim(blok) {
                    self.writes.insert(blok, (number, Target::File(slot)));
                }
            }
            // The program's write fails.
            Some((_, Target::File(slot))) => self.places.release(slot),
            None => {}
        }
    }

    fn wait(&mut self) {
        self.now = self.now + Nanos::millis(700);
        for blok in 0..BLOKS {
            let Some((number, Target::Inner { until, new })) = self.writes.get(&blok).copied()
            else {
                continue;
            };
            // Where the file is full, the write waits for the inner transport.
            if until <= self.now
                && let Some(slot) = self.claim(blok)
            {
                self.places.on_inner_ended(new);
                self.health[new as usize].on_failed(self.now);
                self.late_inner.push((blok, number));
                self.writes.insert(blok, (number, Target::File(slot)));
            }
        }
    }

    fn take_effect(&mut self, at: usize) {
        if !self.late_inner.is_empty() {
            let (blok, number) = self.late_inner.remove(at % self.late_inner.len());
            self.inner[blok] = self.inner[blok].max(number);
        }
    }

    fn kill(&mut self, take_effect: bool) {
        for (blok, (number, target)) in std::mem::take(&mut self.writes) {
            match target {
                Target::Inner { .. } => self.late_inner.push((blok, number)),
                Target::File(slot) if take_effect => self.file[slot.0 as usize] = number,
                Target::File(_) => {}
            }
        }
        self.health = Default::default();
        self.places = places(&self.memory, self.size);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(blok) => self.write(blok),
            Step::Complete { blok, is_forgotten } => self.complete(blok, is_forgotten),
            Step::Fail(blok) => self.fail(blok),
            Step::Wait => self.wait(),
            Step::TakeEffect(at) => self.take_effect(at),
            Step::Kill { take_effect } => self.kill(take_effect),
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut named = 0;
        for blok in 0..BLOKS {
            let there = match self.places.place(blok) {
                BlokPlace::Unwritten | BlokPlace::Inner => self.inner[blok],
                BlokPlace::File(slot) => {
                    named += 1;
                    self.file[slot.0 as usize]
                }
            };
            let permitted = &self.permitted[blok];
            prop_assert!(
                permitted.contains(&there),
                "blok {blok}: {there} of {permitted:?}"
            );
        }
        let at_inner = BLOKS as u32 - self.places.new_at_inner(0..BLOKS);
        prop_assert!(
            at_inner <= self.size.inner,
            "{at_inner} bloks have room there"
        );
        let is_in_file = |(_, target): &&(u64, Target)| matches!(target, Target::File(_));
        let written = self.writes.values().filter(is_in_file).count() as u32;
        prop_assert_eq!(self.places.free(), self.size.slots() - named - written);
        Ok(())
    }
}

proptest! {
    #[test]
    fn a_read_gives_the_last_acknowledged_write_or_a_later_one(
        has_large_file in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200)
    ) {
        let mut world = World::new(if has_large_file { LARGE_FILE } else { SMALL_FILE });
        for step in steps {
            world.step(step);
            world.check()?;
        }
    }
}

fn table(size: PlacesSize) -> Arc<WiredMemory> {
    Arc::new(WiredMemory::private(size.table_bytes()).expect("memory"))
}

fn places(memory: &Arc<WiredMemory>, size: PlacesSize) -> Places {
    Places::at((Arc::clone(memory), 0), size)
}

#[test]
fn a_full_file_refuses_other_bloks_and_takes_its_own_again() {
    let mut places = places(&table(SMALL_FILE), SMALL_FILE);
    for blok in 0..3 {
        let slot = places.claim(blok).expect("room");
        assert_eq!(places.on_file_written(blok, slot), None);
    }
    assert_eq!(places.claim(3), None, "one slot is spare");
    let slot = places.claim(0).expect("the spare slot");
    let before = places.on_file_written(0, slot).expect("an earlier slot");
    places.release(before);
    assert_eq!((places.place(0), places.free()), (BlokPlace::File(slot), 1));
}

#[test]
fn the_next_process_has_the_slots_that_a_killed_one_was_writing() {
    let memory = table(LARGE_FILE);
    let mut first = places(&memory, LARGE_FILE);
    let kept = first.claim(0).expect("room");
    first.on_file_written(0, kept);
    first.claim(1).expect("room");
    first.on_inner_written(2);
    let next = places(&memory, LARGE_FILE);
    assert_eq!(
        [0, 1, 2].map(|blok| next.place(blok)),
        [
            BlokPlace::File(kept),
            BlokPlace::Unwritten,
            BlokPlace::Inner
        ]
    );
    assert_eq!(next.free(), LARGE_FILE.slots() - 1);
}

#[test]
fn a_file_that_is_large_enough_takes_every_blok_again_and_again() {
    let mut places = places(&table(LARGE_FILE), LARGE_FILE);
    for blok in 0..2 {
        assert!(places.has_inner_room(1));
        places.on_inner_begun(1);
        places.on_inner_written(blok);
        places.on_inner_ended(1);
    }
    assert_eq!(places.new_at_inner(0..3), 1);
    assert!(!places.has_inner_room(1));
    for round in 0..3 {
        for blok in 0..BLOKS {
            let slot = places.claim(blok);
            let slot = slot.unwrap_or_else(|| panic!("blok {blok} in round {round}"));
            if let Some(before) = places.on_file_written(blok, slot) {
                places.release(before);
            }
        }
    }
    let is_back = (places.new_at_inner(0..2), places.has_inner_room(1));
    assert_eq!(
        is_back,
        (0, false),
        "the bloks in the file have room there still"
    );
}
